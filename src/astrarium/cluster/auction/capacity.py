"""The capacity of machines is a set of inequalities that all pieces obey which the machines can hold.

Where pieces may go anywhere and their sizes divide each other, what obeys them fits; otherwise `packing` has
to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from astrarium.cluster.auction.goods import MachineClass

Weigh = Callable[[int], int]


class PieceNeed(NamedTuple):
    """A piece as the machines see it: its size, and the classes of machines that could take it."""

    gpus: int
    classes: frozenset[int]


class CapacityRow(NamedTuple):
    """An inequality that all pieces obey which the machines can hold: their weights fit the capacity."""

    weights: tuple[int, ...]  # of each need
    capacity: int


def capacity_rows(needs: Sequence[PieceNeed], classes: Sequence[MachineClass]) -> list[CapacityRow]:
    """Return the inequalities for all classes, for every set that confines a need, for all ways to weigh."""
    best: dict[tuple[int, ...], int] = {}
    ways = list(_ways(sorted({need.gpus for need in needs}), {kind.free for kind in classes}))
    everywhere = frozenset(range(len(classes)))
    confined = (
        {everywhere} if decide_alone(needs, classes) else {everywhere, *(need.classes for need in needs)}
    )
    sizes = tuple(sorted({need.gpus for need in needs}))
    weighed = [({size: way(size) for size in sizes}, _most_weight(sizes, way, classes)) for way in ways]
    for inside in sorted(confined, key=sorted):
        mine = [need.gpus if need.classes <= inside else 0 for need in needs]
        for of_size, heaviest in weighed:
            weights = tuple([of_size[gpus] if gpus else 0 for gpus in mine])
            capacity = sum([heaviest[kind] for kind in inside])
            best[weights] = min(capacity, best.get(weights, capacity))
    return [CapacityRow(weights, capacity) for weights, capacity in best.items()]


def decide_alone(needs: Sequence[PieceNeed], classes: Sequence[MachineClass]) -> bool:
    """Return whether all that obeys the rows fits."""
    anywhere = all(need.classes == fitting(need.gpus, classes) for need in needs)
    return anywhere and _divide_each_other([need.gpus for need in needs])


def fitting(gpus: int, classes: Sequence[MachineClass]) -> frozenset[int]:
    return frozenset(number for number, kind in enumerate(classes) if kind.free >= gpus)


def _most_weight(sizes: Sequence[int], way: Weigh, classes: Sequence[MachineClass]) -> list[int]:
    """Return the most weight that all machines of each class can hold."""

    @cache
    def of(free: int) -> int:
        return max((way(size) + of(free - size) for size in sizes if size <= free), default=0)

    return [of(kind.free) * len(kind.members) for kind in classes]


def _ways(sizes: Sequence[int], frees: set[int]) -> Iterator[Weigh]:
    yield from (_times(size) for size in sizes)
    if not _divide_each_other(sizes):
        yield from (_rounding(free, small) for free in sorted(frees) for small in sizes if 2 * small <= free)


def _times(size: int) -> Weigh:
    return lambda gpus: gpus // size


def _rounding(free: int, small: int) -> Weigh:
    """Return a weight that counts a piece as a whole machine where nothing that counts fits beside it."""
    return lambda gpus: free if gpus > free - small else gpus if gpus >= small else 0


def _divide_each_other(sizes: Sequence[int]) -> bool:
    return all(large % small == 0 for small, large in pairwise(sorted(set(sizes))))
