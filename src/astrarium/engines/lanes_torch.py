"""Lanes on PyTorch: a memory pool, a stream and a turn.

Blocks of a pool are reused by stream order, so all iterations of a lane run on its one stream and need no
synchronization when jobs change. What a job makes outside its iterations, and in the first ones, which are
measured, stays in PyTorch's own memory. Backward runs in the job's thread, because pools and streams belong
to threads. A pool can be given up only while no thread is inside any pool, so that is waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

import torch

from astrarium.device.live import Needs

cuda: Any = torch.cuda  # parts of it have no types
SLACK = 0.03  # of the free memory: contexts, workspaces, what fragments
AHEAD = 1  # iterations that may be launched before the one before them has ended


@dataclass
class _Lane:
    stream: Any
    pool: Any
    size: int = 0
    launched: list[Any] = field(default_factory=list)  # an event for each iteration that may still run


class TorchGround:
    """One CUDA device. `seat` makes the calling thread a job's."""

    def __init__(self, device: int = 0) -> None:
        self._device = torch.device("cuda", device)
        free, _ = torch.cuda.mem_get_info(self._device)
        self.capacity = int(free * (1 - SLACK))
        self._lanes: dict[int, _Lane] = {}
        self._given_up: list[_Lane] = []
        self._inside = 0  # threads in pools
        self._lock = threading.Lock()
        self._charged: dict[int, int] = {}  # persistent bytes by the thread of their job

    @contextmanager
    def seat(self) -> Iterator[None]:
        """From here to the end of the block the thread belongs to a job, with a stream of its own."""
        stream = cuda.Stream(self._device)
        try:
            with torch.cuda.stream(stream), torch.autograd.set_multithreading_enabled(False):
                yield
        finally:
            stream.synchronize()
            self._charged.pop(threading.get_ident(), None)

    @contextmanager
    def turn(self, lane: int, size: int) -> Iterator[None]:
        place, outside = self._lane(lane), torch.cuda.current_stream(self._device)
        place.stream.wait_stream(outside)  # its inputs
        try:
            with self._in_pool(place):
                self._reserve(place, size)
                yield
        finally:
            self._launched(place)
            outside.wait_stream(place.stream)  # for who reads its results

    @contextmanager
    def measured(self) -> Iterator[Callable[[], Needs]]:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        began, found = monotonic_ns(), list[Needs]()
        yield lambda: found[0]
        torch.cuda.synchronize(self._device)
        took = monotonic_ns() - began
        stays, peak = torch.cuda.memory_allocated(self._device), torch.cuda.max_memory_allocated(self._device)
        found.append(Needs(self._charge(stays), peak - stays, took))

    def close(self, lane: int) -> None:
        """Its memory goes back to the device as soon as that can be."""
        with self._lock:
            if lane in self._lanes:
                self._given_up.append(self._lanes.pop(lane))
        self._clear()

    # helpers

    def _lane(self, lane: int) -> _Lane:
        with self._lock:
            if lane not in self._lanes:
                self._lanes[lane] = _Lane(cuda.Stream(self._device), torch.cuda.MemPool())
            return self._lanes[lane]

    @contextmanager
    def _in_pool(self, place: _Lane) -> Iterator[None]:
        with self._lock:
            self._inside += 1
        try:
            with torch.cuda.stream(place.stream), torch.cuda.use_mem_pool(place.pool):
                yield
        finally:
            with self._lock:
                self._inside -= 1
            self._clear()

    def _clear(self) -> None:
        """No name may hold a lane here: it must end inside, while nobody can enter a pool."""
        with self._lock:
            while self._given_up and not self._inside:
                self._given_up[-1].stream.synchronize()
                self._given_up.pop()

    def _reserve(self, place: _Lane, size: int) -> None:
        """One segment from which everything is split: a pool cannot join segments."""
        if place.size < size:
            torch.empty(size, dtype=torch.uint8, device=self._device)
            place.size = size

    def _launched(self, place: _Lane) -> None:
        done = cuda.Event()
        done.record(place.stream)
        place.launched.append(done)
        while len(place.launched) > AHEAD + 1:
            place.launched.pop(0).synchronize()

    def _charge(self, allocated: int) -> int:
        """What nobody else accounts for is this job's. Where several are being made at once that is too much
        for the first of them, which is on the safe side."""
        me = threading.get_ident()
        others = sum(size for thread, size in self._charged.items() if thread != me)
        self._charged[me] = max(0, allocated - others)
        return self._charged[me]
