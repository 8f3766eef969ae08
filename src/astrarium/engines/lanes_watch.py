"""What lies in a lane between iterations: whose it is, whether it grows, and what the lane has taken.

Gradients, the last loss and the last outputs usually outlive an iteration: what a job holds after its first
two turns is known from when it was measured. More than that is charged to it. Looking is slow (all blocks of
the pool are listed), so that it is done around a job's 1st, 2nd, 4th, 16th, 64th turn, every 256th, and after
one in which the device was asked for more memory. A job by itself is asked about that at every 8th turn only.

Jobs let gradients go between their turns, and others get the same addresses: whose a block is cannot always
be told. But all of them together hold no more than each did at first, unless one of them leaks; it may then
be a neighbour of the one that is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from astrarium.device.ground import Excess

RARELY, OFTEN = 256, 8  # turns
FIRST = 2  # turns in which what a job holds is what it always holds
SEGMENT = 2 << 20  # PyTorch asks the device for multiples of this, and so do we charge
LEAK = 1 << 20  # bytes more than before that are no accident
PLACES = 3  # where leaks come from, at most


class Block(NamedTuple):
    address: int
    size: int
    where: str = ""


class View(NamedTuple):
    """Of a pool: what it has of the device, and the blocks that are in use."""

    reserved: int
    blocks: list[Block]


def viewed(segments: Iterable[Mapping[str, Any]]) -> View:
    """From a snapshot of PyTorch's allocator."""
    segments = list(segments)
    used = [
        Block(block["address"], block["size"], _where(block.get("frames", ())))
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    return View(sum(segment["total_size"] for segment in segments), used)


def _where(frames: Iterable[Mapping[str, Any]]) -> str:
    """The innermost line of Python that is not PyTorch's own."""
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


class Watch:
    """Of one lane. Blocks belong to the job in whose turn they were first seen."""

    def __init__(self) -> None:
        self._turns: Counter[int] = Counter()
        self._first: dict[int, _Held] = {}
        self._last: dict[int, _Held] = {}
        self._owners: dict[int, int] = {}  # by address
        self._elsewhere: Counter[int] = Counter()  # what jobs hold of a pool that was given up
        self._asked = -1  # how often the device was asked for memory, at the last look

    def renewed(self) -> Watch:
        """For a lane with another pool. What is held of the old one may be held for long."""
        fresh = Watch()
        for job, last in self._last.items():
            fresh._elsewhere[job] = self._more(job, last)
        return fresh

    def will_look(self, job: int) -> bool:
        """Before a turn: whether there will be a look after it, whatever happens."""
        return _looked_at(self._turns[job] + 1)

    def began(self, job: int, view: View) -> None:
        """Before such a turn: what has been let go is nobody's any more."""
        self._of(job, view)

    def due(self, job: int, asked: Callable[[], int], shared: bool = True) -> bool:
        """After every turn: whether to look. *asked* tells how often the device was asked for memory so far,
        which takes some time too. In a lane that is *shared* it must be told after whose turn that was."""
        self._turns[job] += 1
        turn = self._turns[job]
        if not shared and turn > 2 * OFTEN and turn % OFTEN:
            return False
        before, self._asked = self._asked, asked()
        return self._asked != before or _looked_at(turn)

    def seen(self, job: int, size: int, view: View) -> Excess | None:
        """After a turn in the lane of *size* bytes: what was not known of the job, None if nothing."""
        mine = self._of(job, view)
        held = _Held(self._turns[job], sum(block.size for block in mine), len(mine))
        in_use = sum(block.size for block in view.blocks)
        held = self._believed(job, held, in_use, len(view.blocks))
        first, last = self._first[job], self._last.get(job, held)
        self._last[job] = held
        more, taken = self._more(job, held), view.reserved - in_use
        leaks = _leaks(first, last, held)
        if not leaks and more < SEGMENT and taken <= rounded(size):
            return None
        return Excess(rounded(more), taken, held.blocks, _places(mine) if leaks else (), leaks)

    def _believed(self, job: int, held: _Held, in_use: int, blocks: int) -> _Held:
        """Not more than there is beyond what others hold at most."""
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

    def _of(self, job: int, view: View) -> list[Block]:
        owners = self._owners
        self._owners = {block.address: owners.get(block.address, job) for block in view.blocks}
        return [block for block in view.blocks if self._owners[block.address] == job]


def _looked_at(turn: int) -> bool:
    return turn <= FIRST or turn in (4, 16, 64) or turn % RARELY == 0


def _leaks(first: _Held, last: _Held, now: _Held) -> bool:
    """A block more with every turn, or a good deal more than at the last look and at first."""
    turns = now.turn - first.turn
    steadily = turns >= 2 and now.blocks - first.blocks >= turns
    return steadily or now.size - first.size >= LEAK <= now.size - last.size


def _places(blocks: list[Block]) -> tuple[str, ...]:
    """Where most bytes were made, as far as PyTorch recorded it."""
    sizes: Counter[str] = Counter()
    for block in blocks:
        sizes[block.where] += block.size
    return tuple(where for where, _ in sizes.most_common() if where)[:PLACES]
