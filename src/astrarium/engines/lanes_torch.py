"""Lanes on PyTorch: a memory pool, a stream and a turn.

Blocks of a pool are reused by stream order, so all iterations of a lane run on its one stream and need no
synchronization when jobs change. What a job makes outside its iterations (and in the first ones, which are
measured) is its own: each job's thread has a stream and a pool for that. Backward runs in the job's thread,
because pools and streams belong to threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

import torch

from astrarium.device.live import Needs

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
        self._lock = threading.Lock()
        self._local = threading.local()

    @contextmanager
    def seat(self) -> Iterator[None]:
        """From here to the end of the block the thread belongs to a job: what it makes stays its own."""
        pool, stream = torch.cuda.MemPool(), torch.cuda.Stream(self._device)
        self._local.pool = pool
        with torch.cuda.stream(stream), torch.autograd.set_multithreading_enabled(False):
            self._sit()
            try:
                yield
            finally:
                self._rise()
                stream.synchronize()
                del self._local.pool

    @contextmanager
    def turn(self, lane: int, size: int) -> Iterator[None]:
        place, outside = self._lane(lane, size), torch.cuda.current_stream(self._device)
        self._rise()
        place.stream.wait_stream(outside)  # its inputs
        try:
            with torch.cuda.stream(place.stream), torch.cuda.use_mem_pool(place.pool):
                yield
        finally:
            self._launched(place)
            outside.wait_stream(place.stream)  # who reads its results
            self._sit()

    @contextmanager
    def measured(self) -> Iterator[Callable[[], Needs]]:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        began = monotonic_ns()
        found: list[Needs] = []
        yield lambda: found[0]
        torch.cuda.synchronize(self._device)
        took = monotonic_ns() - began
        stays = torch.cuda.memory_allocated(self._device)
        peak = torch.cuda.max_memory_allocated(self._device)
        found.append(Needs(self._own_bytes(), peak - stays, took))

    def close(self, lane: int) -> None:
        """Its memory goes back to the device once nothing runs in it."""
        with self._lock:
            place = self._lanes.pop(lane, None)
        if place is not None:
            place.stream.synchronize()

    # helpers

    def _lane(self, lane: int, size: int) -> _Lane:
        with self._lock:
            place = self._lanes.get(lane)
            if place is None:
                place = self._lanes[lane] = _Lane(torch.cuda.Stream(self._device), torch.cuda.MemPool())
        if place.size < size:
            self._reserve(place, size)
        return place

    def _reserve(self, place: _Lane, size: int) -> None:
        """One segment from which everything is split: a pool cannot join segments."""
        self._rise()
        with torch.cuda.stream(place.stream), torch.cuda.use_mem_pool(place.pool):
            del_me = torch.empty(size, dtype=torch.uint8, device=self._device)
            del del_me
        self._sit()
        place.size = size

    def _launched(self, place: _Lane) -> None:
        done = torch.cuda.Event()
        done.record(place.stream)
        place.launched.append(done)
        while len(place.launched) > AHEAD + 1:
            place.launched.pop(0).synchronize()

    def _sit(self) -> None:
        """The job's own pool, unless the thread has no seat or sits already."""
        if hasattr(self._local, "pool"):
            self._local.stack = ExitStack()
            self._local.stack.enter_context(torch.cuda.use_mem_pool(self._local.pool))

    def _rise(self) -> None:
        if hasattr(self._local, "stack"):
            self._local.stack.close()
            del self._local.stack

    def _own_bytes(self) -> int:
        """Live in the job's own pool."""
        segments = self._local.pool.snapshot()
        blocks = (block for segment in segments for block in segment["blocks"])
        return sum(block["size"] for block in blocks if block["state"].startswith("active"))
