"""Kinds of requests of a model, such as applications or buckets of lengths, are grouped into queues.

A batch is padded to its longest request, so mixing short with long wastes time; yet every queue more makes
batches smaller, and each launch has its fixed cost. Kinds are sorted by the time that one request of theirs
takes, and cut into the neighbourhoods that together ask for the least GPU time at the present rates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import fsum

from astrarium.core.quantities import Time
from astrarium.serving.policies._rates import RateMeter

SAFE = 0.9  # the chance with which a batch keeps the time that it is planned with
WORTH_MOVING = 0.9  # of the present demand: only for less are queues formed anew
ROUNDING = 1e-9  # costs that differ by less are equal

Group = tuple[int, ...]


class Groups(ABC):
    """Groups say which kinds of a model's requests share a queue, by the rates at which they come."""

    def __init__(self, kinds: int, slo: Time, grouping: str, apart: bool) -> None:
        self.meters = [RateMeter() for _ in range(kinds)]
        self._slo = slo
        self._grouping = grouping
        everybody = tuple(range(kinds))
        apart = grouping == "application" or (grouping == "grouped" and apart)
        self.groups: list[Group] = [(place,) for place in everybody] if apart else [everybody]

    @abstractmethod
    def ranked(self) -> Sequence[int]:
        """Return the kinds, those first of which one request takes the least time."""

    @abstractmethod
    def time(self, group: Group, size: int) -> Time:
        """Return what a batch of these kinds is planned with."""

    @abstractmethod
    def largest(self, group: Group) -> int:
        """Return the largest batch of these kinds."""

    @abstractmethod
    def table(self, group: Group) -> Sequence[Time]:
        """Return the times that batches of 0, 1, 2, ... of these kinds are planned with, FOREVER at last."""

    def regroup(self, now: Time) -> bool:
        """Group the kinds anew if that saves enough to move the requests that wait."""
        if self._grouping != "grouped" or len(self.meters) < 2:
            return False
        for meter in self.meters:
            meter.roll(now)
        groups = cheapest_cut(self.ranked(), self._demand)
        if fsum(map(self._demand, groups)) >= WORTH_MOVING * fsum(map(self._demand, self.groups)):
            return False
        self.groups = groups
        return True

    def _demand(self, group: Group) -> float:
        """Return how many GPUs the group would keep busy if it gathered for half of the objective."""
        rate = fsum(self.meters[place].rate() for place in group)
        size = min(self.largest(group), max(1, int(rate * self._slo / 2)))
        return rate * self.time(group, size) / size


def cheapest_cut(ranked: Sequence[int], cost: Callable[[Group], float]) -> list[Group]:
    """Cut neighbours in *ranked* into groups of the least total cost; of equal cuts, into the fewest."""
    best: list[tuple[float, list[Group]]] = [(0.0, [])]
    for end in range(1, len(ranked) + 1):
        choices = []
        for start in range(end):
            group = tuple(sorted(ranked[start:end]))
            before, groups = best[start]
            choices.append((before + cost(group), [*groups, group]))
        equal = (1 + ROUNDING) * min(total for total, _ in choices)
        best.append(min((one for one in choices if one[0] <= equal), key=lambda one: len(one[1])))
    return best[-1][1]
