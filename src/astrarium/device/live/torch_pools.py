"""A lane in PyTorch is a memory pool of one segment, and a stream.

Pools begin and end while no thread is inside any pool: PyTorch insists. A segment goes back to the device
when its pool has ended and nothing lives in it any more, so that a lane in which tensors live is made anew
only where the device has memory for both.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from astrarium.core.quantities import Time
from astrarium.device.live.backend import Turn
from astrarium.device.live.torch_lane_watch import LaneWatch
from astrarium.device.live.torch_pool_view import PoolView, viewed

SCARCE = 0.5  # of the device that is free: too little to measure a job beside lanes
# priorities of streams; PyTorch has 32 of each
JOBS = -1
LANES = 0


class LaunchedIteration(NamedTuple):
    """A launched iteration may still run; CUDA events mark its begin and end."""

    job: int
    began: Any
    done: Any


@dataclass
class TorchLane:
    stream: Any
    own: bool  # the stream is that of the job which had the lane for itself
    pool: Any
    size: int  # that its pool has
    booked: int = 0  # what the layout says; less than size where the pool could not shrink
    watch: LaneWatch = field(default_factory=LaneWatch)
    launched: list[LaunchedIteration] = field(default_factory=list)
    spent: dict[int, Time] = field(default_factory=dict)  # GPU time that jobs have not been charged for
    stale: bool = False
    crowded: bool = False  # others are in it too, and it could not be made anew

    def view(self) -> PoolView:
        return viewed(_snapshot(self.pool))

    def suits(self, turn: Turn, home: Any) -> bool:
        """Tell whether that turn of the job with the stream *home* can be in the lane as it is."""
        stream = not self.own or self.crowded or (self.stream is home and not turn.shared)
        return stream and not self.stale and turn.size in (self.size, self.booked)


class Pools:
    """The pools of a device make and end its lanes. *cuda* is torch.cuda, or what a test has in its place."""

    def __init__(self, device: torch.device, cuda: Any) -> None:
        self._device = device
        self._cuda = cuda
        self.lanes: dict[int, TorchLane] = {}
        self.given_up: list[tuple[Any, Any]] = []  # streams and pools
        self.inside = 0  # threads in pools
        self.making = False  # a lane is being made: no thread may enter a pool meanwhile
        self._watches: dict[int, LaneWatch] = {}  # of lanes that are to be made anew
        self._spare: dict[int, list[Any]] = {JOBS: [], LANES: []}  # streams, by priority
        self._quiet = threading.Condition()

    def enter(self, turn: Turn, home: Any) -> TorchLane:
        """Enter a lane's pool. *home* is the stream of the turn's job. Where the job has the lane for itself,
        that is the lane's too: nothing waits between its iterations and the rest of its loop."""
        with self._quiet:
            while self.making:
                self._quiet.wait()
            lane = self.lanes.get(turn.lane)
            if lane is None or not lane.suits(turn, home):
                lane = self._make(turn, home)
            self.inside += 1
            return lane

    def left(self) -> None:
        with self._quiet:
            self.inside -= 1
            if not self.inside:
                self._clear()
                self._quiet.notify_all()

    def renew(self, lane: int) -> None:
        with self._quiet:
            if lane in self.lanes:
                self.lanes[lane].stale = True

    def close(self, lane: int) -> None:
        """Close a lane; its memory goes back to the device as soon as that can be."""
        with self._quiet:
            self._give_up(lane)
            self._watches.pop(lane, None)
            if not self.inside:
                self._clear()

    def free_memory(self) -> None:
        """Free memory for a job that is measured outside all lanes, while nobody else runs: lanes that have
        most of the device are given up, and made anew at their next turn."""
        free, total = self._cuda.mem_get_info(self._device)
        with self._quiet:
            if free < SCARCE * total and not self.inside:
                self._make_way()

    def stream(self, priority: int) -> Any:
        """Return a stream. Jobs and lanes have their own, so that a job that waits for its results holds up
        no lane; and they are used again, since libraries keep a workspace for each that a thread has ever
        used."""
        try:
            return self._spare[priority].pop()
        except IndexError:
            return self._cuda.Stream(self._device, priority=priority)

    def spare(self, stream: Any, priority: int) -> None:
        self._spare[priority].append(stream)

    def _make(self, turn: Turn, home: Any) -> TorchLane:
        """Make a lane while no thread is inside a pool."""
        self.making = True
        try:
            self._quiet.wait_for(lambda: not self.inside)
            old = self.lanes.get(turn.lane)
            if old is not None and old.view().blocks:
                return self._beside(old, turn, home)
            self._give_up(turn.lane)
            return self._in_place(turn, home)
        finally:
            self.making = False
            self._quiet.notify_all()

    def _in_place(self, turn: Turn, home: Any) -> TorchLane:
        """Make a lane after giving back what PyTorch keeps for later, of which the layout knows nothing. Nor
        does it know of lanes that are to be smaller from their next turn on: where it must be, all others are
        given up."""
        self._empty()
        lane = self._tried(turn, home)
        if lane is None:
            self._make_way()
            lane = self._made(turn, home)
        return self._into(turn.lane, lane)

    def _beside(self, old: TorchLane, turn: Turn, home: Any) -> TorchLane:
        """Make a lane beside its old pool. Where the device has no memory for both, the old pool goes on,
        with another segment if it is too small, and on the stream that it has."""
        self._empty()
        lane = self._tried(turn, home)
        if lane is not None:
            self._give_up(turn.lane)
            return self._into(turn.lane, lane)
        if turn.size > old.size:
            self._make_way(but=turn.lane)
            self._reserve(old, turn.size - old.size)
            old.size = turn.size
        old.booked = turn.size
        old.stale = False
        old.crowded = True
        return old

    def _into(self, number: int, lane: TorchLane) -> TorchLane:
        lane.watch = self._watches.pop(number, lane.watch)
        self.lanes[number] = lane
        return lane

    def _tried(self, turn: Turn, home: Any) -> TorchLane | None:
        """Make a lane; return None where the device has not as much memory."""
        try:
            return self._made(turn, home)
        except torch.OutOfMemoryError:
            pass
        self._clear()  # after the error, whose frames know the pool
        return None

    def _made(self, turn: Turn, home: Any) -> TorchLane:
        stream = self.stream(LANES) if turn.shared else home
        lane = TorchLane(stream, not turn.shared, self._cuda.MemPool(), turn.size, turn.size)
        try:
            self._reserve(lane, turn.size)
        except BaseException:
            self._end(lane)
            raise
        return lane

    def _reserve(self, lane: TorchLane, size: int) -> None:
        """Reserve the lane's memory in one piece, since a pool cannot join segments."""
        with self._cuda.stream(lane.stream), self._cuda.use_mem_pool(lane.pool, self._device):
            block = self._cuda.caching_allocator_alloc(max(1, size), self._device)
            self._cuda.caching_allocator_delete(block)

    def _make_way(self, but: int | None = None) -> None:
        for lane in [number for number in self.lanes if number != but]:
            self._give_up(lane)
        self._empty()

    def _give_up(self, lane: int) -> None:
        if lane in self.lanes:
            old = self.lanes.pop(lane)
            self._end(old)
            self._watches[lane] = old.watch.renewed()

    def _end(self, lane: TorchLane) -> None:
        self.given_up.append((None if lane.own else lane.stream, lane.pool))
        lane.pool = None

    def _empty(self) -> None:
        self._clear()
        self._cuda.empty_cache()

    def _clear(self) -> None:
        """End the pools that were given up. No name may hold a pool here: it must end inside, while nobody
        can enter one. Its memory goes back in one call that waits for the whole device with the interpreter
        held: we wait before, without it."""
        if self.given_up:
            self._cuda.synchronize(self._device)
        while self.given_up:
            stream = self.given_up.pop()[0]
            if stream is not None:
                self.spare(stream, LANES)


def _snapshot(pool: Any) -> Any:
    try:
        return pool.snapshot(include_traces=False)
    except TypeError:  # not every version can leave them out
        return pool.snapshot()
