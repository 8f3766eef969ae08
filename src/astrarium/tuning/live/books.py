"""The live books run a search on real GPUs: a backend's news become events, and decisions become orders.

Nothing here reads a clock or touches a process. `step(now)` takes the news, lets the same engine, session and
policy decide that run simulated, and gives orders. Orders follow from the books alone: what should run and
does not is started, what runs and should not is stopped. A run is started when the trial's earlier run, and
all runs on its GPUs, have really left.

The books count a trial's own iterations; a backend counts all that its candidate has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import median
from typing import Any

from astrarium.core.quantities import SECOND, Time
from astrarium.core.timers import Timers
from astrarium.core.trace import Step
from astrarium.tuning import contract
from astrarium.tuning.live.backend import (
    Checkpoint,
    GpusSeen,
    Iterated,
    Journal,
    LiveOptions,
    News,
    Reports,
    RunEnded,
    TrialBackend,
    Work,
)
from astrarium.tuning.live.estimates import PRIOR, Estimates
from astrarium.tuning.policies import TuningPolicy
from astrarium.tuning.record import TuningRecord, Watch
from astrarium.tuning.runtime import Place
from astrarium.tuning.samplers import Goal, Sampler
from astrarium.tuning.search.contract import Search
from astrarium.tuning.session import Session, SessionEngine
from astrarium.tuning.spaces import Space
from astrarium.tuning.state import TrialRow, TuningState


@dataclass
class LiveRun:
    """A live run was started by the backend, and its end has not been reported."""

    work: Work
    left: Time | None  # when the trial had left its old place, if it moved
    iterated: Time  # when its last iteration ended; before the first, when it was ordered
    crowd: float = 0.0  # of its GPU, at that instant
    told: Time | None = None  # when the books last heard of its progress
    fresh: bool = True  # no iteration has ended yet
    asked: bool = False  # to leave


@dataclass
class _Crowd:
    """A crowd counts the trials on a GPU, and sums that number up over time."""

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
    _crowds: dict[int, _Crowd] = field(default_factory=dict)  # by GPU

    def current(self, trial: int, run: int) -> LiveRun | None:
        """Return the run of that number; None where the news is late."""
        found = self.alive.get(trial)
        return found if found is not None and found.work.run == run else None

    def clear(self, place: Place) -> bool:
        """Tell whether the place really has room."""
        others = [run.work.place for run in self.alive.values()]
        return all(
            sum((each.share for each in others if gpu in each.gpus), Fraction(0)) + place.share <= 1
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
        crowd = run.crowd
        run.iterated = now
        run.crowd = area
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


MOVES = 9  # so many of the last moves tell what a move costs
CHANGE = 0.1


class NewsTranslator:
    """The translator turns a backend's news into events of the tuning level."""

    def __init__(
        self, state: TuningState, runs: LiveRuns, reports: Reports, beliefs: Estimates, options: LiveOptions
    ) -> None:
        self._state = state
        self._runs = runs
        self._reports = reports
        self._beliefs = beliefs
        self._options = options
        self.left: dict[int, Time] = {}  # by moving trial: when it left its old place
        self.kept: dict[int, int] = {}  # by trial: iterations in its newest checkpoint
        self._moves: deque[Time] = deque(maxlen=MOVES)
        self._losses: dict[int, tuple[int, int]] = {}  # by trial: losses, and most iterations done

    def events(
        self, now: Time, heard: Sequence[News], gpus: Collection[int] | None
    ) -> Iterator[contract.Event]:
        """Yield the events that follow from news. *gpus* are those left, where the news told of them."""
        steps = dict[int, Iterated]()
        ends = list[contract.Event]()
        for news in heard:
            if isinstance(news, Iterated) and self._iterated(now, news):
                steps[news.trial] = news
            elif isinstance(news, RunEnded):
                ends += self._ended(now, news, gpus)
        measured = self._beliefs.news()
        yield from self._progress(now, steps, measured)
        yield from (contract.RuntimeMeasured(candidate, runtime) for candidate, runtime in measured.items())
        yield from self._moving()
        yield from ends
        yield from self._stuck(now)

    # iterations

    def _iterated(self, now: Time, news: Iterated) -> bool:
        """Measure an iteration; tell whether it belongs to a run of an open trial."""
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
    ) -> Iterator[contract.TrialStepped]:
        """Yield progress when it is due. Where an estimate changes, the books must know the exact progress
        first: they would interpolate with the old one."""
        for number, news in steps.items():
            row = self._state.open[number]
            run = self._runs.current(number, news.run)
            if run is None:  # the run has ended, which says more
                continue
            due = run.told is None or now - run.told >= self._options.progress
            if due or row.trial.candidate in measured:
                run.told = now
                yield contract.TrialStepped(number, row.run, _done(row, news.iterations))

    def _moving(self) -> Iterator[contract.MovingMeasured]:
        if self._moves:
            cost = round(median(self._moves))
            if abs(cost - self._state.moving) > CHANGE * self._state.moving:
                yield contract.MovingMeasured(cost)

    # ends

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
        blameless = (run.asked and news.ending == "left") or not there
        if not blameless and self._too_often(news.trial, done):
            error = f"its runs were lost {self._options.retries + 1} times, and it got no further"
            return contract.TrialFailed(
                news.trial, row.run, f"{error}: {news.error}" if news.error else error
            )
        if row.going is not None:
            self.left[news.trial] = now
            return contract.TrialMoved(news.trial, row.run, done)
        if row.settled and row.place != run.work.place:  # the policy put it elsewhere before it had left
            return contract.TrialStepped(news.trial, row.run, done)
        return contract.TrialPaused(news.trial, row.run, done)

    def _stuck(self, now: Time) -> Iterator[contract.TrialFailed]:
        """Fail trials whose iteration takes too long: a backend can only tell that their processes live."""
        longest = self._options.longest
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
        times, far = self._losses.get(trial, (0, 0))
        times = 1 if done > far else times + 1
        self._losses[trial] = times, max(far, done)
        return times > self._options.retries


def _done(row: TrialRow, iterations: int) -> int:
    return min(row.trial.iterations, max(0, iterations - row.trial.begins))


class LiveTuning:
    """A live tuning drives session, books and backend. The session asks *reports* for values; *record* is
    called with every step, for a trace."""

    def __init__(
        self,
        session: Session,
        state: TuningState,
        policy: TuningPolicy,
        backend: TrialBackend,
        reports: Reports,
        journal: Journal | None = None,
        options: LiveOptions | None = None,
        beliefs: Estimates | None = None,
        record: Callable[[Step], None] | None = None,
    ) -> None:
        self.session = session
        self.state = state
        self.runs = LiveRuns()
        self.watch = Watch(state)
        self._backend = backend
        self._reports = reports
        self._record = record
        self._journal = journal or Journal()
        self._options = options or LiveOptions()
        self._translator = NewsTranslator(state, self.runs, reports, beliefs or Estimates(), self._options)
        self._engine = SessionEngine(state, policy, True, self._recorded, session)
        self._heard: list[News] = []
        self._gpus: tuple[int, ...] | None = None  # None: nothing was seen yet
        self._timers = Timers()
        self._met: set[int] = set()  # trials that the journal was asked about
        self._began: set[int] = set()  # candidates
        self._known = 0  # trials that an earlier run had ended

    @property
    def over(self) -> str:
        """Return why the search is over; empty while it is not."""
        return self.session.over

    def run(
        self,
        clock: Callable[[], Time],
        stop: Callable[[], str] = lambda: "",
        after: Callable[[LiveTuning], None] = lambda live: None,
    ) -> None:
        """Run until the search ends, or *stop* returns a reason. *after* is called after each step."""
        why = "the run broke off"
        try:
            while not self.over and not (why := stop()):
                self.listen(clock())
                if self.step(clock()):
                    after(self)
        finally:
            self.close(clock(), why)

    def listen(self, now: Time) -> None:
        """Wait for news, but no longer than to the next timer."""
        due = self._timers.earliest - now
        self._heard += self._backend.hear(max(0, min(self._options.patience, due)) / SECOND)

    def step(self, now: Time) -> bool:
        """Handle the news, decide and give orders; tell whether anything has happened."""
        heard = [*self._heard, *self._backend.hear(0.0)]
        self._heard = []
        events = [*self._events(now, heard), *self._timers.due(now)]
        happened = bool(events)
        while events:
            self._timers.taken(self._engine.step(now, events))
            events = [*self._known_results(), *self._translator.never_began()]
        self._settle(now)
        return happened

    def close(self, now: Time, why: str = "the run was stopped") -> None:
        """Close session, books and backend: nothing is left open or running."""
        try:
            self.session.close(why)
            self._engine.close(now)
        finally:
            self._backend.close()

    def record(self, policy: str) -> TuningRecord:
        record = self.watch.record(policy, self.session)
        record.remembered = self._known
        return record

    # what is heard

    def _events(self, now: Time, heard: Sequence[News]) -> Iterator[contract.Event]:
        seen = [news.gpus for news in heard if isinstance(news, GpusSeen)]
        for event in self._translator.events(now, heard, seen[-1] if seen else None):
            self._write_down(event)
            yield event
        if seen and seen[-1] != self._gpus:
            begins = self._gpus is None
            self._gpus = seen[-1]
            yield contract.GpusChanged(self._gpus)
            yield from self.session.begin(len(self._gpus)) if begins else ()

    def _write_down(self, event: contract.Event) -> None:
        """Write the end of a trial to the journal."""
        if not isinstance(event, contract.TrialFinished | contract.TrialFailed):
            return
        row = self.state.open[event.trial]
        candidate = row.trial.candidate
        total = row.trial.total
        if isinstance(event, contract.TrialFailed):
            self._journal.failed(candidate, self._values(row), total, event.error)
        else:
            self._journal.finished(candidate, self._values(row), total, self._reports.worth(row.trial))

    def _known_results(self) -> Iterator[contract.Event]:
        """Yield what an earlier run did of trials that have just come."""
        for number, row in self.state.open.items():
            if number not in self._met:
                self._met.add(number)
                yield from self._resumed(row)

    def _resumed(self, row: TrialRow) -> Iterator[contract.Event]:
        trial = row.trial
        values = self._values(row)
        known = self._journal.result(trial.candidate, values, trial.total)
        kept = self._journal.kept(trial.candidate, values, trial.total) - trial.begins
        self._known += known is not None
        if known is not None and known.error:
            yield contract.TrialFailed(trial.id, row.run, known.error)
        elif known is not None:
            self._reports.hear(trial.id, trial.total, known.value)
            yield contract.TrialFinished(trial.id, row.run)
        elif kept > 0:
            self._translator.kept[trial.id] = kept
            made = contract.TrialPaused if row.place is None else contract.TrialStepped
            yield made(trial.id, row.run, kept)

    # what is ordered

    def _settle(self, now: Time) -> None:
        for run in list(self.runs.alive.values()):
            if not run.asked:
                self._ask_to_leave(run)
        for number, row in self.state.open.items():
            if row.settled and number not in self.runs.alive and row.place and self.runs.clear(row.place):
                self._start(now, row, row.place)

    def _ask_to_leave(self, run: LiveRun) -> None:
        row = self.state.open.get(run.work.trial)
        work = run.work
        if row is None:
            run.asked = True
            self._backend.drop(work.trial, work.run)
        elif not row.settled or row.place != work.place:
            run.asked = True
            self._backend.stop(work.trial, work.run)

    def _start(self, now: Time, row: TrialRow, place: Place) -> None:
        trial = row.trial
        values = self._values(row)
        if trial.candidate not in self._began:
            self._began.add(trial.candidate)
            self._journal.began(trial.candidate, values)
        start = _checkpoint(trial, self._translator.kept.get(trial.id, 0))
        work = Work(trial.id, row.run, trial.candidate, values, place, trial.total, start)
        self.runs.begin(now, work, self._translator.left.pop(trial.id, None))
        self._backend.start(work)

    def _values(self, row: TrialRow) -> Mapping[str, Any]:
        return self.session.candidates[row.trial.candidate].values

    def _recorded(self, step: Step) -> None:
        self.watch(step)
        if self._record is not None:
            self._record(step)


def live_tuning(
    search: Search,
    sampler: Sampler,
    policy: TuningPolicy,
    backend: TrialBackend,
    goal: Goal = "min",
    target: float | None = None,
    space: Space | None = None,
    state: TuningState | None = None,
    **more: Any,
) -> LiveTuning:
    """Put a live tuning together. *more* is what else `LiveTuning` takes."""
    reports = Reports()
    session = Session(search, sampler, reports.worth, goal, target, space)
    return LiveTuning(session, state or TuningState(runtime=PRIOR), policy, backend, reports, **more)


def _checkpoint(trial: contract.Trial, kept: int) -> Checkpoint | None:
    """Return the trial's own checkpoint where it has trained; else the one it begins with."""
    if kept:
        return Checkpoint(trial.candidate, trial.begins + kept)
    if trial.begins:
        return Checkpoint(trial.candidate if trial.source is None else trial.source, trial.begins)
    return None
