"""Applications of a dynamic model are grouped by the times of their requests, which are learnt from batches.

As long as nothing is known of them they stand apart, so that batches tell about one application each.
"""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.core.quantities import Time
from astrarium.serving.contract import ModelSpec, Request
from astrarium.serving.policies._times import LearntTimes
from astrarium.serving.policies.astrarium.groups import SAFE, Group, Groups


class Applications(Groups):
    def __init__(self, model: ModelSpec, times: LearntTimes, grouping: str) -> None:
        super().__init__(times.applications, model.slo, grouping, apart=not times.known)
        self.times = times
        self._model = model
        self._begun = False

    def arrived(self, now: Time, application: int) -> None:
        if not self._begun:  # times count from the first request: no decision depends on where zero is
            self._begun = True
            self.times.begin(now)
        self.times.arrived(now, application)
        self.meters[application].roll(now)
        self.meters[application].count()

    def finished(self, now: Time, requests: Sequence[Request], took: Time) -> None:
        self.times.finished(now, [request.application for request in requests], took, SAFE)

    def ranked(self) -> Sequence[int]:
        return sorted(range(len(self.meters)), key=lambda place: self.time((place,), 1))

    def time(self, group: Group, size: int) -> Time:
        return self.times.time(group, size, SAFE)

    def largest(self, group: Group) -> int:
        return self._model.max_batch

    def table(self, group: Group) -> Sequence[Time]:
        return self.times.table(group, SAFE)
