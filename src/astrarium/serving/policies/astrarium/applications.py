"""Applications of a dynamic model are grouped into queues of requests that take alike times.

A batch is padded to its longest request, so mixing short with long wastes time; yet every queue more makes
batches smaller, and each launch has its fixed cost. Applications are sorted by the time that one request of
theirs keeps, and cut into the neighbourhoods that together ask for the least GPU time at the present rates.
As long as nothing is known of them they stand apart, so that batches tell about one application each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum

from astrarium.core.quantities import Time
from astrarium.serving.contract import ModelSpec, Request
from astrarium.serving.policies._rates import RateMeter
from astrarium.serving.policies._times import LearntTimes

SAFE = 0.9  # the chance with which a batch keeps the time that it is planned with
WORTH_MOVING = 0.9  # of the present demand: only for less are queues formed anew
ROUNDING = 1e-9  # costs that differ by less are equal

Group = tuple[int, ...]


class Applications:
    def __init__(self, model: ModelSpec, times: LearntTimes, grouping: str) -> None:
        self.model = model
        self.times = times
        self._grouping = grouping
        self.meters = [RateMeter() for _ in range(times.applications)]
        self._begun = False
        everybody = tuple(range(times.applications))
        apart = grouping == "application" or (grouping == "grouped" and not times.known)
        self.groups: list[Group] = [(place,) for place in everybody] if apart else [everybody]

    def arrived(self, now: Time, application: int) -> None:
        if not self._begun:  # times count from the first request: no decision depends on where zero is
            self._begun = True
            self.times.begin(now)
        self.times.arrived(now, application)
        self.meters[application].roll(now)
        self.meters[application].count()

    def finished(self, now: Time, requests: Sequence[Request], took: Time) -> None:
        self.times.finished(now, [request.application for request in requests], took, SAFE)

    def regroup(self, now: Time) -> bool:
        """Group the applications anew if that saves enough to move the requests that wait."""
        if self._grouping != "grouped" or len(self.meters) < 2:
            return False
        for meter in self.meters:
            meter.roll(now)
        ranked = sorted(range(len(self.meters)), key=lambda place: self.times.time((place,), 1, SAFE))
        groups = cheapest_cut(ranked, self._demand)
        if fsum(map(self._demand, groups)) >= WORTH_MOVING * fsum(map(self._demand, self.groups)):
            return False
        self.groups = groups
        return True

    def table(self, group: Group) -> list[Time]:
        """Return the times that batches of 0, 1, 2, ... of these applications are planned with."""
        return self.times.table(group, SAFE)

    def _demand(self, group: Group) -> float:
        """Return how many GPUs the group would keep busy if it gathered for half of the objective."""
        rate = fsum(self.meters[place].rate() for place in group)
        size = min(self.model.max_batch, max(1, int(rate * self.model.slo / 2)))
        return rate * self.times.time(group, size, SAFE) / size


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
