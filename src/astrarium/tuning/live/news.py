"""What a crew's news mean to the books."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import median

from astrarium.core.units import SECOND, Time
from astrarium.tuning.contract import (
    Event,
    MovingMeasured,
    RuntimeMeasured,
    TrialFailed,
    TrialFinished,
    TrialMoved,
    TrialPaused,
    TrialStepped,
)
from astrarium.tuning.live.backend import Iterated, News, RunEnded, Work
from astrarium.tuning.live.estimates import Beliefs
from astrarium.tuning.live.memory import Options, Reports
from astrarium.tuning.runtime import Place
from astrarium.tuning.state import TrialRow, TuningState

# What a crew was told to run and has not said the end of: who is on which GPU in truth, whatever the books
# say, and how many shared it for how long.


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


MOVES = 9  # the last ones, that tell what one costs
CHANGE = 0.1


class Newsroom:
    def __init__(
        self, state: TuningState, runs: Runs, reports: Reports, beliefs: Beliefs, options: Options
    ) -> None:
        self._state, self._runs, self._reports = state, runs, reports
        self._beliefs, self._options = beliefs, options
        self.left: dict[int, Time] = {}  # by trial that is on its way: when it left its old place
        self.kept: dict[int, int] = {}  # by trial: iterations in its newest checkpoint
        self._moves: deque[Time] = deque(maxlen=MOVES)
        self._losses: dict[int, tuple[int, int]] = {}  # by trial: how often, and how far it had come

    def events(self, now: Time, heard: Sequence[News], gpus: Collection[int] | None) -> Iterator[Event]:
        """*gpus*: those that are left, where that was among the news."""
        steps, ends = dict[int, Iterated](), list[Event]()
        for news in heard:
            if isinstance(news, Iterated) and self._iterated(now, news):
                steps[news.trial] = news
            elif isinstance(news, RunEnded):
                ends += self._ended(now, news, gpus)
        measured = self._beliefs.news()
        yield from self._progress(now, steps, measured)
        yield from (RuntimeMeasured(candidate, runtime) for candidate, runtime in measured.items())
        yield from self._moving()
        yield from ends
        yield from self._stuck(now)

    # iterations

    def _iterated(self, now: Time, news: Iterated) -> bool:
        """Whether it is news of a trial that is open."""
        run = self._runs.current(news.trial, news.run)
        if run is None or news.trial not in self._state.open:
            return False
        self._reports.hear(news.trial, news.iterations, news.value)
        if run.fresh and run.left is not None:
            self._moves.append(max(0, now - news.took - run.left))
        counted = self._runs.sharers(now, run)
        sharers = counted if news.sharers is None else news.sharers
        self._beliefs.seen(run.work.candidate, len(run.work.place.gpus), sharers, news.took, run.fresh)
        run.fresh = False
        return True

    def _progress(
        self, now: Time, steps: dict[int, Iterated], measured: Collection[int]
    ) -> Iterator[TrialStepped]:
        """Where a belief changes, the books must know exactly how far it is: they would reckon with the old
        one."""
        for number, news in steps.items():
            row, run = self._state.open[number], self._runs.current(number, news.run)
            if run is None:  # it has ended, which says more
                continue
            due = run.told is None or now - run.told >= self._options.progress
            if due or row.trial.candidate in measured:
                run.told = now
                yield TrialStepped(number, row.run, _done(row, news.iterations))

    def _moving(self) -> Iterator[MovingMeasured]:
        if self._moves:
            cost = round(median(self._moves))
            if abs(cost - self._state.moving) > CHANGE * self._state.moving:
                yield MovingMeasured(cost)

    # ends

    def _ended(self, now: Time, news: RunEnded, gpus: Collection[int] | None) -> Iterator[Event]:
        run, row = self._runs.current(news.trial, news.run), self._state.open.get(news.trial)
        if run is None:
            return
        self._runs.end(now, run)
        if row is None:  # nobody wants it any more
            return
        if news.ending == "failed":
            yield TrialFailed(news.trial, row.run, news.error or "it failed without a word")
        elif news.ending == "finished" or self._was_done(row, news):
            self._reports.hear(news.trial, row.trial.total, news.value)
            yield TrialFinished(news.trial, row.run)
        else:
            yield self._goes_on(now, news, row, run, gpus)

    def _was_done(self, row: TrialRow, news: RunEnded) -> bool:
        """It had its total, said what it is worth, and could not say that it ended."""
        total = row.trial.total
        return news.iterations >= total and self._reports.last(news.trial).iterations == total

    def _goes_on(
        self, now: Time, news: RunEnded, row: TrialRow, run: Run, gpus: Collection[int] | None
    ) -> Event:
        done = _done(row, news.iterations)
        if done == row.trial.iterations:  # what it was worth then, nobody knows: it trains once more
            done = 0
        self.kept[news.trial] = done
        blameless = (run.asked and news.ending == "left") or not _has(gpus, run)
        if not blameless and self._too_often(news.trial, done):
            error = f"its runs were lost {self._options.retries} times, and it got no further"
            return TrialFailed(news.trial, row.run, f"{error}: {news.error}" if news.error else error)
        if row.going is not None:
            self.left[news.trial] = now
            return TrialMoved(news.trial, row.run, done)
        if row.settled and row.place != run.work.place:  # it was put elsewhere before it had left
            return TrialStepped(news.trial, row.run, done)
        return TrialPaused(news.trial, row.run, done)

    def _stuck(self, now: Time) -> Iterator[TrialFailed]:
        """Its process lives, which is all that its crew can tell."""
        longest = self._options.longest
        for number, run in self._runs.alive.items():
            row = self._state.open.get(number)
            if row is not None and now - run.iterated > longest:
                error = f"no iteration ended within {longest / SECOND:g} s, the longest it may take"
                yield TrialFailed(number, row.run, error)

    def nowhere(self) -> Iterator[Event]:
        """Who shall leave a place at which it never began has left."""
        for number, row in self._state.open.items():
            if number not in self._runs.alive and row.going is not None:
                yield TrialMoved(number, row.run, self.kept.get(number, 0))
            elif number not in self._runs.alive and row.pausing:
                yield TrialPaused(number, row.run, self.kept.get(number, 0))

    def _too_often(self, trial: int, done: int) -> bool:
        times, far = self._losses.get(trial, (0, 0))
        times = 1 if done > far else times + 1
        self._losses[trial] = times, max(far, done)
        return times >= self._options.retries


def _done(row: TrialRow, iterations: int) -> int:
    return min(row.trial.iterations, max(0, iterations - row.trial.begins))


def _has(gpus: Collection[int] | None, run: Run) -> bool:
    return gpus is None or set(run.work.place.gpus) <= set(gpus)
