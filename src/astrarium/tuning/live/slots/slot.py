"""A slot is a process on one GPU that carries out the runs it is ordered to, one after another.

A thread receives orders, and sends signs of life meanwhile: an iteration may be long, and says nothing of
whether the process is alive. Where runs share the process by lanes, each has a thread.
"""

from __future__ import annotations

import gc
import os
import signal
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread, get_ident
from types import FrameType
from typing import Any

from astrarium.run.unpickling import read_own
from astrarium.tuning.live.slots.member import Dropped, GangMember
from astrarium.tuning.live.slots.messages import (
    Beat,
    Begin,
    Leave,
    Message,
    Order,
    SlotReady,
    SlotSetup,
    Warm,
)
from astrarium.tuning.live.slots.process_settings import ProcessSettings
from astrarium.tuning.live.training.packing import named, opened
from astrarium.tuning.live.training.workers import Build

_DROP = signal.SIGUSR1


class Slot:
    def __init__(self, pipe: Connection, setup: SlotSetup) -> None:
        self._pipe = pipe
        self._setup = setup
        self._sending = Lock()
        self._making = Lock()
        self._members: dict[tuple[int, int], GangMember] = {}
        self._next: SimpleQueue[GangMember] = SimpleQueue()
        self._main = get_ident()
        self._current: GangMember | None = None

    def serve(self) -> None:
        """Train until the backend closes the pipe, which ends the process."""
        Thread(target=self._listen, daemon=True).start()
        self.tell(SlotReady(os.getpid()))
        self._warm_up()
        self._process_settings = ProcessSettings()
        self.tell(Warm())
        while True:
            member = self._next.get()
            if self._setup.lanes:
                Thread(target=self._in_a_lane, args=(member,), daemon=True).start()
            else:
                self._alone(member)

    def tell(self, message: Message) -> None:
        try:
            with self._sending:
                self._pipe.send(message)
        except OSError:
            os._exit(0)  # the backend is gone

    def _alone(self, member: GangMember) -> None:
        signal.signal(_DROP, self._interrupt)  # the training before may have set its own
        self._current = member
        self._limit_memory(member)
        ended = member.train(self._build)
        self._current = None
        self._forget(member)
        if self._on_gpu and not member.broken:
            self._clean_up()  # its memory is free when that is said
        self.tell(ended)
        self._process_settings.set_back()
        if not self._on_gpu:
            self._clean_up()

    def _in_a_lane(self, member: GangMember) -> None:
        try:
            with self._the_lanes().job(f"trial {member.work.trial}") as job:
                member.turn = job.iteration
                ended = member.train(self._build)
        except BaseException as error:  # of the lanes, such as a job that was refused
            ended = member.failed(error)
        self._clean_up()
        self._forget(member)
        self.tell(ended)

    def _forget(self, member: GangMember) -> None:
        self._members.pop(member.key, None)

    def _the_lanes(self) -> Any:
        """Return the lanes, which all threads share; the first thread makes them."""
        with self._making:
            return self._lanes

    @cached_property
    def _lanes(self) -> Any:
        from astrarium.device.live.torch_backend import TorchGpu

        lane_backend = named(self._setup.lane_backend)() if self._setup.lane_backend else None
        return TorchGpu(self._setup.lanes, lane_backend)

    @cached_property
    def _opened(self) -> Build | BaseException:
        """Return the build, or the error in opening it: that error ends each run, and not the slot."""
        try:
            return opened(read_own(Path(self._setup.build), "build"))
        except BaseException as error:
            return error

    def _build(self) -> Build:
        if isinstance(self._opened, BaseException):
            raise self._opened
        return self._opened

    def _warm_up(self) -> None:
        import torch

        if self._on_gpu:
            torch.zeros(1, device=self._setup.device)
        else:
            torch.set_num_threads(self._setup.threads)
        _ = self._opened

    def _limit_memory(self, member: GangMember) -> None:
        """Limit the run to its share of memory, so that a greedy run fails and not its neighbours."""
        if self._on_gpu:
            import torch

            torch.cuda.set_per_process_memory_fraction(1 / member.work.place.parts)

    def _clean_up(self) -> None:
        """Free all that the run held. Trainings have reference cycles, which only a collection finds."""
        gc.collect()
        if self._on_gpu and not self._setup.lanes:
            import torch

            torch.cuda.empty_cache()

    @property
    def _on_gpu(self) -> bool:
        return self._setup.device.startswith("cuda")

    def _listen(self) -> None:
        try:
            while True:
                if self._pipe.poll(self._setup.beat):
                    self._hear(self._pipe.recv())
                else:
                    self.tell(Beat())
        except (EOFError, OSError):
            os._exit(0)

    def _hear(self, order: Order) -> None:
        if isinstance(order, Begin):
            member = GangMember(order, self._setup, self.tell)
            self._members[member.key] = member
            self._next.put(member)
        else:
            self._leave(order)

    def _leave(self, order: Leave) -> None:
        member = self._members.get((order.trial, order.run))
        if member is None:
            return
        member.leave = True
        if order.drop:
            member.dropped = True
            signal.pthread_kill(self._main, _DROP)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise in the main thread, wherever it is. Runs in lanes leave at the end of their iterations."""
        member = self._current
        if member is not None and member.dropped and member.interruptible:
            raise Dropped
