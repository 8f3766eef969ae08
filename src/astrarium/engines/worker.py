"""The worker: one process, one GPU, one batch at a time.

Orders are obeyed as they are heard, also while a batch runs; batches take turns. A GPU that works by itself
(`Launching` in the backends' contract) goes from one batch to the next at once, and the host gathers inputs
and writes replies meanwhile.

Started by an engine as `python -m astrarium.engines.worker SOCKET MEMORY SIZE GPU KIND DEVICE`, where the
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
from collections.abc import Sequence
from pathlib import Path
from threading import Lock, Thread
from time import monotonic_ns
from typing import Any

from astrarium.engines.arena import Memory
from astrarium.engines.backends.contract import LoadedModel, ModelFiles, Place
from astrarium.engines.backends.errors import Interrupted
from astrarium.engines.backends.registry import backends
from astrarium.engines.backends.waiting import Watch, fine_timers, watching
from astrarium.engines.garbage import GarbageKeeper
from astrarium.engines.orders import (
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
    Stop,
    UnloadModel,
    WorkerUp,
    decode_order,
    encode,
)
from astrarium.engines.tensors import TensorSpec
from astrarium.engines.turns import Clock, Turn

_PR_SET_PDEATHSIG = 1
_QUIET = 0.1  # seconds without an order: nobody is in a hurry
_FIRST_SPARE = 1_000_000  # nanoseconds: what launching ahead may take, as long as nobody has measured it


class Worker:
    """*clock* and *watch* (see waiting.py) may be others in tests. *garbage* is for a process that only
    serves: it turns Python's own collector off."""

    def __init__(
        self,
        line: socket.socket,
        memory: Memory,
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
        self._turns: deque[Turn] = deque()
        self._running: Turn | None = None
        self._cancelled: dict[int, int] = {}  # runs to stop or skip, with how long to recover
        self._free = 0  # when the GPU is done with what it was given
        self._spare = _FIRST_SPARE
        self._leaving = False
        self._garbage = garbage
        self._unsettled = False  # models were loaded since the garbage keeper last looked at all there is

    def serve(self) -> None:
        """Until told to stop, or until the other end is gone."""
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
                self._turns.append(Turn(order, received, model, self._memory.view))
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
        """Hear an order while waiting for an instant: does it end the batch that runs?"""
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
        """In a thread, so that the models already there go on serving."""
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
        """The next batch that the GPU does not have yet, unless it or the one that runs needs the host."""
        if self._running is not None and not self._running.launches:
            return
        waiting = next((turn for turn in self._turns if not turn.launched), None)
        if waiting is not None and waiting.launches:
            self._launch(waiting)

    def _launch(self, turn: Turn) -> None:
        before = self._clock()
        turn.launch()
        self._spare = 2 * (self._clock() - before)

    def _take(self, turn: Turn) -> None:
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

    def _done(self, turn: Turn) -> BatchDone:
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
    """The other end of `files_to`."""
    specs = {
        side: tuple(TensorSpec(name, kind, tuple(shape)) for name, kind, shape in plain[side])
        for side in ("inputs", "outputs")
    }
    return ModelFiles(**{**plain, **specs, "base": Path(plain["base"])})


def files_to(files: ModelFiles) -> dict[str, Any]:
    """A model's description as a message can carry it."""
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
    orders, tensors = socket.socket(fileno=int(line)), Memory(int(memory), int(size))
    Worker(orders, tensors, place, garbage=GarbageKeeper()).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
