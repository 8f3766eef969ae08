"""A worker is one process for one GPU, which runs one batch at a time.

Orders are obeyed as they are heard, also while a batch runs; batches take turns. A GPU that works by itself
(`Launching` in the backends' contract) goes from one batch to the next at once, and the host gathers inputs
and writes replies meanwhile.

It is started as `python -m astrarium.serving.live.worker SOCKET MEMORY SIZE GPU KIND DEVICE`, where the
first two are inherited file descriptors. Without the last three it is in reserve (see preparing.py).
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock, Thread
from time import monotonic_ns, sleep
from typing import Any, cast

import msgspec
import numpy as np

from astrarium.core.optional import extension
from astrarium.core.quantities import Time
from astrarium.serving.live import device_health, messages, preparing
from astrarium.serving.live.arena import SharedMemory, aligned, fixed_bytes
from astrarium.serving.live.backends import backends, contract, examples
from astrarium.serving.live.backends.contract import Batch, LoadedModel, ModelFiles, Place
from astrarium.serving.live.backends.precise_wait import Ready, Watch, fine_timers, watching
from astrarium.serving.live.batches import gathered, write_replies
from astrarium.serving.live.garbage import GarbageKeeper
from astrarium.serving.live.messages import BatchDone, LoadModel, RunBatch, Shapes
from astrarium.serving.live.phases import Phases
from astrarium.serving.live.tensors import Array, TensorSpec

# A batch in a worker: from its order, through its turn on the GPU, to its replies.


Clock = Callable[[], Time]


class BatchTurn:
    """A batch has its turn on the GPU; *model* is the one loaded when the order was received."""

    def __init__(self, order: RunBatch, received: Time, model: LoadedModel | None, view: memoryview) -> None:
        self.order = order
        self.received = received
        self.model = model
        self._view = view
        self.not_before = max(received, order.start)
        self._launch: Callable[[Batch, Time], contract.Launched] | None = getattr(model, "launch", None)
        self.in_flight: int = getattr(model, "in_flight", 0)  # batches that its model takes at once; 0: any
        self._launched: contract.Launched | None = None
        self._error: Exception | None = None

    @property
    def launches(self) -> bool:
        """Whether the batch can be launched: its GPU works on its own then."""
        return self._launch is not None

    @property
    def awaits_start(self) -> bool:
        """Whether the host waits for the batch's start: its GPU would begin at once."""
        return not self.launched and (self._launch is None or self.in_flight > 0)

    @property
    def launched(self) -> bool:
        """Whether the batch was launched, or that was tried."""
        return self._launched is not None or self._error is not None

    def launch(self) -> None:
        """Launch the batch, before its turn or when that has come.

        What goes wrong is told at its turn: news keep the order of the orders.
        """
        assert self._launch is not None, "its model needs the host"
        try:
            self._launched = self._launch(self._batch(self._loaded()), self.not_before)
        except Exception as error:
            self._error = error

    def take(self, free: Time, clock: Clock) -> tuple[Time, contract.Ran]:
        """Run the batch, or wait until it has run; return when it started, and what ran.

        *free* is when the batch before left the GPU.
        """
        if self._error is not None:
            raise self._error
        if self._launched is None:
            return self._run(self._loaded(), clock)
        ran = self._launched.wait(free)
        return ran.began, ran

    def reply(self, result: contract.Result) -> list[Shapes] | None:
        """Write the replies; return their shapes where the model's own do not say them all."""
        return write_replies(self._view, self._loaded().outputs, self.order.members, result.outputs)

    def _run(self, model: LoadedModel, clock: Clock) -> tuple[Time, contract.Ran]:
        started = clock()
        batch = self._batch(model)
        began = clock()
        result = model.run(batch)
        return started, contract.Ran(result, began, clock())

    def _batch(self, model: LoadedModel) -> Batch:
        order = self.order
        staging: Callable[[int], Mapping[str, Array]] | None = getattr(model, "staging", None)
        staged = staging(order.size) if staging else {}
        return gathered(self._view, model.inputs, order.members, order.shapes, staged)

    def _loaded(self) -> LoadedModel:
        if self.model is None:
            raise LookupError(f"model {self.order.model} is not loaded on this GPU")
        return self.model


class FrontendGone(BaseException):
    """The frontend is gone, and with it everybody who waits; no model's code may catch this."""


_PR_SET_PDEATHSIG = 1
GAVE_UP = 75  # the exit status of a worker that cannot go on
_QUIET = 0.05  # seconds without an order, or a ping (see LOOK_EVERY): nobody is in a hurry
_FIRST_SPARE = 1_000_000  # nanoseconds: what launching ahead may take, as long as nobody has measured it


class Worker:
    """A worker obeys the orders that come over *line*.

    *clock* and *watch* (see precise_wait.py) may be others in tests. *garbage* is for a process that only
    serves: it turns Python's own collector off. *native* (a `BatchLoop` on the same line) hears orders first:
    it runs the batches of `Timed` models, and passes on whatever else it hears. *leave* ends the process.
    """

    def __init__(
        self,
        line: socket.socket,
        memory: SharedMemory,
        place: Place,
        clock: Clock = monotonic_ns,
        watch: Watch = watching,
        garbage: GarbageKeeper | None = None,
        native: Any | None = None,
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        self._native = native
        self._leave = leave
        self._line = line
        self._memory = memory
        self._place = place
        self._clock = clock
        self._packet = memoryview(bytearray(messages.LARGEST_MESSAGE))
        self._watch = watch(line.fileno(), self._heard)
        self._models: dict[int, LoadedModel] = {}
        self._one_load = Lock()
        self._to_load: list[LoadModel] = []  # orders whose models are not loaded yet
        self._retired: list[LoadedModel] = []  # replaced, and closed once no batch can be using them
        self._turns: deque[BatchTurn] = deque()
        self._running: BatchTurn | None = None
        self._cancelled: dict[int, int] = {}  # runs to stop or skip, with how long to recover
        self._free = 0  # when the GPU is done with what it was given
        self._spare = _FIRST_SPARE
        self._leaving = False
        self._garbage = garbage
        self._unsettled = False  # models were loaded since the garbage keeper last looked at all there is

    def serve(self) -> None:
        """Serve until told to stop, or until the other end is gone."""
        self._hold_garbage()
        self._say(messages.WorkerUp(os.getpid()))
        while self._turns or not self._leaving:
            if self._turns:
                self._take(self._turns.popleft())
            elif self._await_turn():
                self._tidy_up()
            self._close_retired()

    # listening

    def _await_turn(self) -> bool:
        """Hear orders; return whether none came for a while."""
        if self._native is not None:
            self._serve_natively()
            return not (self._turns or self._retired or self._leaving)
        if self._untidy and not select.select([self._line], [], [], _QUIET)[0]:
            return True
        self._listen()
        return False

    def _serve_natively(self) -> None:
        express: Any = extension("_express")
        try:
            self._free = cast(Any, self._native).serve(self._free, self._heard_natively)
        except express.DeviceLost:  # native code has said so
            self._leave(GAVE_UP)

    def _heard_natively(self, packet: bytes, received: int) -> bool:
        """Obey an order that native code has heard; return whether it must wait for something here."""
        if not packet:
            raise FrontendGone
        self._obey(messages.decode_order(packet), received)
        return bool(self._turns or self._retired or self._leaving)

    def _listen(self) -> None:
        size = self._line.recv_into(self._packet)  # new memory for the largest message would cost 10 us
        received = self._clock()
        if not size:
            raise FrontendGone
        self._obey(messages.decode_order(self._packet[:size]), received)

    def _hold_garbage(self) -> None:
        self._unsettled = True
        if self._garbage is not None:
            self._garbage.hold()

    @property
    def _untidy(self) -> bool:
        return self._garbage is not None and (self._unsettled or self._garbage.worth_it)

    def _tidy_up(self) -> None:
        if self._garbage is not None and self._untidy:
            tidy = self._garbage.settle if self._unsettled else self._garbage.idle_moment
            self._unsettled = False  # before: a thread may load a model meanwhile
            tidy()

    def _obey(self, order: messages.Order, received: int) -> None:
        match order:
            case RunBatch():
                model = self._models.get(order.model)
                self._turns.append(BatchTurn(order, received, model, self._memory.view))
            case messages.CancelBatch(run, recovery):
                if any(turn.order.run == run for turn in (self._running, *self._turns) if turn):
                    self._cancelled[run] = recovery  # else it has ended, and its end is on the way
            case LoadModel():
                self._load(order)
            case messages.UnloadModel(model):
                self._retire(self._models.pop(model, None))
                if self._native is not None:
                    self._native.forget(model)
                self._say(messages.ModelUnloaded(model))
            case messages.Ping(sent):
                self._say(messages.Pong(sent, received))
            case messages.Stop():
                self._leaving = True

    def _wait_until(self, instant: int, ready: Ready | None = None) -> bool:
        """Wait, hear orders and launch ahead meanwhile; see `Wait`."""
        self._launch_ahead(instant)
        return self._watch(instant, ready)

    def _heard(self, until: int) -> bool:
        """Hear an order while waiting for an instant; return whether it ends the batch that runs."""
        self._listen()
        self._launch_ahead(until)
        return self._running is not None and self._running.order.run in self._cancelled

    def _say(self, news: messages.News) -> None:
        self._line.send(messages.encode(news))

    # models

    def _load(self, order: LoadModel) -> None:
        """Load a model in a thread, so that the models already there go on serving."""
        self._to_load.append(order)
        Thread(target=self._load_whole, args=(order,), daemon=True).start()

    def _load_whole(self, order: LoadModel) -> None:
        try:
            self._load_aside(order)
        finally:
            self._to_load.remove(order)
        self._complete(order.model)
        preparing.forget_unused(lambda: bool(self._to_load))

    def _load_aside(self, order: LoadModel) -> None:
        try:
            with self._one_load:  # importing users' code from two threads at once is asking for trouble
                self._say(messages.ModelLoading(order.model))
                model, lead, phases = self._ready_to_run(order)
        except BaseException as error:  # a model that asks the process to exit is refused like any other
            self._check_device(-1)
            self._say(messages.ModelRefused(order.model, _told(error)))
            return
        replaced = self._models.get(order.model)
        self._models[order.model] = model
        self._make_known(order.model, model)
        self._hold_garbage()
        self._retire(replaced)
        self._say(_loaded(order.model, model, lead, phases))

    def _complete(self, number: int) -> None:
        """Do what a loaded model left for later, as long as no other model is to be loaded."""
        model = self._models.get(number)
        if not getattr(model, "partial", False):
            return
        steps = cast(contract.Partial, model).rest()
        phases = Phases()
        while True:
            while self._to_load:
                sleep(_QUIET)
            with self._one_load, phases.phase("graphs"):
                if next(steps, None) is None:
                    break
        if self._models.get(number) is model:
            self._say(messages.ModelComplete(number, self._clock(), phases))

    def _make_known(self, number: int, model: LoadedModel) -> None:
        """Let native code run the model's batches, where it can."""
        if self._native is None:
            return
        timed: contract.Timed | None = getattr(model, "timed", None)
        if timed is not None:
            tensors = _plain(model.inputs), _plain(model.outputs)
            self._native.know(number, list(timed.table), *tensors, list(timed.sources))
        elif (graphs := getattr(model, "graphs", None)) is not None:
            self._native.know_graphs(number, graphs)
        else:
            self._native.forget(number)

    def _ready_to_run(self, order: LoadModel) -> tuple[LoadedModel, tuple[Time, Time], Phases]:
        files = files_from(order.files)
        phases = Phases()
        with phases.phase("load"):
            model = backends.get(files.backend)(files, self._place)
        with phases.phase("warm-up"):
            model.warm_up(order.sizes)
        with phases.phase("lead"):
            lead = measured_lead(model, files.max_batch, self._clock)
        if hasattr(model, "wait_until"):
            model.wait_until = self._wait_until
        return model, lead, phases

    def _retire(self, model: LoadedModel | None) -> None:
        if model is not None:
            self._retired.append(model)

    def _close_retired(self) -> None:
        if self._retired:
            needed = [turn.model for turn in self._turns]
            unused = [model for model in self._retired if not any(model is one for one in needed)]
            for model in unused:
                self._retired.remove(model)
                model.close()

    # batches

    def _launch_ahead(self, until: int) -> None:
        """Launch the batches that the GPU lacks, up to the first that needs the host, or time, or room.

        *until* is when the batch that runs is expected to end.
        """
        if self._running is not None and not self._running.launched:
            return
        for turn in self._turns:
            if not turn.launched:
                if not turn.launches or not self._may_launch(turn, until):
                    return
                self._launch(turn)

    def _may_launch(self, turn: BatchTurn, until: int) -> bool:
        if not turn.in_flight:  # it begins in time if launched later; what runs must be answered in time
            return self._clock() + self._spare < until
        given = [one for one in (self._running, *self._turns) if one and one.launched]
        if not given and turn.not_before > self._clock():
            return False
        return sum(one.model is turn.model for one in given) < turn.in_flight

    def _launch(self, turn: BatchTurn) -> None:
        before = self._clock()
        turn.launch()
        self._spare = 2 * (self._clock() - before)

    def _take(self, turn: BatchTurn) -> None:
        self._running = turn
        run = turn.order.run
        started = max(self._free, turn.not_before)
        try:
            self._say(self._done(turn))
        except contract.Interrupted:
            self._recover(run, started)
        except FrontendGone:
            raise
        except BaseException as error:  # `sys.exit()` in a model breaks its batch, not the worker
            self._check_device(run)
            self._free = self._clock()
            self._say(messages.BatchBroken(run, min(started, self._free), self._free, _told(error)))
        self._running = None
        if self._garbage is not None:
            self._garbage.busy_moment()

    def _check_device(self, run: int) -> None:
        """Leave where the batch that failed has taken the GPU's context with it: no later one could run."""
        if why := device_health.lost():
            self._say(messages.WorkerBroken(run, why))
            self._leave(GAVE_UP)

    def _done(self, turn: BatchTurn) -> BatchDone:
        run = turn.order.run
        received = turn.received
        now = self._clock()
        if run in self._cancelled or (turn.awaits_start and not self._wait_until(turn.order.start)):
            raise contract.Interrupted
        if not turn.order.members:
            return BatchDone(run, received, now, now, now, now)
        if turn.launches and not turn.launched:
            self._launch(turn)
        started, (result, computing, computed) = turn.take(self._free, self._clock)
        self._free = computed
        if run in self._cancelled:
            raise contract.Interrupted  # it could not be stopped, but nobody waits for these answers now
        shapes = turn.reply(result)
        own = list(result.own_times)
        return BatchDone(run, received, started, computing, computed, self._clock(), shapes, own)

    def _recover(self, run: int, started: int) -> None:
        stopped = self._clock()
        recovery = self._cancelled.pop(run)
        self._running = None
        self._free = stopped + recovery
        self._wait_until(self._free)
        self._say(messages.BatchCancelled(run, min(started, stopped), stopped))


_ROOM = 1 << 14  # bytes for an answer whose size is open
_COLD = (
    1.5  # requests lie in caches of other cores, or in none: 64 images of 150 kB were late by .4 ms without
)
_TRIES = 5  # of which the shortest counts: other models' batches may be in the way


def measured_lead(model: LoadedModel, largest: int, clock: Clock) -> tuple[Time, Time]:
    """Return how long the inputs of one item take to reach the GPU, and those of each further one.

    That is nothing where the GPU waits for them as for everything else: for models that are not launched, or
    have no memory of their own for inputs.
    """
    if not hasattr(model, "launch") or not hasattr(model, "staging"):
        return 0, 0
    one, all_of_them = (_shortest_lead(model, size, clock) for size in (1, largest))
    return one, round(_COLD * max(0, all_of_them - one) / max(1, largest - 1))


def _shortest_lead(model: Any, size: int, clock: Clock) -> Time:
    batch = examples.batch(examples.inputs_of(model), size, np.random.default_rng(0))
    if (graphs := getattr(model, "graphs", None)) is not None and graphs.takes(size):
        order = RepeatedOrder(model, batch)
        return max(0, min(_native_lead(order) for _ in range(_TRIES)))
    return max(0, min(_python_lead(model, batch, clock) for _ in range(_TRIES)))


def _native_lead(order: RepeatedOrder) -> Time:
    (done,) = order.carried_out(1)
    return done.started - done.received


def _python_lead(model: Any, batch: Batch, clock: Clock) -> Time:
    given = batch.inputs
    started = clock()
    staged = model.staging(batch.size)
    for name, room in staged.items():
        room[:] = given[name]
    began: Time = model.launch(Batch(batch.size, {**given, **staged}), started).wait(started).began
    return began - started


class RepeatedOrder:
    """A repeated order is to run a batch, with memory for its inputs and its answers."""

    def __init__(self, model: Any, batch: Batch) -> None:
        self._model = model
        arrays = [np.ascontiguousarray(batch.inputs[spec.name]) for spec in model.inputs]
        item = sum(aligned(array.nbytes // batch.size) for array in arrays)
        room = fixed_bytes(model.outputs) or _ROOM
        self.memory = memoryview(bytearray(batch.size * (item + room)))
        self._write(arrays, item)
        replies = batch.size * item
        members = [(row * item, 1, 0, replies + row * room, room, 0) for row in range(batch.size)]
        shapes: Shapes = [((1, *array.shape[1:]), array.nbytes // batch.size) for array in arrays]
        fixed = fixed_bytes(model.inputs) is not None
        open_shapes: list[Shapes | None] | None = None if fixed else [shapes] * batch.size
        self._packet = messages.encode(RunBatch(0, 0, messages.packed(members), 0, open_shapes))

    def _write(self, arrays: Sequence[Array], item: int) -> None:
        for row in range(len(arrays[0])):
            at = row * item
            for array in arrays:
                data = array[row].tobytes()
                self.memory[at : at + len(data)] = data
                at += aligned(len(data))

    def launched(self) -> BatchTurn:
        turn = BatchTurn(cast(RunBatch, messages.decode_order(self._packet)), 0, self._model, self.memory)
        turn.launch()
        return turn

    def carried_out(self, times: int) -> list[BatchDone]:
        """Return what native code says about the batch, run so many times in a row."""
        told = self._model.graphs.rehearse(self.memory, self._packet, times)
        news = list(map(messages.decode_news, told))
        for one in news:
            if not isinstance(one, BatchDone):
                raise contract.ModelFailed(getattr(one, "error", str(one)))
        return cast(list[BatchDone], news)


def files_from(plain: dict[str, Any]) -> ModelFiles:
    """Return a model's description from a message; the inverse of `files_to`."""
    return msgspec.convert(plain, ModelFiles, dec_hook=lambda kind, value: kind(value))  # of its path


def files_to(files: ModelFiles) -> dict[str, Any]:
    """Return a model's description as a message can carry it."""
    plain: dict[str, Any] = msgspec.to_builtins(files, enc_hook=str)
    return plain


def _loaded(number: int, model: LoadedModel, lead: tuple[Time, Time], phases: Phases) -> messages.ModelLoaded:
    """Return the news of a loaded model; the phases that it has noted itself say more than ours."""
    own: Mapping[str, Time] = getattr(model, "phases", {})
    whole = {**own, "lead": phases["lead"]} if own else dict(phases)
    said: dict[str, Any] = {name: getattr(model, name) for name in _SAID if hasattr(model, name)}
    tensors = tuple(model.inputs), tuple(model.outputs)
    return messages.ModelLoaded(number, *tensors, lead, phases=whole, **said)


_SAID = "notes", "warnings", "weights", "partial"  # what a model may have to say


def _plain(specs: Sequence[TensorSpec]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(spec.name, spec.datatype, spec.shape) for spec in specs]


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:2000]


def main(arguments: Sequence[str]) -> None:
    line, memory, size, *told = arguments
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # not even a hung model outlives us
    fine_timers()
    orders = socket.socket(fileno=int(line))
    tensors = SharedMemory(int(memory), int(size))
    express = extension("_express")
    place = Place(int(told[0]), *told[1:]) if told else preparing.place_given(orders)
    preparing.name_process(f"astra-gpu{place.gpu}")
    native = None if express is None else express.BatchLoop(tensors.view, orders.fileno())
    with suppress(FrontendGone):
        Worker(orders, tensors, place, garbage=GarbageKeeper(), native=native).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
