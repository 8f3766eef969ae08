"""A worker is one process for one GPU, which runs one batch at a time.

Orders are obeyed as they are heard, also while a batch runs; batches take turns. A GPU that works by itself
(`Launching` in the backends' contract) goes from one batch to the next at once, and the host gathers inputs
and writes replies meanwhile.

It is started as `python -m astrarium.serving.live.worker SOCKET MEMORY SIZE GPU KIND DEVICE`, where the
first two are inherited file descriptors.
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
from pathlib import Path
from threading import Lock, Thread
from time import monotonic_ns
from typing import Any, NamedTuple

from astrarium.core.units import Time
from astrarium.serving.live.arena import SharedMemory
from astrarium.serving.live.backends import backends
from astrarium.serving.live.backends.contract import (
    Batch,
    Interrupted,
    Launched,
    LoadedModel,
    ModelFiles,
    Place,
    Ran,
    Result,
)
from astrarium.serving.live.backends.precise_wait import Watch, fine_timers, watching
from astrarium.serving.live.batches import gathered, rehearse, write_replies
from astrarium.serving.live.garbage import GarbageKeeper
from astrarium.serving.live.messages import (
    LARGEST_MESSAGE,
    BatchBroken,
    BatchCancelled,
    BatchDone,
    CancelBatch,
    LoadModel,
    ModelLoaded,
    ModelRefused,
    ModelUnloaded,
    News,
    Order,
    Ping,
    Pong,
    RunBatch,
    Shapes,
    Stop,
    UnloadModel,
    WorkerUp,
    decode_order,
    encode,
)
from astrarium.serving.live.tensors import Array, TensorSpec

# A batch in a worker: from its order, through its turn on the GPU, to its replies.


Clock = Callable[[], Time]


class Spent(NamedTuple):
    """A spent turn is over: when it started, and what ran."""

    started: Time
    ran: Ran


class BatchTurn:
    """A batch has its turn on the GPU; *model* is the one loaded when the order was received."""

    def __init__(self, order: RunBatch, received: Time, model: LoadedModel | None, view: memoryview) -> None:
        self.order, self.received, self.model, self._view = order, received, model, view
        self.not_before = max(received, order.start)
        self._launch: Callable[[Batch, Time], Launched] | None = getattr(model, "launch", None)
        self._launched: Launched | None = None
        self._error: Exception | None = None

    @property
    def launches(self) -> bool:
        """Whether the GPU starts the batch by itself, so that the host need not wait for its start."""
        return self._launch is not None

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

    def take(self, free: Time, clock: Clock) -> Spent:
        """Run the batch, or wait until it has run where it was launched.

        *free* is when the batch before left the GPU.
        """
        if self._error is not None:
            raise self._error
        if self._launched is None:
            return self._run(self._loaded(), clock)
        ran = self._launched.wait(free)
        return Spent(ran.began, ran)

    def reply(self, result: Result) -> list[Shapes] | None:
        """Write the replies; return their shapes where the model's own do not say them all."""
        return write_replies(self._view, self._loaded().outputs, self.order.members, result.outputs)

    def nearly_over(self) -> None:
        """Prepare for the end of the batch, which is near."""
        if self.model is not None and self.order.members:
            rehearse(self.model.outputs)

    def _run(self, model: LoadedModel, clock: Clock) -> Spent:
        started = clock()
        batch = self._batch(model)
        began = clock()
        result = model.run(batch)
        return Spent(started, Ran(result, began, clock()))

    def _batch(self, model: LoadedModel) -> Batch:
        members = self.order.members
        staging: Callable[[int], Mapping[str, Array]] | None = getattr(model, "staging", None)
        return gathered(self._view, model.inputs, members, staging(len(members)) if staging else {})

    def _loaded(self) -> LoadedModel:
        if self.model is None:
            raise LookupError(f"model {self.order.model} is not loaded on this GPU")
        return self.model


_PR_SET_PDEATHSIG = 1
_QUIET = 0.1  # seconds without an order: nobody is in a hurry
_FIRST_SPARE = 1_000_000  # nanoseconds: what launching ahead may take, as long as nobody has measured it


class Worker:
    """A worker obeys the orders that come over *line*.

    *clock* and *watch* (see precise_wait.py) may be others in tests. *garbage* is for a process that only
    serves: it turns Python's own collector off.
    """

    def __init__(
        self,
        line: socket.socket,
        memory: SharedMemory,
        place: Place,
        clock: Clock = monotonic_ns,
        watch: Watch = watching,
        garbage: GarbageKeeper | None = None,
    ) -> None:
        self._line, self._memory, self._place, self._clock = line, memory, place, clock
        self._wait_until = watch(line.fileno(), self._heard, self._nearly)
        self._models: dict[int, LoadedModel] = {}
        self._one_load = Lock()
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
        self._say(WorkerUp(os.getpid()))
        while self._turns or not self._leaving:
            if self._turns:
                self._take(self._turns.popleft())
            else:
                self._tidy_up()
                self._listen()
            self._close_retired()

    # listening

    def _listen(self) -> None:
        packet = self._line.recv(LARGEST_MESSAGE)
        received = self._clock()
        if not packet:
            raise SystemExit  # the frontend is gone, and with it everybody who waits
        self._obey(decode_order(packet), received)

    def _hold_garbage(self) -> None:
        self._unsettled = True
        if self._garbage is not None:
            self._garbage.hold()

    def _tidy_up(self) -> None:
        """Collect garbage, where there is some and no order comes for a while."""
        garbage = self._garbage
        if garbage is None or not (self._unsettled or garbage.worth_it):
            return
        if select.select([self._line], [], [], _QUIET)[0]:
            return
        if self._unsettled:
            self._unsettled = False
            garbage.settle()
        else:
            garbage.idle_moment()

    def _obey(self, order: Order, received: int) -> None:
        match order:
            case RunBatch():
                model = self._models.get(order.model)
                self._turns.append(BatchTurn(order, received, model, self._memory.view))
            case CancelBatch(run, recovery):
                if any(turn.order.run == run for turn in (self._running, *self._turns) if turn):
                    self._cancelled[run] = recovery  # else it has ended, and its end is on the way
            case LoadModel():
                self._load(order)
            case UnloadModel(model):
                self._retire(self._models.pop(model, None))
                self._say(ModelUnloaded(model))
            case Ping(sent):
                self._say(Pong(sent, received))
            case Stop():
                self._leaving = True

    def _heard(self, until: int) -> bool:
        """Hear an order while waiting for an instant; return whether it ends the batch that runs."""
        self._listen()
        if self._clock() + self._spare < until:  # or else the one that runs would be answered late
            self._launch_ahead()
        return self._running is not None and self._running.order.run in self._cancelled

    def _nearly(self) -> None:
        if self._running is not None and self._running.launched:
            self._running.nearly_over()

    def _say(self, news: News) -> None:
        self._line.send(encode(news))

    # models

    def _load(self, order: LoadModel) -> None:
        """Load a model in a thread, so that the models already there go on serving."""
        Thread(target=self._load_aside, args=(order,), daemon=True).start()

    def _load_aside(self, order: LoadModel) -> None:
        try:
            with self._one_load:  # importing users' code from two threads at once is asking for trouble
                model = self._ready_to_run(order)
        except Exception as error:
            self._say(ModelRefused(order.model, _told(error)))
            return
        replaced, self._models[order.model] = self._models.get(order.model), model
        self._hold_garbage()
        self._retire(replaced)
        self._say(ModelLoaded(order.model, _plain(model.inputs), _plain(model.outputs)))

    def _ready_to_run(self, order: LoadModel) -> LoadedModel:
        files = files_from(order.files)
        model = backends.get(files.backend)(files, self._place)
        if hasattr(model, "wait_until"):
            model.wait_until = self._wait_until
        model.warm_up(order.sizes)
        return model

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

    def _launch_ahead(self) -> None:
        """Launch the next batch that the GPU lacks, unless it or the one that runs needs the host."""
        if self._running is not None and not self._running.launches:
            return
        waiting = next((turn for turn in self._turns if not turn.launched), None)
        if waiting is not None and waiting.launches:
            self._launch(waiting)

    def _launch(self, turn: BatchTurn) -> None:
        before = self._clock()
        turn.launch()
        self._spare = 2 * (self._clock() - before)

    def _take(self, turn: BatchTurn) -> None:
        self._running, run = turn, turn.order.run
        started = max(self._free, turn.not_before)
        try:
            self._say(self._done(turn))
        except Interrupted:
            self._recover(run, started)
        except Exception as error:
            self._free = self._clock()
            self._say(BatchBroken(run, min(started, self._free), self._free, _told(error)))
        self._running = None
        if self._garbage is not None:
            self._garbage.busy_moment()

    def _done(self, turn: BatchTurn) -> BatchDone:
        run, received, now = turn.order.run, turn.received, self._clock()
        if run in self._cancelled or not (turn.launches or self._wait_until(turn.order.start)):
            raise Interrupted
        if not turn.order.members:
            return BatchDone(run, received, now, now, now, now)
        if turn.launches and not turn.launched:
            self._launch(turn)
        started, (result, computing, computed) = turn.take(self._free, self._clock)
        self._free = computed
        if run in self._cancelled:
            raise Interrupted  # it could not be stopped, but nobody waits for these answers any more
        shapes, own = turn.reply(result), list(result.own_times)
        return BatchDone(run, received, started, computing, computed, self._clock(), shapes, own)

    def _recover(self, run: int, started: int) -> None:
        stopped, recovery = self._clock(), self._cancelled.pop(run)
        self._running, self._free = None, stopped + recovery
        self._wait_until(self._free)
        self._say(BatchCancelled(run, min(started, stopped), stopped))


def files_from(plain: dict[str, Any]) -> ModelFiles:
    """Return a model's description from a message; the inverse of `files_to`."""
    specs = {
        side: tuple(TensorSpec(name, kind, tuple(shape)) for name, kind, shape in plain[side])
        for side in ("inputs", "outputs")
    }
    return ModelFiles(**{**plain, **specs, "base": Path(plain["base"])})


def files_to(files: ModelFiles) -> dict[str, Any]:
    """Return a model's description as a message can carry it."""
    return {
        "name": files.name,
        "backend": files.backend,
        "options": dict(files.options),
        "inputs": _plain(files.inputs),
        "outputs": _plain(files.outputs),
        "max_batch": files.max_batch,
        "base": str(files.base),
    }


def _plain(specs: Sequence[TensorSpec]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(spec.name, spec.datatype, spec.shape) for spec in specs]


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:2000]


def main(arguments: Sequence[str]) -> None:
    line, memory, size, gpu, kind, device = arguments
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # not even a hung model outlives us
    fine_timers()
    place = Place(int(gpu), kind, device)
    orders, tensors = socket.socket(fileno=int(line)), SharedMemory(int(memory), int(size))
    Worker(orders, tensors, place, garbage=GarbageKeeper()).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
