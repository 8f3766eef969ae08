"""What the last minute brought, for autoscaling advice and rates."""

from __future__ import annotations

from dataclasses import dataclass

from astrarium.core.quantities import SECOND, Time


@dataclass
class Counts:
    """What ended in some time: calls, those of them that were in time, and how long GPUs were busy."""

    ended: int = 0
    good: int = 0
    busy: Time = 0  # nanoseconds

    def add(self, ended: int, good: int, busy: Time) -> None:
        self.ended += ended
        self.good += good
        self.busy += busy


class LastMinute:
    """The last minute is kept in steps of one second, for autoscaling advice and rates."""

    SECONDS = 60

    def __init__(self) -> None:
        self._by_second: dict[int, Counts] = {}

    def add(self, now: Time, ended: int = 0, good: int = 0, busy: Time = 0) -> None:
        second = now // SECOND
        if second not in self._by_second:
            self._by_second[second] = Counts()
            for old in [key for key in self._by_second if key < second - self.SECONDS]:
                del self._by_second[old]
        self._by_second[second].add(ended, good, busy)

    def totals(self, now: Time) -> Counts:
        since = now // SECOND - self.SECONDS
        totals = Counts()
        for second, counts in self._by_second.items():
            if second > since:
                totals.add(counts.ended, counts.good, counts.busy)
        return totals
