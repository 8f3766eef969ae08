"""Live runs are those that a backend was ordered to start, and whose end it has not reported."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from astrarium.core.quantities import Time
from astrarium.tuning.live.backend import Work
from astrarium.tuning.runtime import Place


@dataclass
class LiveRun:
    """The loop makes a live run when it orders one, and drops it when the backend reports its end."""

    work: Work
    left: Time | None  # when the trial had left its old place, if it moved
    iterated: Time  # when its last iteration ended; before the first, when it was ordered
    occupancy: float = 0.0  # of its GPU, summed up to that instant
    progressed: Time | None = None  # when the state last heard of its progress
    first: bool = True  # no iteration has ended yet
    leaving: bool = False  # the backend has been told to stop it


@dataclass
class _Occupancy:
    """The trials on a GPU are counted, and their number is summed up over time."""

    count: int = 0
    at: Time = 0
    area: float = 0.0

    def upto(self, now: Time) -> float:
        self.area = self.area + self.count * (now - self.at)
        self.at = now
        return self.area


@dataclass
class LiveRuns:
    """Live runs tell which run is really on which GPU, and how many shared it for how long."""

    alive: dict[int, LiveRun] = field(default_factory=dict)  # by trial
    _occupancies: dict[int, _Occupancy] = field(default_factory=dict)  # by GPU

    def current(self, trial: int, run: int) -> LiveRun | None:
        """Return the run of that number; None where the news is late."""
        alive = self.alive.get(trial)
        return alive if alive is not None and alive.work.run == run else None

    def clear(self, place: Place) -> bool:
        """Tell whether enough of the place's GPUs is really free."""
        others = [run.work.place for run in self.alive.values()]
        return all(
            sum((other.share for other in others if gpu in other.gpus), Fraction(0)) + place.share <= 1
            for gpu in place.gpus
        )

    def begin(self, now: Time, work: Work, left: Time | None) -> None:
        self._count(now, work.place, 1)
        self.alive[work.trial] = LiveRun(work, left, now, self._area(now, work.place))

    def end(self, now: Time, run: LiveRun) -> None:
        del self.alive[run.work.trial]
        self._count(now, run.work.place, -1)

    def sharers(self, now: Time, run: LiveRun) -> float:
        """Return the mean number of trials on the run's GPU since its last iteration; the next begins."""
        area = self._area(now, run.work.place)
        since = run.iterated
        place = run.work.place
        occupancy = run.occupancy
        run.iterated = now
        run.occupancy = area
        if now > since:
            return (area - occupancy) / (now - since)
        return self._occupancies[place.gpus[0]].count

    def _area(self, now: Time, place: Place) -> float:
        return self._occupancies[place.gpus[0]].upto(now)

    def _count(self, now: Time, place: Place, more: int) -> None:
        for gpu in place.gpus:
            occupancy = self._occupancies.setdefault(gpu, _Occupancy(at=now))
            occupancy.upto(now)
            occupancy.count += more
