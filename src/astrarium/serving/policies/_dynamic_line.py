"""A line of a dynamic model: whose requests wait in it is known, and so is what a batch of them would take.

The line plans ahead with the times of anybody who may stand in it. Once a GPU is at hand, the batch is chosen
by name: in the order of deadlines, whoever fits; nobody who would take longer in company than alone.
"""

from __future__ import annotations

from typing import Any

from astrarium.core.units import Time
from astrarium.serving.events import Request
from astrarium.serving.policies._applications import SAFE
from astrarium.serving.policies._line import Line
from astrarium.serving.policies._times import LearntTimes
from astrarium.serving.setup import ModelSpec, Network


class DynamicLine(Line):
    def __init__(self, model: ModelSpec, network: Network, parameters: Any, times: LearntTimes) -> None:
        super().__init__(model, network, parameters)
        self._times = times
        self._members: list[int] = []  # places of those who leave; none: the first ones
        self._takes: Time = 0  # what those are planned with

    def choose(self, now: Time, free: Time) -> None:
        """Who leaves: the first one, and everybody who can join and keep its deadline. If it is too late for
        the first one by the times of its own application, the batch stays what it was."""
        self._members, self._takes = [], 0
        together: list[float] = []
        for place, request in enumerate(self.requests):
            joined = self._times.joined(together, request.application)
            takes = self._times.kept(joined, len(self._members) + 1, SAFE)
            if self._fits(takes, now, free) and takes - self._takes <= self._alone(request):
                together, self._takes = joined, takes
                self._members.append(place)
            if len(self._members) in (0, self.model.max_batch):
                break
        self.size = len(self._members) or self.size

    def planned(self) -> Time:
        return self._takes if self._members else super().planned()

    def pop_batch(self) -> list[Request]:
        if not self._members:
            return super().pop_batch()
        batch = [self.requests[place] for place in self._members]
        for place in reversed(self._members):
            del self.requests[place], self.deadlines[place]
        self._members = []
        return batch

    def _fits(self, takes: Time, now: Time, free: Time) -> bool:
        start = max(now + self._network.delay(len(self._members) + 1), free)
        return start + takes <= self.deadlines[0]

    def _alone(self, request: Request) -> Time:
        return self._times.kept(self._times.joined([], request.application), 1, SAFE)
