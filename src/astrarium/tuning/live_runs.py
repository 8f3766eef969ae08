"""What a crew was told to run and has not said the end of: who is on which GPU in truth, whatever the books
say, and how many shared it for how long."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from astrarium.core.units import Time
from astrarium.tuning.crew import Work
from astrarium.tuning.places import Place


@dataclass
class Run:
    work: Work
    left: Time | None  # when it had left its old place, where it was moved
    iterated: Time  # when its last iteration ended; at first, when it was told to start
    crowd: float = 0.0  # of its GPU, at that instant
    told: Time | None = None  # when the books last heard of its progress
    fresh: bool = True  # no iteration has ended yet
    asked: bool = False  # to leave


@dataclass
class _Crowd:
    """Trials on a GPU, and their number summed up over time."""

    count: int = 0
    at: Time = 0
    area: float = 0.0

    def upto(self, now: Time) -> float:
        self.area, self.at = self.area + self.count * (now - self.at), now
        return self.area


@dataclass
class Runs:
    alive: dict[int, Run] = field(default_factory=dict)  # by trial
    _crowds: dict[int, _Crowd] = field(default_factory=dict)  # by GPU

    def current(self, trial: int, run: int) -> Run | None:
        """None: the news is late."""
        found = self.alive.get(trial)
        return found if found is not None and found.work.run == run else None

    def clear(self, place: Place) -> bool:
        """Whether there is room, in truth."""
        others = [run.work.place for run in self.alive.values()]
        return all(
            sum((each.share for each in others if gpu in each.gpus), Fraction(0)) + place.share <= 1
            for gpu in place.gpus
        )

    def begin(self, now: Time, work: Work, left: Time | None) -> None:
        self._count(now, work.place, 1)
        self.alive[work.trial] = Run(work, left, now, self._area(now, work.place))

    def end(self, now: Time, run: Run) -> None:
        del self.alive[run.work.trial]
        self._count(now, run.work.place, -1)

    def sharers(self, now: Time, run: Run) -> float:
        """Trials on its GPU, on the mean, since its last iteration ended; the next one begins now."""
        area, since, place = self._area(now, run.work.place), run.iterated, run.work.place
        crowd, run.iterated, run.crowd = run.crowd, now, area
        if now > since:
            return (area - crowd) / (now - since)
        return self._crowds[place.gpus[0]].count

    def _area(self, now: Time, place: Place) -> float:
        return self._crowds[place.gpus[0]].upto(now)

    def _count(self, now: Time, place: Place, more: int) -> None:
        for gpu in place.gpus:
            crowd = self._crowds.setdefault(gpu, _Crowd(at=now))
            crowd.upto(now)
            crowd.count += more
