"""Which subsets of what is offered an agent puts a number on: so many GPUs, in pieces of such sizes.

All subsets would be too many, and most are alike. For every number of GPUs that makes a difference there is
the loosest pattern (single GPUs, anywhere), and tighter ones where that is worth something: half jobs in one
rack, whole jobs on one machine each, machines as full as they get, and GPUs beside those the app has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from astrarium.cluster.agents.shapes import Part, Shape, shape
from astrarium.cluster.auction.goods import FreeMachine, Piece
from astrarium.cluster.machines import Floor

FINE = 4  # numbers of GPUs up to here are all looked at, beyond it two for each doubling
BESIDE = 2  # machines on which an app has GPUs and wants more
SOME_RACK = -1  # one rack, whichever


class Ground(NamedTuple):
    """What is offered, and what the app has: parts by machine."""

    free: Mapping[int, int]  # by machine
    racks: Mapping[int, int]  # free GPUs of each
    slot: int
    held: Mapping[int, Part]

    @property
    def total(self) -> int:
        return sum(self.free.values())

    @property
    def largest(self) -> int:
        return max(self.free.values())

    def shape(self, pieces: Iterable[Piece] = (), one_rack: bool = False) -> Shape:
        """With these pieces beside what it has."""
        parts, loose = dict(self.held), []
        for piece in pieces:
            if piece.machine is None:
                loose.append(Part(piece.gpus, self._rack(one_rack)))
            else:
                before = parts[piece.machine]
                parts[piece.machine] = Part(before.gpus + piece.gpus, before.rack)
        return shape([*parts.values(), *loose], self.slot)

    def _rack(self, one_rack: bool) -> int | None:
        if len(self.racks) == 1:
            return next(iter(self.racks))
        return SOME_RACK if one_rack else None


class Pattern(NamedTuple):
    pieces: tuple[Piece, ...]
    one_rack: bool = False


def ground(goods: Sequence[FreeMachine], floor: Floor, held: Mapping[int, Part]) -> Ground:
    racks: dict[int, int] = {}
    for each in goods:
        racks[each.rack] = racks.get(each.rack, 0) + each.free
    slot = closest_slot(floor, [*held, *(each.id for each in goods)])
    return Ground({each.id: each.free for each in goods}, racks, slot, held)


def closest_slot(floor: Floor, machines: Iterable[int]) -> int:
    """So many GPUs lie in one slot on any of them."""
    return min((floor.machines[each].slot or floor.machines[each].gpus for each in machines), default=1)


def counts(most: int, useful: Callable[[int], int]) -> list[int]:
    """Numbers of GPUs that the app would use in full."""
    return sorted({useful(count) for count in (*_steps(most), most)} - {0})


def _steps(most: int) -> Iterator[int]:
    count = 1
    while count < most:
        yield count
        count += 1 << count.bit_length() - 2 if count >= FINE else 1


def loose(count: int) -> Pattern:
    return Pattern((Piece(1),) * count)


def tighter(count: int, size: int, offered: Ground, racks_matter: bool) -> Iterator[Pattern]:
    """For jobs of *size* GPUs: each pattern is harder to have than those before."""
    size = min(size, count, offered.largest)
    racks = racks_matter and len(offered.racks) > 1 and max(offered.racks.values()) >= count
    if racks:
        yield Pattern((Piece(1),) * count, one_rack=True)
    for piece in (size // 2, size, min(count, offered.largest)):
        if piece > 1:
            yield Pattern(_cut(count, piece))
            if racks and piece < count:
                yield Pattern(_cut(count, piece), one_rack=True)
    yield from _beside(count, size, offered)


def _beside(count: int, size: int, offered: Ground) -> Iterator[Pattern]:
    """On a machine where it already is, and the rest in pieces."""
    homes = sorted(
        offered.held.keys() & offered.free.keys(), key=lambda each: (-offered.held[each].gpus, each)
    )
    for home in homes[:BESIDE]:
        there = min(count, offered.free[home])
        yield Pattern((Piece(there, machine=home), *_cut(count - there, size)))


def _cut(count: int, size: int) -> tuple[Piece, ...]:
    """The rest in powers of two: pieces that divide each other are easy to fit."""
    rest = count % size
    smaller = (1 << bit for bit in reversed(range(rest.bit_length())) if rest >> bit & 1)
    return tuple(Piece(each) for each in (*[size] * (count // size), *smaller))
