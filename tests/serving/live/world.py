"""The world of a worker in virtual time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from astrarium.core.optional import extension
from astrarium.serving.live.backends.contract import ModelFiles, Place
from astrarium.serving.live.backends.precise_wait import Heard, Ready, Wait
from astrarium.serving.live.garbage import GarbageKeeper
from astrarium.serving.live.messages import (
    LARGEST_MESSAGE,
    BatchDone,
    BatchMember,
    LoadModel,
    ModelLoaded,
    ModelLoading,
    News,
    Order,
    RunBatch,
    Stop,
    decode_news,
    encode,
    packed,
    plain_files,
)
from astrarium.serving.live.shared_memory import SharedMemory
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker.worker import Worker

US = 1000
MS = 1_000_000
TABLE = [0, 5 * MS, 7 * MS, 9 * MS]
SPEC = TensorSpec("INPUT", "FP32", (4,))
FILES = ModelFiles("m", "emulated", {"table": TABLE}, (SPEC,), (TensorSpec("OUTPUT", "FP32", (4,)),), 3)
WHILE_IT_RUNS = 10 * MS  # an instant in the middle of a batch that was sent at 8 ms


class Left(BaseException):
    """Stands for the end of the process."""


class World:
    """The line, the clock and the wait of a worker. Every look at the clock costs the host *work*, and it is
    woken *late* after every wait; orders arrive when the script says."""

    natively = False  # whether native code hears the orders first

    def __init__(self, script: Sequence[tuple[int, Order]], work: int = 0, late: int = 0) -> None:
        self.now = 0
        self._work = work
        self._late = late
        self._script = sorted(script, key=lambda entry: entry[0])
        self._loaded = threading.Event()
        self._loaded.set()
        self.memory = SharedMemory.create(1 << 16)
        self.news: list[News] = []
        self.left: int | None = None  # the status that it left with
        self.gpu_free = 0  # when a real GPU has done all that it was given

    def serve(self, garbage: GarbageKeeper | None = None) -> list[News]:
        """Everything that is said about batches and models once they are loaded."""
        line = cast(socket.socket, self)
        native = self._native() if self.natively else None
        worker = Worker(line, self.memory, Place(), self.clock, self.watch, garbage, native, self._leave)
        with suppress(Left):
            worker.serve()
        return [news for news in self.news[1:] if not isinstance(news, ModelLoaded | ModelLoading)]

    def _leave(self, status: int) -> None:
        self.left = status
        raise Left

    def _native(self) -> Any:
        module = extension("_worker")
        assert module is not None
        return module.BatchLoop(self.memory.view, self.clock, self._receive, self.send, self.watch)

    def _receive(self) -> bytes:
        packet = memoryview(bytearray(LARGEST_MESSAGE))
        return bytes(packet[: self.recv_into(packet)])

    def clock(self) -> int:
        self.now += self._work
        return self.now

    def fileno(self) -> int:
        return -1

    def send(self, packet: bytes) -> None:
        self.news.append(decode_news(packet))
        if isinstance(self.news[-1], ModelLoaded):
            self._loaded.set()

    def recv_into(self, buffer: memoryview) -> int:
        assert self._loaded.wait(30)  # a thread does it, in real time
        at, order = self._script.pop(0)
        if isinstance(order, LoadModel):
            self._loaded.clear()
        self.now = max(self.now, at)
        packet = encode(order)
        buffer[: len(packet)] = packet
        return len(packet)

    def watch(self, descriptor: int, hear: Heard) -> Wait:
        def wait(instant: int, ready: Ready | None = None) -> bool:
            if ready is not None:
                return self._wait_for(ready, lambda: hear(instant))
            while self._script and max(self.now, self._script[0][0]) < instant:
                if hear(instant):
                    return False
            if self.now < instant:
                self.now = instant + self._late
            return True

        return wait

    def _wait_for(self, ready: Ready, hear: Callable[[], bool]) -> bool:
        while not ready():
            if self._script and self._script[0][0] <= self.now:
                hear()
            else:
                self.now += 10 * US
        self.now += self._late
        return True


def run(number: int, size: int = 1, start: int = 0, model: int = 0) -> RunBatch:
    members = packed([BatchMember(i * 512, 1, 0, i * 512 + 256, 64) for i in range(size)])
    return RunBatch(number, model, members, start)


def news_of(*script: tuple[int, Order], work: int = 0, late: int = 0) -> list[News]:
    load = (0, LoadModel(0, plain_files(FILES), [1]))
    return World([load, *script, (1_000 * MS, Stop())], work, late).serve()


def done(news: News) -> BatchDone:
    assert isinstance(news, BatchDone)
    return news
