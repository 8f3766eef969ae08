"""A watch looks now and then at what lies in a lane between iterations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from astrarium.device.live.backend import Excess
from astrarium.device.live.torch_pool_view import PoolBlock, PoolView

RARELY = 256  # turns between two looks, once nothing changes
OFTEN = 8  # turns between two questions to PyTorch, in a lane of one job
FIRST = 2  # turns in which what a job holds is what it always holds
SEGMENT = 2 << 20  # PyTorch asks the device for multiples of this, and so do we charge
LEAK = 1 << 20  # bytes more than before that are no accident
PLACES = 3  # where leaks come from, at most


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

    def due(self, job: int, allocations: Callable[[], int], shared: bool = True) -> bool:
        """Tell, after every turn, whether to look. *allocations* returns how often the device was asked for
        memory so far, which takes some time too. In a *shared* lane that must be known after each turn."""
        self._turns[job] += 1
        turn = self._turns[job]
        if not shared and turn > 2 * OFTEN and turn % OFTEN:
            return False
        before = self._asked
        self._asked = allocations()
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
        unused = view.reserved - in_use
        leaks = _leaks(first, last, held)
        if not leaks and more < SEGMENT and unused <= rounded(size):
            return None
        return Excess(rounded(more), unused, held.blocks, _places(mine) if leaks else (), leaks)

    def _believed(self, job: int, held: _Held, in_use: int, blocks: int) -> _Held:
        """Limit what the job holds to what there is beyond what others hold at most."""
        first = self._first.get(job, held)
        if held.turn <= FIRST and held.size > first.size:
            first = held
        self._first[job] = first
        known = self._first.values()
        more = max(0, min(held.size - first.size, in_use - sum(usual.size for usual in known)))
        many = max(0, min(held.blocks - first.blocks, blocks - sum(usual.blocks for usual in known)))
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
