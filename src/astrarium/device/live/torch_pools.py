"""A lane in PyTorch is a memory pool of one segment, and a stream.

Pools begin and end while no thread is inside any pool: PyTorch insists. A segment goes back to the device
when its pool has ended and nothing lives in it any more, so that a lane in which tensors live is made anew
only where there is room for both.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from astrarium.core.quantities import Time
from astrarium.device.live.backend import Excess, Turn

# turns
RARELY = 256
OFTEN = 8
FIRST = 2  # turns in which what a job holds is what it always holds
SEGMENT = 2 << 20  # PyTorch asks the device for multiples of this, and so do we charge
LEAK = 1 << 20  # bytes more than before that are no accident
PLACES = 3  # where leaks come from, at most


class PoolBlock(NamedTuple):
    address: int
    size: int
    where: str = ""


class PoolView(NamedTuple):
    """A view of a pool shows what it has of the device, and the blocks that are in use."""

    reserved: int
    blocks: list[PoolBlock]


def viewed(segments: Iterable[Mapping[str, Any]]) -> PoolView:
    """Read a view from a snapshot of PyTorch's allocator."""
    segments = list(segments)
    used = [
        PoolBlock(block["address"], block["size"], _where(block.get("frames", ())))
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    return PoolView(sum(segment["total_size"] for segment in segments), used)


def _where(frames: Iterable[Mapping[str, Any]]) -> str:
    """Return the innermost line of Python that is not PyTorch's own."""
    for frame in frames:
        if frame["filename"].endswith(".py") and "/torch/" not in frame["filename"]:
            return f"{frame['filename']}:{frame['line']}"
    return ""


def rounded(size: int) -> int:
    return -(-size // SEGMENT) * SEGMENT


class _Held(NamedTuple):
    turn: int
    size: int
    blocks: int


class LaneWatch:
    """A watch follows what lies in a lane between iterations: whose it is, whether it grows, and what the
    lane has taken. Blocks belong to the job in whose turn they were first seen."""

    def __init__(self) -> None:
        self._turns: Counter[int] = Counter()
        self._first: dict[int, _Held] = {}
        self._last: dict[int, _Held] = {}
        self._owners: dict[int, int] = {}  # by address
        self._elsewhere: Counter[int] = Counter()  # what jobs hold of a pool that was given up
        self._asked = -1  # how often the device was asked for memory, at the last look

    def renewed(self) -> LaneWatch:
        """Return a watch for the lane with another pool, as jobs may hold blocks of the old one."""
        fresh = LaneWatch()
        for job, last in self._last.items():
            fresh._elsewhere[job] = self._more(job, last)
        return fresh

    def will_look(self, job: int) -> bool:
        """Tell, before a turn, whether there will be a look after it, whatever happens."""
        return _looked_at(self._turns[job] + 1)

    def began(self, job: int, view: PoolView) -> None:
        """Note, before such a turn, that blocks which were let go are nobody's any more."""
        self._of(job, view)

    def due(self, job: int, asked: Callable[[], int], shared: bool = True) -> bool:
        """Tell, after every turn, whether to look. *asked* tells how often the device was asked for memory so
        far, which takes some time too. In a *shared* lane that must be known after each turn."""
        self._turns[job] += 1
        turn = self._turns[job]
        if not shared and turn > 2 * OFTEN and turn % OFTEN:
            return False
        before = self._asked
        self._asked = asked()
        return self._asked != before or _looked_at(turn)

    def seen(self, job: int, size: int, view: PoolView) -> Excess | None:
        """Return what a turn in the lane of *size* bytes has shown of the job; None if nothing new."""
        mine = self._of(job, view)
        held = _Held(self._turns[job], sum(block.size for block in mine), len(mine))
        in_use = sum(block.size for block in view.blocks)
        held = self._believed(job, held, in_use, len(view.blocks))
        first = self._first[job]
        last = self._last.get(job, held)
        self._last[job] = held
        more = self._more(job, held)
        taken = view.reserved - in_use
        leaks = _leaks(first, last, held)
        if not leaks and more < SEGMENT and taken <= rounded(size):
            return None
        return Excess(rounded(more), taken, held.blocks, _places(mine) if leaks else (), leaks)

    def _believed(self, job: int, held: _Held, in_use: int, blocks: int) -> _Held:
        """Limit what the job holds to what there is beyond what others hold at most."""
        first = self._first.get(job, held)
        if held.turn <= FIRST and held.size > first.size:
            first = held
        self._first[job] = first
        known = self._first.values()
        more = max(0, min(held.size - first.size, in_use - sum(each.size for each in known)))
        many = max(0, min(held.blocks - first.blocks, blocks - sum(each.blocks for each in known)))
        return _Held(held.turn, first.size + more, first.blocks + many)

    def _more(self, job: int, held: _Held) -> int:
        return self._elsewhere[job] + max(0, held.size - self._first[job].size)

    def _of(self, job: int, view: PoolView) -> list[PoolBlock]:
        owners = self._owners
        self._owners = {block.address: owners.get(block.address, job) for block in view.blocks}
        return [block for block in view.blocks if self._owners[block.address] == job]


def _looked_at(turn: int) -> bool:
    return turn <= FIRST or turn in (4, 16, 64) or turn % RARELY == 0


def _leaks(first: _Held, last: _Held, now: _Held) -> bool:
    """Tell whether each turn adds a block, or much has come since the last look and since the first."""
    turns = now.turn - first.turn
    steadily = turns >= 2 and now.blocks - first.blocks >= turns
    return steadily or now.size - first.size >= LEAK <= now.size - last.size


def _places(blocks: list[PoolBlock]) -> tuple[str, ...]:
    """Return where most bytes were made, as far as PyTorch recorded it."""
    sizes: Counter[str] = Counter()
    for block in blocks:
        sizes[block.where] += block.size
    return tuple(where for where, _ in sizes.most_common() if where)[:PLACES]


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
    booked: int = 0  # what the books say; less than size where the pool could not shrink
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

    def make_room(self) -> None:
        """Make room for a job that is measured outside all lanes, while nobody else runs: lanes that have
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

    # while no thread is inside a pool

    def _make(self, turn: Turn, home: Any) -> TorchLane:
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
        """Make a lane after giving back what PyTorch keeps for later, of which the books know nothing. Nor do
        they know of lanes that are to be smaller from their next turn on: where it must be, all others are
        given up."""
        self._empty()
        lane = self._tried(turn, home)
        if lane is None:
            self._make_way()
            lane = self._made(turn, home)
        return self._into(turn.lane, lane)

    def _beside(self, old: TorchLane, turn: Turn, home: Any) -> TorchLane:
        """Make a lane beside its old pool. Where there is no room for both, the old pool goes on, with
        another segment if it is too small, and on the stream that it has."""
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
        for lane in [each for each in self.lanes if each != but]:
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
