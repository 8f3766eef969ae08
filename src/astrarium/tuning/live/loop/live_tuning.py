"""A live tuning joins session, state and policy with a backend that really trains.

Orders follow from the state alone: what should run and does not is started, what runs and should not is
stopped. A run is started when the trial's earlier run, and all runs on its GPUs, have really left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from astrarium.core.quantities import SECOND, Time
from astrarium.core.timers import Timers
from astrarium.core.trace import Step
from astrarium.run.waiting import waiting
from astrarium.tuning import contract
from astrarium.tuning.live.backend import Checkpoint, GpusSeen, News, TrialBackend, Work
from astrarium.tuning.live.estimates import PRIOR, Estimates
from astrarium.tuning.live.loop.journal import Journal
from astrarium.tuning.live.loop.limits import LiveLimits
from astrarium.tuning.live.loop.reports import Reports
from astrarium.tuning.live.loop.runs import LiveRun, LiveRuns
from astrarium.tuning.live.loop.translator import NewsTranslator
from astrarium.tuning.policies import TuningPolicy
from astrarium.tuning.record import TuningRecord, Watch
from astrarium.tuning.runtime import Place
from astrarium.tuning.samplers import Goal, Sampler
from astrarium.tuning.search.contract import Search
from astrarium.tuning.session import Session, SessionEngine
from astrarium.tuning.spaces import Space
from astrarium.tuning.state import TrialRow, TuningState


class LiveTuning:
    """The session asks *reports* for values; *record* is called with every step, for a trace."""

    def __init__(
        self,
        session: Session,
        state: TuningState,
        policy: TuningPolicy,
        backend: TrialBackend,
        reports: Reports,
        journal: Journal | None = None,
        limits: LiveLimits | None = None,
        estimates: Estimates | None = None,
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
        self._limits = limits or LiveLimits()
        self._translator = NewsTranslator(state, self.runs, reports, estimates or Estimates(), self._limits)
        self._engine = SessionEngine(state, policy, True, self._recorded, session)
        self._news: list[News] = []
        self._gpus: tuple[int, ...] | None = None  # None: nothing was seen yet
        self._timers = Timers()
        self._looked_up: set[int] = set()  # trials, in the journal
        self._written: set[int] = set()  # candidates, to the journal
        self._remembered = 0  # trials that an earlier run had ended
        self.remembered_iterations = 0  # of an earlier run

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
        """Run until the search ends, or *stop* returns a reason: then trials save what they have learnt.
        *after* is called after each step."""
        why = "the run broke off"
        try:
            while not self.over and not (why := stop()):
                self.listen(clock())
                if self.step(clock()):
                    after(self)
            if not self.over:
                self.leave(clock)
        finally:
            self.close(clock(), why)

    def listen(self, now: Time) -> None:
        """Wait for news, but no longer than to the next timer."""
        due = self._timers.earliest - now
        self._news += self._backend.hear(max(0, min(self._limits.patience, due)) / SECOND)

    def step(self, now: Time) -> bool:
        """Handle the news, decide and give orders; tell whether anything has happened."""
        all_news = [*self._news, *self._backend.hear(0.0)]
        self._news = []
        events = [*self._events(now, all_news), *self._timers.due(now)]
        observed = self._observe(now)
        happened = bool(events) or observed
        while events or self.session.reached:
            self._timers.set_from(self._engine.step(now, events))
            events = [*self._known_results(now), *self._translator.never_began()]
        self._settle(now)
        return happened

    def leave(self, clock: Callable[[], Time]) -> None:
        """Let every run end after its iteration with a checkpoint, from which a later search goes on. One who
        interrupts again does not wait for them."""
        for run in self.runs.alive.values():
            if not run.leaving:
                run.leaving = True
                self._backend.stop(run.work.trial, run.work.run)
        until = clock() + self._limits.leaving
        doing = waiting("trials end their iterations and save what they have learnt (Ctrl-C: do not wait)")
        with suppress(KeyboardInterrupt), doing:
            while self.runs.alive and (now := clock()) < until:
                self._news += self._backend.hear(min(self._limits.patience, until - now) / SECOND)
                self._hear_leaving(clock())

    def _hear_leaving(self, now: Time) -> None:
        """Note values and results of runs that leave; nothing is decided any more."""
        news = self._news
        self._news = []
        for event in self._translator.events(now, news, None):
            self._write_down(event)
        self._observe(now)

    def close(self, now: Time, why: str = "the run was stopped") -> None:
        """Close session, engine and backend: nothing is left open or running."""
        try:
            self.session.close(why)
            self._engine.close(now)
        finally:
            self._backend.close()

    def record(self, policy: str) -> TuningRecord:
        record = self.watch.record(policy, self.session)
        record.remembered = self._remembered
        return record

    def _events(self, now: Time, all_news: Sequence[News]) -> Iterator[contract.Event]:
        seen = [news.gpus for news in all_news if isinstance(news, GpusSeen)]
        for event in self._translator.events(now, all_news, seen[-1] if seen else None):
            self._write_down(event)
            yield event
        if seen and seen[-1] != self._gpus:
            begins = self._gpus is None
            self._gpus = seen[-1]
            yield contract.GpusChanged(self._gpus)
            yield from self.session.begin(len(self._gpus)) if begins else ()

    def _observe(self, now: Time) -> bool:
        """Hand the session what trials have reported; tell whether any of it was news."""
        observed = False
        for trial, report in self._reports.take_new():
            row = self.state.open.get(trial)
            if row is not None and self.session.observe(now, trial, *report):
                self._journal.reported(row.trial.candidate, self._values(row), report)
                observed = True
        return observed

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

    def _known_results(self, now: Time) -> Iterator[contract.Event]:
        """Yield what an earlier run did of trials that have just come."""
        for number, row in self.state.open.items():
            if number not in self._looked_up:
                self._looked_up.add(number)
                yield from self._resumed(now, row)

    def _resumed(self, now: Time, row: TrialRow) -> Iterator[contract.Event]:
        trial = row.trial
        values = self._values(row)
        result = self._journal.result(trial.candidate, values, trial.total)
        kept = self._journal.kept(trial.candidate, values, trial.total) - trial.begins
        self._remembered += result is not None
        self.remembered_iterations += max(0, kept) if result is None else trial.iterations
        learnt = trial.begins + max(0, kept) if result is None else trial.total
        for report in self._journal.curve(trial.candidate, values, learnt):
            self.session.observe(now, trial.id, *report)
        if result is not None and result.error:
            yield contract.TrialFailed(trial.id, row.run, result.error)
        elif result is not None:
            self._reports.hear(trial.id, trial.total, result.value)
            yield contract.TrialFinished(trial.id, row.run)
        elif kept > 0:
            self._translator.kept[trial.id] = kept
            event = contract.TrialPaused if row.place is None else contract.TrialStepped
            yield event(trial.id, row.run, kept)

    def _settle(self, now: Time) -> None:
        """Give the orders that make what runs what the state says."""
        for run in list(self.runs.alive.values()):
            if not run.leaving:
                self._ask_to_leave(run)
        for number, row in self.state.open.items():
            if row.settled and number not in self.runs.alive and row.place and self.runs.clear(row.place):
                self._start(now, row, row.place)

    def _ask_to_leave(self, run: LiveRun) -> None:
        row = self.state.open.get(run.work.trial)
        work = run.work
        if row is None:
            run.leaving = True
            self._backend.drop(work.trial, work.run)
        elif not row.settled or row.place != work.place:
            run.leaving = True
            self._backend.stop(work.trial, work.run)

    def _start(self, now: Time, row: TrialRow, place: Place) -> None:
        trial = row.trial
        values = self._values(row)
        if trial.candidate not in self._written:
            self._written.add(trial.candidate)
            self._journal.began(trial.candidate, values)
        start = _checkpoint(trial, self._translator.kept.get(trial.id, 0))
        best = self.session.pool.best_of(trial.candidate)
        work = Work(trial.id, row.run, trial.candidate, values, place, trial.total, start, best)
        self.runs.begin(now, work, self._translator.left_at.pop(trial.id, None))
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
