"""A backend's news are translated into the events that state and policy hear."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from astrarium.core.quantities import SECOND, Time
from astrarium.tuning import contract
from astrarium.tuning.live.backend import Iterated, News, RunEnded
from astrarium.tuning.live.estimates import Estimates
from astrarium.tuning.live.loop.limits import LiveLimits
from astrarium.tuning.live.loop.reports import Reports
from astrarium.tuning.live.loop.runs import LiveRun, LiveRuns
from astrarium.tuning.state import TrialRow, TuningState

MOVES = 9  # so many of the last moves tell what a move costs
CHANGE = 0.1


class NewsTranslator:
    """The translator knows which run each trial has, and leaves out news of runs that are over."""

    def __init__(
        self, state: TuningState, runs: LiveRuns, reports: Reports, estimates: Estimates, limits: LiveLimits
    ) -> None:
        self._state = state
        self._runs = runs
        self._reports = reports
        self._estimates = estimates
        self._limits = limits
        self.left_at: dict[int, Time] = {}  # by moving trial: when it left its old place
        self.kept: dict[int, int] = {}  # by trial: iterations in its newest checkpoint
        self._moves: deque[Time] = deque(maxlen=MOVES)
        self._losses: dict[int, _Losses] = {}  # by trial

    def events(
        self, now: Time, all_news: Sequence[News], gpus: Collection[int] | None
    ) -> Iterator[contract.Event]:
        """Yield the events that follow from news. *gpus* are those left, where the news say so."""
        steps = dict[int, Iterated]()
        ends = list[contract.Event]()
        for news in all_news:
            if isinstance(news, Iterated) and self._iterated(now, news):
                steps[news.trial] = news
            elif isinstance(news, RunEnded):
                ends += self._ended(now, news, gpus)
        measured = self._estimates.news()
        yield from self._progress(now, steps, measured)
        yield from (contract.RuntimeMeasured(candidate, runtime) for candidate, runtime in measured.items())
        yield from self._moving()
        yield from ends
        yield from self._stuck(now)

    def _iterated(self, now: Time, news: Iterated) -> bool:
        """Measure an iteration; tell whether it belongs to a run of an open trial."""
        run = self._runs.current(news.trial, news.run)
        if run is None or news.trial not in self._state.open:
            return False
        self._reports.hear(news.trial, news.iterations, news.value, news.metrics)
        if run.first and run.left is not None:
            self._moves.append(max(0, now - news.took - run.left))
        counted = self._runs.sharers(now, run)
        sharers = counted if news.sharers is None else news.sharers
        self._estimates.seen(run.work.candidate, len(run.work.place.gpus), sharers, news.took, run.first)
        run.first = False
        return True

    def _progress(
        self, now: Time, steps: dict[int, Iterated], measured: Collection[int]
    ) -> Iterator[contract.TrialStepped]:
        """Yield progress when it is due. Where an estimate changes, the state must know the exact progress
        first: it would interpolate with the old one."""
        for number, news in steps.items():
            row = self._state.open[number]
            run = self._runs.current(number, news.run)
            if run is None:  # the run has ended, which says more
                continue
            due = run.progressed is None or now - run.progressed >= self._limits.progress
            if due or row.trial.candidate in measured:
                run.progressed = now
                yield contract.TrialStepped(number, row.run, _done(row, news.iterations))

    def _moving(self) -> Iterator[contract.MovingMeasured]:
        if self._moves:
            cost = round(median(self._moves))
            if abs(cost - self._state.moving) > CHANGE * self._state.moving:
                yield contract.MovingMeasured(cost)

    def _ended(self, now: Time, news: RunEnded, gpus: Collection[int] | None) -> Iterator[contract.Event]:
        run = self._runs.current(news.trial, news.run)
        row = self._state.open.get(news.trial)
        if run is None:
            return
        self._runs.end(now, run)
        if row is None:  # the trial has been withdrawn
            return
        if news.ending == "failed":
            yield contract.TrialFailed(news.trial, row.run, news.error or "it failed without a word")
        elif news.ending == "finished" or self._was_done(row, news):
            self._reports.hear(news.trial, row.trial.total, news.value)
            yield contract.TrialFinished(news.trial, row.run)
        else:
            yield self._goes_on(now, news, row, run, gpus)

    def _was_done(self, row: TrialRow, news: RunEnded) -> bool:
        """Tell whether a lost run had its total and reported its value, but could not report its end."""
        total = row.trial.total
        return news.iterations >= total and self._reports.last(news.trial).iterations == total

    def _goes_on(
        self, now: Time, news: RunEnded, row: TrialRow, run: LiveRun, gpus: Collection[int] | None
    ) -> contract.Event:
        done = _done(row, news.iterations)
        if done == row.trial.iterations:  # its value is not known: it trains once more
            done = 0
        self.kept[news.trial] = done
        there = gpus is None or set(run.work.place.gpus) <= set(gpus)
        blameless = (run.leaving and news.ending == "left") or not there
        if not blameless and self._too_often(news.trial, done):
            error = f"its runs were lost {self._limits.retries + 1} times, and it got no further"
            return contract.TrialFailed(
                news.trial, row.run, f"{error}: {news.error}" if news.error else error
            )
        if row.going is not None:
            self.left_at[news.trial] = now
            return contract.TrialMoved(news.trial, row.run, done)
        if row.settled and row.place != run.work.place:  # the policy put it elsewhere before it had left
            return contract.TrialStepped(news.trial, row.run, done)
        return contract.TrialPaused(news.trial, row.run, done)

    def _stuck(self, now: Time) -> Iterator[contract.TrialFailed]:
        """Fail trials whose iteration takes too long: a backend can only tell that their processes live."""
        longest = self._limits.longest
        for number, run in self._runs.alive.items():
            row = self._state.open.get(number)
            if row is not None and now - run.iterated > longest:
                error = f"no iteration ended within {longest / SECOND:g} s, the longest it may take"
                yield contract.TrialFailed(number, row.run, error)

    def never_began(self) -> Iterator[contract.Event]:
        """Yield that a trial has left its place where it never began to run there."""
        for number, row in self._state.open.items():
            if number not in self._runs.alive and row.going is not None:
                yield contract.TrialMoved(number, row.run, self.kept.get(number, 0))
            elif number not in self._runs.alive and row.pausing:
                yield contract.TrialPaused(number, row.run, self.kept.get(number, 0))

    def _too_often(self, trial: int, done: int) -> bool:
        losses = self._losses.setdefault(trial, _Losses())
        losses.count = 1 if done > losses.furthest else losses.count + 1
        losses.furthest = max(losses.furthest, done)
        return losses.count > self._limits.retries


@dataclass
class _Losses:
    """A trial's runs were lost *count* times without getting further than *furthest* iterations."""

    count: int = 0
    furthest: int = 0


def _done(row: TrialRow, iterations: int) -> int:
    return min(row.trial.iterations, max(0, iterations - row.trial.begins))
