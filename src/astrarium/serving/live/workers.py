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
from pathlib import Path
from typing import NamedTuple, Protocol

from astrarium.serving.live.arena import SharedMemory
from astrarium.serving.live.backends.contract import Place
from astrarium.serving.live.messages import LARGEST_MESSAGE, News, Order, Stop, decode_news, encode


class NativeEars(Protocol):
    """A native thread hears workers before the event loop does; `LocalWorkers` gives it their sockets."""

    def bell(self) -> int:
        """Return a descriptor that can be read when there are packets."""

    def watch(self, worker: int, socket: int) -> None: ...
    def forget(self, worker: int) -> None:
        """Read what the worker has sent until now, and nothing that it sends later."""

    def packets(self) -> list[tuple[int, bytes]]:
        """Return the packets since the last call, each with the number of its worker."""

    def stop(self) -> None:
        """Stop hearing and answering; what was heard can still be collected."""


class Death(NamedTuple):
    """How a worker ended; *by_its_work*: what it ran may have broken it, else somebody outside ended it."""

    reason: str
    by_its_work: bool = True


class Listener(Protocol):
    """A listener hears of workers; it is called in the event loop, never from inside a call to `Workers`."""

    def heard(self, worker: int, news: News) -> None: ...

    def died(self, worker: int, death: Death) -> None:
        """The process is gone, whoever ended it. No news of it comes after this."""


@dataclass(frozen=True)
class WorkerSpec:
    """A worker has a number; that of a GPU's shared worker is the GPU's number in the setup."""

    worker: int
    place: Place


class Workers(Protocol):
    """Workers are known by their numbers. One that died may be started again under its number."""

    def start(self, spec: WorkerSpec) -> None:
        """Start a worker and return at once; `WorkerUp` is its first news."""

    def send(self, worker: int, order: Order) -> None:
        """Send an order; orders arrive in order. A worker that is gone gets none: its death will be heard."""

    def kill(self, worker: int, death: Death) -> None:
        """Kill a worker at once; `died` follows with this death."""

    def hush(self) -> None:
        """Pass on what the workers have said until now; nothing more will be heard."""

    async def stop(self, grace: float) -> None:
        """Ask all workers to stop, and kill them after *grace* seconds. No `died` follows."""

    def pids(self) -> dict[int, int]:
        """Return the process ids of the workers that run."""

    def is_stopped(self, worker: int) -> bool:
        """Return whether somebody has stopped the worker's process (SIGSTOP), as far as the system tells."""


log = logging.getLogger("astrarium.engine")


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    socket: socket.socket
    watch: int  # readable once the process has ended
    out_of_memory: int  # how many processes the system had ended for that when this one began
    death: Death | None = None  # that we gave it, if we did


class LocalWorkers:
    """Local workers are processes of this machine; they hold no terminal and die with this process.

    Everything here belongs to one event loop.
    """

    def __init__(self, memory: SharedMemory, listener: Listener, ears: NativeEars | None = None) -> None:
        self._memory, self._listener, self._ears = memory, listener, ears
        self._running: dict[int, _Running] = {}
        self._loop = asyncio.get_running_loop()
        if ears is not None:
            self._loop.add_reader(ears.bell(), self._collect, ears)

    def start(self, spec: WorkerSpec) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LARGEST_MESSAGE)
        ours.setblocking(False)
        with theirs:
            process = self._spawn(spec, theirs.fileno())
        running = _Running(process, ours, os.pidfd_open(process.pid), _ended_for_memory())
        self._running[spec.worker] = running
        if self._ears is not None:
            self._ears.watch(spec.worker, ours.fileno())
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
            self.kill(worker, Death("stopped reading its orders"))
        except ConnectionError:
            pass  # it is gone; the watch will tell

    def kill(self, worker: int, death: Death) -> None:
        running = self._running.get(worker)
        if running is not None:
            running.death = death
            running.process.kill()

    def hush(self) -> None:
        ears, self._ears = self._ears, None
        if ears is not None:
            self._loop.remove_reader(ears.bell())
            ears.stop()
            self._collect(ears)

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

    def is_stopped(self, worker: int) -> bool:
        try:
            told = Path(f"/proc/{self._running[worker].process.pid}/stat").read_text()
        except (KeyError, OSError):
            return False
        return told.rpartition(")")[2].split()[0] in "Tt"

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

    def _collect(self, ears: NativeEars) -> None:
        for worker, packet in ears.packets():
            self._tell(worker, packet)

    def _tell(self, worker: int, packet: bytes) -> None:
        """A packet that makes trouble must not take the next ones with it."""
        try:
            self._listener.heard(worker, decode_news(packet))
        except Exception:
            log.exception("news of worker %d made trouble", worker)

    def _ended(self, worker: int, running: _Running) -> None:
        if self._ears is None:
            self._read(worker, running)  # its last words
        self._forget(worker, running)
        if self._ears is not None:
            self._collect(self._ears)
        running.socket.close()
        if self._running.get(worker) is running:
            del self._running[worker]
        code = running.process.wait()
        self._listener.died(worker, running.death or _how_it_ended(code, running.out_of_memory))

    def _forget(self, worker: int, running: _Running) -> None:
        if self._ears is not None:
            self._ears.forget(worker)
        else:
            self._loop.remove_reader(running.socket.fileno())
        self._loop.remove_reader(running.watch)
        os.close(running.watch)


_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def _how_it_ended(code: int, out_of_memory: int) -> Death:
    if code >= 0:
        return Death(f"exited with status {code}")
    number = signal.Signals(-code)
    if number == signal.SIGKILL and _ended_for_memory() > out_of_memory:
        return Death("was killed by the system, which ran out of memory")
    return Death(f"killed by {number.name}", number not in _FROM_OUTSIDE)


def _ended_for_memory() -> int:
    """Return how many processes this system has ended because memory ran out, as far as it tells."""
    try:
        rows = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) for row in rows if row.startswith("oom_kill ")), 0)
