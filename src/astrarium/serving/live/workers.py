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
from astrarium.serving.live.arena import SharedMemory
from astrarium.serving.live.backends.contract import Place
from astrarium.serving.live.messages import LARGEST_MESSAGE, News, Order, Stop, decode_news, encode


class EarlyReplies(Protocol):
    """The early reply thread (native) hears workers before the event loop does, and sends plain answers.

    `LocalWorkers` gives it the workers' sockets; the server tells it which answers to expect.
    """

    def bell(self) -> int:
        """Return a descriptor that can be read when there are packets."""

    def watch(self, worker: int, socket: int) -> None: ...
    def forget(self, worker: int) -> None:
        """Read what the worker has sent until now, and nothing that it sends later."""

    def has_news(self) -> bool:
        """Whether there are packets."""

    def packets(self) -> list[tuple[int, bytes]]:
        """Return the packets since the last call, each with the number of its worker."""

    def expect(self, run: int, replies: list[Any]) -> None:
        """Answer these calls when the batch is done: (packed call of one row, its client's line, offset and
        size of its room, place in the batch)."""

    def collect(self, run: int) -> tuple[Time, list[int], list[tuple[int, bytes]]]:
        """Return when answers of a batch were sent (0: never), which, and what is left of some to send."""

    def stop(self) -> None:
        """Stop hearing and answering; what was heard can still be collected."""


def new_early_replies(memory: memoryview) -> EarlyReplies | None:
    """Start the early reply thread; None where the extension was not built and the event loop must hear."""
    module = extension("_express")
    return None if module is None else cast(EarlyReplies, module.Courier(memory))


class Listener(Protocol):
    """A listener hears of workers; it is called in the event loop, never from inside a call to `Workers`."""

    def heard(self, worker: int, news: News) -> None: ...

    def died(self, worker: int, reason: str) -> None:
        """The process is gone, whoever ended it. No news of it comes after this."""


@dataclass(frozen=True)
class WorkerSpec:
    worker: int  # its GPU's number in the setup
    place: Place


class Workers(Protocol):
    """There is one worker for each GPU. A worker that died may be started again under its number."""

    def start(self, spec: WorkerSpec) -> None:
        """Start a worker and return at once; `WorkerUp` is its first news."""

    def send(self, worker: int, order: Order) -> None:
        """Send an order; orders arrive in order. A worker that is gone gets none: its death will be heard."""

    def kill(self, worker: int, reason: str) -> None:
        """Kill a worker at once; `died` follows with this reason."""

    def hear(self) -> None:
        """Pass on the news that have come by now, without waiting for the event loop."""

    def hush(self) -> None:
        """Pass on what the workers have said until now; nothing more will be heard."""

    async def stop(self, grace: float) -> None:
        """Ask all workers to stop, and kill them after *grace* seconds. No `died` follows."""

    def pids(self) -> dict[int, int]:
        """Return the process ids of the workers that run."""


log = logging.getLogger("astrarium.engine")


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    socket: socket.socket
    watch: int  # readable once the process has ended
    reason: str = ""  # why we ended it, if we did


class LocalWorkers:
    """Local workers are processes of this machine; they hold no terminal and die with this process.

    Everything here belongs to one event loop.
    """

    def __init__(
        self, memory: SharedMemory, listener: Listener, early_replies: EarlyReplies | None = None
    ) -> None:
        self._memory, self._listener, self._early_replies = memory, listener, early_replies
        self._running: dict[int, _Running] = {}
        self._loop = asyncio.get_running_loop()
        if early_replies is not None:
            self._loop.add_reader(early_replies.bell(), self._collect, early_replies)

    def start(self, spec: WorkerSpec) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LARGEST_MESSAGE)
        ours.setblocking(False)
        with theirs:
            process = self._spawn(spec, theirs.fileno())
        running = self._running[spec.worker] = _Running(process, ours, os.pidfd_open(process.pid))
        if self._early_replies is not None:
            self._early_replies.watch(spec.worker, ours.fileno())
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
        if self._early_replies is not None:
            self._collect(self._early_replies)
            return
        for worker, running in list(self._running.items()):
            self._read(worker, running)

    def hush(self) -> None:
        early_replies, self._early_replies = self._early_replies, None
        if early_replies is not None:
            self._loop.remove_reader(early_replies.bell())
            early_replies.stop()
            self._collect(early_replies)

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

    def _collect(self, early_replies: EarlyReplies) -> None:
        for worker, packet in early_replies.packets():
            self._tell(worker, packet)

    def _tell(self, worker: int, packet: bytes) -> None:
        """A packet that makes trouble must not take the next ones with it."""
        try:
            self._listener.heard(worker, decode_news(packet))
        except Exception:
            log.exception("news of worker %d made trouble", worker)

    def _ended(self, worker: int, running: _Running) -> None:
        if self._early_replies is None:
            self._read(worker, running)  # its last words
        self._forget(worker, running)
        if self._early_replies is not None:
            self._collect(self._early_replies)
        running.socket.close()
        if self._running.get(worker) is running:
            del self._running[worker]
        self._listener.died(worker, running.reason or _how_it_ended(running.process.wait()))

    def _forget(self, worker: int, running: _Running) -> None:
        if self._early_replies is not None:
            self._early_replies.forget(worker)
        else:
            self._loop.remove_reader(running.socket.fileno())
        self._loop.remove_reader(running.watch)
        os.close(running.watch)


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exited with status {code}"
