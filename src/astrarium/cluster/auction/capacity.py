"""What fits: inequalities that every set of pieces obeys which the machines can hold.

Weigh pieces by their size in any way: a machine never holds more weight than the heaviest set of pieces that
fits into it, so neither do machines together. Counting how often a size goes into a piece gives weights that
decide alone where sizes divide each other (1, 2, 4, 8) and no place is named: whatever lies where, a larger
piece takes the same number of places for smaller ones. Other sizes get the weights of Martello and Toth's
bound for bin packing as well, and are packed in the end to be sure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from astrarium.cluster.auction.goods import MachineClass

Weigh = Callable[[int], int]


class Need(NamedTuple):
    """A piece as the machines see it: its size, and the classes that could take it."""

    gpus: int
    classes: frozenset[int]


class Row(NamedTuple):
    weights: tuple[int, ...]  # of each need
    room: int


def rows(needs: Sequence[Need], classes: Sequence[MachineClass]) -> list[Row]:
    """For all classes, every set of them that some need is confined to, and all ways to weigh."""
    best: dict[tuple[int, ...], int] = {}
    ways = list(_ways(sorted({need.gpus for need in needs}), {each.free for each in classes}))
    everywhere = frozenset(range(len(classes)))
    confined = (
        {everywhere} if decide_alone(needs, classes) else {everywhere, *(need.classes for need in needs)}
    )
    for inside in sorted(confined, key=sorted):
        for way in ways:
            row = _row(needs, classes, inside, way)
            best[row.weights] = min(row.room, best.get(row.weights, row.room))
    return [Row(weights, room) for weights, room in best.items()]


def decide_alone(needs: Sequence[Need], classes: Sequence[MachineClass]) -> bool:
    """Whether all that obeys the rows fits."""
    anywhere = all(need.classes == fitting(need.gpus, classes) for need in needs)
    return anywhere and _divide_each_other([need.gpus for need in needs])


def fitting(gpus: int, classes: Sequence[MachineClass]) -> frozenset[int]:
    return frozenset(number for number, each in enumerate(classes) if each.free >= gpus)


def _row(needs: Sequence[Need], classes: Sequence[MachineClass], inside: frozenset[int], way: Weigh) -> Row:
    weights = tuple(way(need.gpus) if need.classes <= inside else 0 for need in needs)
    sizes = tuple(sorted({need.gpus for need in needs}))
    heaviest = _heaviest(sizes, tuple(way(size) for size in sizes))
    return Row(weights, sum(heaviest(classes[each].free) * len(classes[each].members) for each in inside))


def _heaviest(sizes: tuple[int, ...], weights: tuple[int, ...]) -> Callable[[int], int]:
    """The most weight that so many GPUs of one machine can hold."""

    @cache
    def of(free: int) -> int:
        tried = (w + of(free - size) for size, w in zip(sizes, weights, strict=True) if size <= free)
        return max(tried, default=0)

    return of


def _ways(sizes: Sequence[int], frees: set[int]) -> Iterator[Weigh]:
    yield from (_times(size) for size in sizes)
    if not _divide_each_other(sizes):
        yield from (_rounding(free, small) for free in sorted(frees) for small in sizes if 2 * small <= free)


def _times(size: int) -> Weigh:
    return lambda gpus: gpus // size


def _rounding(free: int, small: int) -> Weigh:
    """With a piece beyond free - small, nothing that counts fits into a machine: it counts as all of it."""
    return lambda gpus: free if gpus > free - small else gpus if gpus >= small else 0


def _divide_each_other(sizes: Sequence[int]) -> bool:
    return all(large % small == 0 for small, large in pairwise(sorted(set(sizes))))
