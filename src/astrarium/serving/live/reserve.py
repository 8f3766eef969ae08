"""The reserve is one process that can become the worker of any GPU at once, when one has died.

It is made once all workers have loaded their models and some time has passed. When it is taken, it leaves an
heir: a copy of itself that is in reserve from then on (see preparing.py). What it prepares is what workers
were told to load. Nobody depends on it: where it dies or hangs while it prepares, the next one prepares less;
where none is ready, a worker is started from nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec

from astrarium.core.quantities import write_bytes
from astrarium.serving.live.backends.contract import Place
from astrarium.serving.live.messages import LARGEST_MESSAGE, LoadModel, ModelLoaded, UnloadModel, encode
from astrarium.serving.live.process import AdoptedProcess, WorkerProcess, socket_pair, spawned, watched
from astrarium.serving.live.shared_memory import SharedMemory
from astrarium.serving.live.worker.preparing import PrepareModel, Ready, ReserveOrder, SayWhenReady, TakePlace

log = logging.getLogger("astrarium.reserve")
_decode = msgspec.msgpack.Decoder(Ready).decode
_MOST_OF_MEMORY = 4  # weights in reserve take at most this part of the memory that is free
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_HEIR_WITHIN = 10.0  # seconds: copying the tables of a large memory takes a while
# seconds until one that died is made again, doubling
_FIRST_AGAIN = 2.0
_LONGEST_AGAIN = 300.0


class Depth(IntEnum):
    """How much a process in reserve prepares."""

    NOTHING = 0  # there is none
    WORKER = 1  # imports a worker needs whatever it serves
    BACKENDS = 2  # and the packages of the models' backends
    MODELS = 3  # and what users' code imports, and weights


_PREPARES = {
    Depth.NOTHING: "there will be no reserve",
    Depth.WORKER: "the next one prepares no models",
    Depth.BACKENDS: "the next one imports packages, but holds no weights",
}


class Reserve:
    """The reserve belongs to one event loop. *delay* and *limit* are seconds: until it is made, to be ready.

    *free_memory* returns the bytes that can still be had.
    """

    def __init__(
        self,
        memory: SharedMemory,
        wanted: bool = True,
        delay: float = 1.0,
        limit: float = 300.0,
        free_memory: Callable[[], int] | None = None,
    ) -> None:
        self._memory = memory
        self._delay = delay
        self._limit = limit
        self._free_memory = free_memory or available_memory
        self._loop = asyncio.get_running_loop()
        self._depth = Depth.MODELS if wanted else Depth.NOTHING
        self._files: dict[int, list[dict[str, Any]]] = {}  # by model: one for each kind of GPU
        self._weights: dict[int, int] = {}  # bytes, by model
        self._process: WorkerProcess | None = None
        self._heir: socket.socket | None = None  # its socket, until it has said that it is there
        self._timer: asyncio.TimerHandle | None = None  # until it is made, or has to be ready
        self._again = _FIRST_AGAIN
        self._waiting: list[Callable[[], None]] = []  # for the heir
        self.ready = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def loads(self, order: LoadModel, again: bool) -> None:
        """Note what a worker was told to load; *again*: it had the model, so what is prepared is old."""
        known = [] if again else self._files.get(order.model, [])
        if order.files not in known:
            self._files[order.model] = [*known, order.files]
            self.discard()
        self._wait()

    def loaded(self, news: ModelLoaded) -> None:
        self._weights[news.model] = news.weights

    def unloads(self, order: UnloadModel) -> None:
        self._weights.pop(order.model, None)
        if self._files.pop(order.model, None) is not None:
            self.discard()

    def settled(self) -> None:
        """Make a process in reserve after a while: all workers have what they were told to load."""
        if self._process is None and self._heir is None and self._depth > Depth.NOTHING:
            self._after(self._delay, self._make)

    def take(self, place: Place) -> WorkerProcess | None:
        """Return the process in reserve, which is then a worker for *place*; None where none is ready."""
        self._wait()
        process = self._process
        if process is None or not self.ready:
            return None
        if process.stopped or (heir := _handed_over(process, place)) is None:
            self.discard()
            return None
        self._release()
        self._again = _FIRST_AGAIN
        self._expect(heir)
        return process

    def discard(self) -> None:
        """End the process in reserve; the next time that workers have settled, another is made."""
        process = self._process
        self._disinherit()
        self._release()
        if process is not None:
            os.close(process.watch)
            process.end()
        self._call_waiting()

    def wait_for_heir(self, call: Callable[[], None]) -> bool:
        """Call back once an heir that is on its way is there, or does not come; False where none is."""
        if self._heir is not None:
            self._waiting.append(call)
        return self._heir is not None

    def _expect(self, heir: socket.socket) -> None:
        """Wait until the heir of a process that was taken says that it is there."""
        self._heir = heir
        self._loop.add_reader(heir.fileno(), self._heir_said)
        self._after(_HEIR_WITHIN, self._no_heir)

    def _heir_said(self) -> None:
        assert self._heir is not None
        try:
            packet = self._heir.recv(LARGEST_MESSAGE)
        except OSError:
            packet = b""
        heir = self._heir
        self._disinherit(close=not packet)
        if packet:
            self._process = watched(AdoptedProcess(_decode(packet).pid), heir)
            self._listen()
            self.ready = True
        self._call_waiting()

    def _call_waiting(self) -> None:
        waiting = self._waiting
        self._waiting = []
        for call in waiting:
            call()

    def _no_heir(self) -> None:
        self._disinherit()
        self._call_waiting()

    def _disinherit(self, close: bool = True) -> None:
        """Forget the heir: it is there, or does not come; then the next one is made when workers settle."""
        heir = self._heir
        self._heir = None
        if heir is not None:
            self._after(None)
            self._loop.remove_reader(heir.fileno())
            if close:
                heir.close()  # one that is late after all ends by that

    def stop(self) -> None:
        self._depth = Depth.NOTHING
        self.discard()

    def _wait(self) -> None:
        """Make none now: workers have not settled."""
        if self._process is None and self._heir is None:
            self._after(None)

    def _make(self) -> None:
        process = self._process = spawned(self._memory, None)
        self._listen()
        self._after(self._limit, self._hung)
        for order in self._orders():
            if not _sent(process, order):
                break  # its end will be heard, or what is left out is loaded when it is needed
        _sent(process, SayWhenReady())

    def _listen(self) -> None:
        assert self._process is not None
        self._loop.add_reader(self._process.watch, self._ended)
        self._loop.add_reader(self._process.socket.fileno(), self._process_said)

    def _orders(self) -> list[PrepareModel]:
        if self._depth < Depth.BACKENDS:
            return []
        code = self._depth >= Depth.MODELS and self._weights_fit()
        orders = [PrepareModel(one, code) for files in self._files.values() for one in files]
        return [order for order in orders if len(encode(order)) <= LARGEST_MESSAGE]

    def _weights_fit(self) -> bool:
        weights = sum(self._weights.values())
        free = self._free_memory()
        fit = weights * _MOST_OF_MEMORY <= free
        if not fit:
            sizes = {"weights": write_bytes(weights), "free": write_bytes(free)}
            log.info("the reserve holds no weights: %(weights)s, with %(free)s of memory free", sizes)
        return fit

    def _process_said(self) -> None:
        assert self._process is not None
        try:
            packet = self._process.socket.recv(LARGEST_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:  # `_ended` tells the rest
            self._loop.remove_reader(self._process.socket.fileno())
        elif problem := _decode(packet).problem:
            self._failed(problem)
        else:
            self._after(None)
            self.ready = True
            log.debug("a process (%d) is in reserve", self._process.pid)

    def _ended(self) -> None:
        assert self._process is not None
        process = self._process
        was_ready = self.ready
        self._release()
        os.close(process.watch)
        how = process.end()
        if was_ready:
            log.warning("the process in reserve was lost: it %s", how.reason)
            self._make_again()
        else:
            self._prepare_less(how.reason)

    def _hung(self) -> None:
        self._failed(f"not ready after {self._limit:g} s")

    def _failed(self, why: str) -> None:
        self.discard()
        self._prepare_less(why)

    def _prepare_less(self, why: str) -> None:
        self._depth = Depth(self._depth - 1)
        log.warning("the process in reserve failed (%s); %s", why, _PREPARES[self._depth])
        if self._depth > Depth.NOTHING:
            self._make_again()

    def _make_again(self) -> None:
        self._after(self._again, self._make)
        self._again = min(2 * self._again, _LONGEST_AGAIN)

    def _release(self) -> None:
        """Let go of the process, and of what is planned."""
        self._after(None)
        if self._process is not None:
            self._loop.remove_reader(self._process.watch)
            self._loop.remove_reader(self._process.socket.fileno())
        self._process = None
        self.ready = False

    def _after(self, seconds: float | None, call: Callable[[], None] | None = None) -> None:
        """Plan one thing, instead of what was planned before; None: nothing."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds is not None and call is not None:
            self._timer = self._loop.call_later(seconds, call)


def _handed_over(process: WorkerProcess, place: Place) -> socket.socket | None:
    """Tell the process in reserve its place; return the socket of its heir, None where it does not hear."""
    ours, theirs = socket_pair()
    order = encode(TakePlace(place.gpu, place.kind, place.device))
    with theirs:
        try:
            socket.send_fds(process.socket, [order], [theirs.fileno()])
        except OSError:
            ours.close()
            return None
    return ours


def _sent(process: WorkerProcess, order: ReserveOrder) -> bool:
    try:
        process.socket.send(encode(order))
    except OSError:  # gone, or it does not read
        return False
    return True


def available_memory() -> int:
    """Return the bytes that can still be had, by the machine and by the limit of its container."""
    known = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    free = int(known["MemAvailable"].split()[0]) * 1024
    with suppress(OSError, ValueError, KeyError):
        limit, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        return min(free, limit - used + int(cached["inactive_file"]))
    return free
