"""Workers as processes of this machine, one for each GPU: started, spoken to, watched, ended.

A worker that is started takes the process in reserve where one is ready (see reserve.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Protocol

from astrarium.core.quantities import SECOND, Time
from astrarium.serving.live.backends.contract import Place
from astrarium.serving.live.messages import (
    LoadModel,
    ModelComplete,
    ModelLoaded,
    ModelRefused,
    ModelUnloaded,
    News,
    Order,
    Stop,
    UnloadModel,
    WorkerUp,
    decode_news,
    encode,
)
from astrarium.serving.live.phases import phases_text
from astrarium.serving.live.process import Death, WorkerProcess, adopt_orphans, spawned
from astrarium.serving.live.reserve import Reserve
from astrarium.serving.live.shared_memory import SharedMemory


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

    def in_reserve(self) -> int:
        """Return how many processes are ready to become a worker at once."""


log = logging.getLogger("astrarium.engine")


@dataclass
class _Running(WorkerProcess):
    started: Time = field(default_factory=monotonic_ns)
    reserved: bool = False  # it was in reserve
    up: bool = False
    loading: set[int] = field(default_factory=set)
    models: dict[int, str] = field(default_factory=dict)  # names of those that it was told to load
    phases: dict[str, Time] = field(default_factory=dict)  # of its start, or of loads since
    death: Death | None = None  # that we gave it, if we did


class LocalWorkers:
    """Local workers are processes of this machine; they hold no terminal and die with this process.

    Everything here belongs to one event loop; *ears* hear workers before it does. *reserve*: whether to hold
    a process in reserve, or one that a test has made.
    """

    def __init__(
        self,
        memory: SharedMemory,
        listener: Listener,
        ears: NativeEars,
        reserve: bool | Reserve = True,
    ) -> None:
        self._memory = memory
        self._listener = listener
        self._ears: NativeEars | None = ears  # nothing once nobody is heard any more
        adopt_orphans()  # the reserve leaves some
        self._reserve = reserve if isinstance(reserve, Reserve) else Reserve(memory, reserve)
        self._running: dict[int, _Running] = {}
        self._waiting: set[int] = set()  # workers that start as soon as there is a process in reserve again
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ears.bell(), self._collect, ears)

    def start(self, spec: WorkerSpec) -> None:
        if self._reserve.wait_for_heir(lambda: self._start_waiting(spec)):
            self._waiting.add(spec.worker)
            return
        reserved = self._reserve.take(spec.place)
        one = reserved or spawned(self._memory, spec.place)
        running = _Running(
            one.process, one.socket, one.watch, one.out_of_memory, reserved=reserved is not None
        )
        self._running[spec.worker] = running
        if self._ears is not None:
            self._ears.watch(spec.worker, running.socket.fileno())
        self._loop.add_reader(running.watch, self._ended, spec.worker, running)

    def _start_waiting(self, spec: WorkerSpec) -> None:
        if spec.worker in self._waiting:  # else it is no longer wanted
            self._waiting.discard(spec.worker)
            self.start(spec)

    def send(self, worker: int, order: Order) -> None:
        running = self._running.get(worker)
        if running is None:
            return
        if isinstance(order, LoadModel | UnloadModel):
            self._note_order(running, order)
        try:
            running.socket.send(encode(order))
        except BlockingIOError:
            self.kill(worker, Death("stopped reading its orders"))
        except OSError:
            pass  # it is gone; the watch will tell

    def kill(self, worker: int, death: Death) -> None:
        running = self._running.get(worker)
        self._waiting.discard(worker)
        if running is not None:
            running.death = death
            running.process.kill()

    def hush(self) -> None:
        ears = self._ears
        self._ears = None
        if ears is not None:
            self._loop.remove_reader(ears.bell())
            ears.stop()
            self._collect(ears)

    async def stop(self, grace: float) -> None:
        self._waiting.clear()
        self._reserve.stop()
        for worker in self._running:
            self.send(worker, Stop())
        running = list(self._running.items())
        self._running = {}
        for worker, one in running:
            self._forget(worker, one)
        self.hush()
        await self._until_gone([one for _, one in running], grace)

    async def _until_gone(self, running: list[_Running], grace: float) -> None:
        end = self._loop.time() + grace
        while any(one.process.poll() is None for one in running) and self._loop.time() < end:
            await asyncio.sleep(0.01)
        for one in running:
            one.end()

    def pids(self) -> dict[int, int]:
        return {worker: running.pid for worker, running in self._running.items()}

    def is_stopped(self, worker: int) -> bool:
        return worker in self._running and self._running[worker].stopped

    def in_reserve(self) -> int:
        return int(self._reserve.ready)

    def _collect(self, ears: NativeEars) -> None:
        for worker, packet in ears.packets():
            self._tell(worker, packet)

    def _tell(self, worker: int, packet: bytes) -> None:
        """A packet that makes trouble must not take the next ones with it."""
        try:
            news = decode_news(packet)
            self._listener.heard(worker, news)
            if isinstance(news, WorkerUp | ModelLoaded | ModelRefused | ModelUnloaded | ModelComplete):
                self._note_news(worker, news)
        except Exception:
            log.exception("news of worker %d made trouble", worker)

    def _note_order(self, running: _Running, order: LoadModel | UnloadModel) -> None:
        if isinstance(order, UnloadModel):
            running.models.pop(order.model, None)
            if not order.moves:
                self._reserve.unloads(order)
            return
        self._reserve.loads(order, again=order.model in running.models)
        running.models[order.model] = order.files["name"]
        running.loading.add(order.model)

    def _note_news(
        self, worker: int, news: WorkerUp | ModelLoaded | ModelRefused | ModelUnloaded | ModelComplete
    ) -> None:
        running = self._running.get(worker)
        if running is None:
            return
        match news:
            case WorkerUp():
                running.up = True
                running.phases["start"] = monotonic_ns() - running.started
            case ModelLoaded():
                self._reserve.loaded(news)
                for phase, took in news.phases.items():
                    running.phases[phase] = running.phases.get(phase, 0) + took
            case ModelRefused():
                running.phases = {}  # it does not have its models
            case ModelComplete():
                name = running.models.get(news.model)
                self._log(f"worker %d has all graphs of {name}", worker, news.phases)
        if not isinstance(news, WorkerUp):
            running.loading.discard(news.model)
        if running.up and not running.loading and running.phases:
            self._log_ready(worker, running)
        if all(one.up and not one.loading for one in self._running.values()):
            self._reserve.settled()

    def _log_ready(self, worker: int, running: _Running) -> None:
        source = ", out of the reserve" if running.reserved and "start" in running.phases else ""
        self._log(f"worker %d has its models{source}", worker, running.phases)
        running.phases = {}

    def _log(self, text: str, worker: int, phases: Mapping[str, Time]) -> None:
        """Say what a start consisted of; several models' parts are added up."""
        seconds = {name: took / SECOND for name, took in phases.items()}
        log.info(f"{text}: %s", worker, phases_text(phases), extra={"worker": worker, "phases_s": seconds})

    def _ended(self, worker: int, running: _Running) -> None:
        self._forget(worker, running)
        if self._ears is not None:
            self._collect(self._ears)  # its last words
        how = running.end()
        if self._running.get(worker) is running:
            del self._running[worker]
        self._listener.died(worker, running.death or how)

    def _forget(self, worker: int, running: _Running) -> None:
        if self._ears is not None:
            self._ears.forget(worker)
        self._loop.remove_reader(running.watch)
        os.close(running.watch)
