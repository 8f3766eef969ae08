"""The worker: one process, one GPU, one batch at a time.

Started by an engine as `python -m astrarium.engines.worker SOCKET MEMORY SIZE GPU KIND DEVICE`, where the
first two are inherited file descriptors.
"""

from __future__ import annotations

import ctypes
import os
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
from astrarium.engines.backends.waiting import fine_timers, watching
from astrarium.engines.gather import gathered
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
from astrarium.engines.replies import write_replies
from astrarium.engines.tensors import TensorSpec

_PR_SET_PDEATHSIG = 1


class Worker:
    def __init__(self, line: socket.socket, memory: Memory, place: Place) -> None:
        self._line, self._memory, self._place = line, memory, place
        self._models: dict[int, LoadedModel] = {}
        self._orders: deque[tuple[int, Order]] = deque()  # with the instant each was received
        self._cancelled: dict[int, int] = {}  # runs to stop or skip, with how long to recover
        self._run = -1
        self._wait_until = watching(line.fileno(), self._interrupted)
        self._one_load = Lock()
        self._retired: list[LoadedModel] = []  # replaced, and closed once no batch can be using them

    def serve(self) -> None:
        """Until told to stop, or until the other end is gone."""
        self._say(WorkerUp(os.getpid()))
        while True:
            while not self._orders:
                self._listen()
            received, order = self._orders.popleft()
            if isinstance(order, Stop):
                return
            self._obey(order, received)
            while self._retired:
                self._retired.pop().close()

    def _obey(self, order: Order, received: int) -> None:
        match order:
            case RunBatch():
                self._run_batch(order, received)
            case LoadModel():
                self._load(order)
            case UnloadModel(model):
                self._retire(self._models.pop(model, None))
                self._say(ModelUnloaded(model))
            case Ping(sent):
                self._say(Pong(sent, monotonic_ns()))

    # listening

    def _listen(self) -> None:
        packet = self._line.recv(LARGEST_MESSAGE)
        if not packet:
            raise SystemExit  # the frontend is gone, and with it everybody who waits
        order = decode_order(packet)
        if not isinstance(order, CancelBatch):
            self._orders.append((monotonic_ns(), order))
        elif order.run == self._run or order.run in self._waiting_runs():
            self._cancelled[order.run] = order.recovery  # else it has ended, and its end is on the way

    def _waiting_runs(self) -> set[int]:
        return {order.run for _, order in self._orders if isinstance(order, RunBatch)}

    def _interrupted(self) -> bool:
        """Hear an order while a batch runs: does it end that batch?"""
        self._listen()
        return self._run in self._cancelled

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
        self._retire(self._models.get(order.model))
        self._models[order.model] = model
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

    # batches

    def _run_batch(self, order: RunBatch, received: int) -> None:
        self._run = order.run
        started = max(monotonic_ns(), order.start)
        try:
            if not self._wait_until(order.start):
                raise Interrupted
            started = monotonic_ns()
            self._say(self._done(order, received, started))
        except Interrupted:
            self._recover(order.run, started)
        except Exception as error:
            self._say(BatchBroken(order.run, started, monotonic_ns(), _told(error)))
        self._run = -1

    def _done(self, order: RunBatch, received: int, started: int) -> BatchDone:
        model = self._models.get(order.model)
        if model is None:
            raise LookupError(f"model {order.model} is not loaded on GPU {self._place.gpu}")
        members, view = order.members, self._memory.view
        if not members:
            return BatchDone(order.run, received, started, started, started, started)
        batch = gathered(view, model.inputs, members)
        computing = monotonic_ns()
        result = model.run(batch)
        computed = monotonic_ns()
        if order.run in self._cancelled:
            raise Interrupted  # too late to stop it; but nobody waits for these answers any more
        shapes = write_replies(view, model.outputs, members, result.outputs)
        own = list(result.own_times)
        return BatchDone(order.run, received, started, computing, computed, monotonic_ns(), shapes, own)

    def _recover(self, run: int, started: int) -> None:
        stopped, recovery = monotonic_ns(), self._cancelled.pop(run)
        self._run = -1
        self._wait_until(stopped + recovery)
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
    Worker(socket.socket(fileno=int(line)), Memory(int(memory), int(size)), place).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
