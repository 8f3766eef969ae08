"""Workers as processes of this machine, one for each GPU: started, spoken to, watched, ended."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Protocol, cast

from astrarium.core.errors import extension
from astrarium.core.units import Time
from astrarium.serving.live.arena import Memory
from astrarium.serving.live.backends.contract import Place
from astrarium.serving.live.messages import LARGEST_MESSAGE, News, Order, Stop, decode_news, encode

# Who hears the workers of this machine before the event loop does, and sends answers by itself (native).


class Courier(Protocol):
    """A thread of its own: the engine gives it the workers' sockets, the server tells it what to answer."""

    def bell(self) -> int:
        """A descriptor that can be read when there are packets."""

    def watch(self, worker: int, socket: int) -> None: ...
    def forget(self, worker: int) -> None:
        """Hear what is left of its words, then no more of it."""

    def has_news(self) -> bool:
        """Whether there are packets."""

    def packets(self) -> list[tuple[int, bytes]]:
        """Who said what since the last time."""

    def expect(self, run: int, parcels: list[Any]) -> None:
        """When this batch is done, answer: (packed call of one row, its client's line, offset and size of
        its room, place in the batch)."""

    def collect(self, run: int) -> tuple[Time, list[int], list[tuple[int, bytes]]]:
        """When answers of a batch were sent (0: none were), to which parcels, and what was left of some."""

    def stop(self) -> None:
        """Nothing is heard or answered any more; what was heard can still be collected."""


def new_courier(memory: memoryview) -> Courier | None:
    """None where the extension was not built: then the event loop hears the workers itself."""
    module = extension("_express")
    return None if module is None else cast(Courier, module.Courier(memory))


# Where workers run, behind one interface: processes of this machine (`local`), later many machines.


class Listener(Protocol):
    """Who hears of workers; called in the event loop, never from inside a call to `Workers`."""

    def heard(self, worker: int, news: News) -> None: ...

    def died(self, worker: int, reason: str) -> None:
        """The process is gone, whoever ended it. No news of it comes after this."""


@dataclass(frozen=True)
class WorkerSpec:
    worker: int  # its GPU's number in the setup
    place: Place


class Workers(Protocol):
    """One worker for each GPU. A worker that died may be started again under its number."""

    def start(self, spec: WorkerSpec) -> None:
        """Returns at once; `WorkerUp` is the first news."""

    def send(self, worker: int, order: Order) -> None:
        """Orders arrive in order. Sending to a worker that is gone does nothing: its death will be heard."""

    def kill(self, worker: int, reason: str) -> None:
        """At once; `died` follows with this reason."""

    def hear(self) -> None:
        """Tell the news that have come by now, without waiting for the event loop."""

    def hush(self) -> None:
        """What the workers have said is told now; nothing more will be heard."""

    async def stop(self, grace: float) -> None:
        """All of them: asked first, killed after *grace* seconds. No `died` follows."""

    def pids(self) -> dict[int, int]:
        """Process ids of the workers that run."""


log = logging.getLogger("astrarium.engine")


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    socket: socket.socket
    watch: int  # readable once the process has ended
    reason: str = ""  # why we ended it, if we did


class LocalWorkers:
    """Keeps to one event loop. Workers hold no terminal and die with this process."""

    def __init__(self, memory: Memory, listener: Listener, courier: Courier | None = None) -> None:
        self._memory, self._listener, self._courier = memory, listener, courier
        self._running: dict[int, _Running] = {}
        self._loop = asyncio.get_running_loop()
        if courier is not None:
            self._loop.add_reader(courier.bell(), self._collect, courier)

    def start(self, spec: WorkerSpec) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LARGEST_MESSAGE)
        ours.setblocking(False)
        with theirs:
            process = self._spawn(spec, theirs.fileno())
        running = self._running[spec.worker] = _Running(process, ours, os.pidfd_open(process.pid))
        if self._courier is not None:
            self._courier.watch(spec.worker, ours.fileno())
        else:
            self._loop.add_reader(ours.fileno(), self._read, spec.worker, running)
        self._loop.add_reader(running.watch, self._ended, spec.worker, running)

    def send(self, worker: int, order: Order) -> None:
        running = self._running.get(worker)
        if running is None:
            return
        try:
            running.socket.send(encode(order))
        except BlockingIOError:
            self.kill(worker, "stopped reading its orders")
        except ConnectionError:
            pass  # it is gone; the watch will tell

    def kill(self, worker: int, reason: str) -> None:
        running = self._running.get(worker)
        if running is not None:
            running.reason = reason
            running.process.kill()

    def hear(self) -> None:
        if self._courier is not None:
            self._collect(self._courier)
            return
        for worker, running in list(self._running.items()):
            self._read(worker, running)

    def hush(self) -> None:
        courier, self._courier = self._courier, None
        if courier is not None:
            self._loop.remove_reader(courier.bell())
            courier.stop()
            self._collect(courier)

    async def stop(self, grace: float) -> None:
        for worker in self._running:
            self.send(worker, Stop())
        running, self._running = list(self._running.items()), {}
        for worker, one in running:
            self._forget(worker, one)
        self.hush()
        await self._until_gone([one for _, one in running], grace)

    async def _until_gone(self, running: list[_Running], grace: float) -> None:
        end = self._loop.time() + grace
        while any(one.process.poll() is None for one in running) and self._loop.time() < end:
            await asyncio.sleep(0.01)
        for one in running:
            one.process.kill()
            one.process.wait()
            one.socket.close()

    def pids(self) -> dict[int, int]:
        return {worker: running.process.pid for worker, running in self._running.items()}

    def _spawn(self, spec: WorkerSpec, fd: int) -> subprocess.Popen[bytes]:
        place = spec.place
        arguments = [fd, self._memory.fd, self._memory.size, place.gpu, place.kind, place.device]
        return subprocess.Popen(
            [sys.executable, "-m", "astrarium.serving.live.worker", *map(str, arguments)],
            pass_fds=(fd, self._memory.fd),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal is for the frontend, which then drains
        )

    def _read(self, worker: int, running: _Running) -> None:
        while True:
            try:
                packet = running.socket.recv(LARGEST_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._loop.remove_reader(running.socket.fileno())
                return
            self._tell(worker, packet)

    def _collect(self, courier: Courier) -> None:
        for worker, packet in courier.packets():
            self._tell(worker, packet)

    def _tell(self, worker: int, packet: bytes) -> None:
        """A packet that makes trouble must not take the next ones with it."""
        try:
            self._listener.heard(worker, decode_news(packet))
        except Exception:
            log.exception("news of worker %d made trouble", worker)

    def _ended(self, worker: int, running: _Running) -> None:
        if self._courier is None:
            self._read(worker, running)  # its last words
        self._forget(worker, running)
        if self._courier is not None:
            self._collect(self._courier)
        running.socket.close()
        if self._running.get(worker) is running:
            del self._running[worker]
        self._listener.died(worker, running.reason or _how_it_ended(running.process.wait()))

    def _forget(self, worker: int, running: _Running) -> None:
        if self._courier is not None:
            self._courier.forget(worker)
        else:
            self._loop.remove_reader(running.socket.fileno())
        self._loop.remove_reader(running.watch)
        os.close(running.watch)


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exited with status {code}"
