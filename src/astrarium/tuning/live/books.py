"""A search on real GPUs: what a crew says becomes events, and what the books say becomes orders.

Nothing here reads a clock or touches a process. `step(now)` takes the news, lets the same engine, session and
policy decide that run simulated, and gives orders. Orders follow from the books alone: what should run and
does not is started, what runs and should not is stopped. A run is started when its own earlier run, and
whoever was on its GPUs, have left in truth.

The books count a trial's own iterations; a crew counts all that its candidate has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.trace import Step
from astrarium.core.units import FOREVER, SECOND, Time
from astrarium.tuning.contract import (
    Event,
    GpusChanged,
    Trial,
    TrialFailed,
    TrialFinished,
    TrialPaused,
    TrialStepped,
)
from astrarium.tuning.live.backend import Checkpoint, Crew, GpusSeen, News, Work
from astrarium.tuning.live.estimates import PRIOR, Beliefs, Estimates
from astrarium.tuning.live.memory import Journal, NoJournal, Options, Reports
from astrarium.tuning.live.news import Newsroom, Run, Runs
from astrarium.tuning.policies import TuningPolicy
from astrarium.tuning.record import TuningRecord, Watch
from astrarium.tuning.runtime import Place
from astrarium.tuning.samplers import Goal, Sampler
from astrarium.tuning.search.contract import Search
from astrarium.tuning.session import Searched, Session
from astrarium.tuning.spaces import Space
from astrarium.tuning.state import TrialRow, TuningState


class LiveTuning:
    """*reports* are what the session asks for worths. *record* is called with every step, for a trace."""

    def __init__(
        self,
        session: Session,
        state: TuningState,
        policy: TuningPolicy,
        crew: Crew,
        reports: Reports,
        journal: Journal | None = None,
        options: Options | None = None,
        beliefs: Beliefs | None = None,
        record: Callable[[Step], None] | None = None,
    ) -> None:
        self.session, self.state, self.runs, self.watch = session, state, Runs(), Watch(state)
        self._crew, self._reports, self._record = crew, reports, record
        self._journal, self._options = journal or NoJournal(), options or Options()
        self._newsroom = Newsroom(state, self.runs, reports, beliefs or Estimates(), self._options)
        self._engine = Searched(state, policy, True, self._recorded, session)
        self._heard: list[News] = []
        self._gpus: tuple[int, ...] | None = None  # None: nothing was seen yet
        self._timers: dict[str, Time] = {}
        self._met: set[int] = set()  # trials that the journal was asked about
        self._began: set[int] = set()  # candidates
        self._known = 0  # trials that an earlier run had ended

    @property
    def over(self) -> str:
        """Why, once it is."""
        return self.session.over

    def run(
        self,
        clock: Callable[[], Time],
        stop: Callable[[], str] = lambda: "",
        after: Callable[[LiveTuning], None] = lambda live: None,
    ) -> None:
        """To the end of the search, or until *stop* says why not. *after* each step, whoever looks on."""
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
        due = min(self._timers.values(), default=FOREVER) - now
        self._heard += self._crew.hear(max(0, min(self._options.patience, due)) / SECOND)

    def step(self, now: Time) -> bool:
        """Whether anything has happened."""
        heard, self._heard = [*self._heard, *self._crew.hear(0.0)], []
        events = [*self._events(now, heard), *self._due(now)]
        happened = bool(events)
        while events:
            self._set_timers(self._engine.step(now, events))
            events = [*self._remembered(), *self._newsroom.nowhere()]
        self._settle(now)
        return happened

    def close(self, now: Time, why: str = "the run was stopped") -> None:
        """Nothing is left open or running."""
        try:
            self.session.close(why)
            self._engine.close(now)
        finally:
            self._crew.close()

    def record(self, policy: str) -> TuningRecord:
        record = self.watch.record(policy, self.session)
        record.remembered = self._known
        return record

    # what is heard

    def _events(self, now: Time, heard: Sequence[News]) -> Iterator[Event]:
        seen = [news.gpus for news in heard if isinstance(news, GpusSeen)]
        for event in self._newsroom.events(now, heard, seen[-1] if seen else None):
            self._write_down(event)
            yield event
        if seen and seen[-1] != self._gpus:
            begins, self._gpus = self._gpus is None, seen[-1]
            yield GpusChanged(self._gpus)
            yield from self.session.begin(len(self._gpus)) if begins else ()

    def _write_down(self, event: Event) -> None:
        """How a trial ends."""
        if not isinstance(event, TrialFinished | TrialFailed):
            return
        row = self.state.open[event.trial]
        candidate, total = row.trial.candidate, row.trial.total
        if isinstance(event, TrialFailed):
            self._journal.failed(candidate, self._values(row), total, event.error)
        else:
            self._journal.finished(candidate, self._values(row), total, self._reports.worth(row.trial))

    def _remembered(self) -> Iterator[Event]:
        """What an earlier run did of trials that have just come."""
        for number, row in self.state.open.items():
            if number not in self._met:
                self._met.add(number)
                yield from self._again(row)

    def _again(self, row: TrialRow) -> Iterator[Event]:
        trial, values = row.trial, self._values(row)
        known = self._journal.result(trial.candidate, values, trial.total)
        kept = self._journal.kept(trial.candidate, values, trial.total) - trial.begins
        self._known += known is not None
        if known is not None and known.error:
            yield TrialFailed(trial.id, row.run, known.error)
        elif known is not None:
            self._reports.hear(trial.id, trial.total, known.value)
            yield TrialFinished(trial.id, row.run)
        elif kept > 0:
            self._newsroom.kept[trial.id] = kept
            made = TrialPaused if row.place is None else TrialStepped
            yield made(trial.id, row.run, kept)

    # timers

    def _due(self, now: Time) -> Iterator[TimerFired]:
        for name in [name for name, at in self._timers.items() if at <= now]:
            del self._timers[name]
            yield TimerFired(name)

    def _set_timers(self, actions: Sequence[object]) -> None:
        for action in actions:
            if isinstance(action, SetTimer):
                self._timers.pop(action.name, None)
                if action.at < FOREVER:
                    self._timers[action.name] = action.at

    # what is ordered

    def _settle(self, now: Time) -> None:
        for run in list(self.runs.alive.values()):
            if not run.asked:
                self._ask_to_leave(run)
        for number, row in self.state.open.items():
            if row.settled and number not in self.runs.alive and row.place and self.runs.clear(row.place):
                self._start(now, row, row.place)

    def _ask_to_leave(self, run: Run) -> None:
        row, work = self.state.open.get(run.work.trial), run.work
        if row is None:
            run.asked = True
            self._crew.drop(work.trial, work.run)
        elif not row.settled or row.place != work.place:
            run.asked = True
            self._crew.stop(work.trial, work.run)

    def _start(self, now: Time, row: TrialRow, place: Place) -> None:
        trial, values = row.trial, self._values(row)
        if trial.candidate not in self._began:
            self._began.add(trial.candidate)
            self._journal.began(trial.candidate, values)
        start = _checkpoint(trial, self._newsroom.kept.get(trial.id, 0))
        work = Work(trial.id, row.run, trial.candidate, values, place, trial.total, start)
        self.runs.begin(now, work, self._newsroom.left.pop(trial.id, None))
        self._crew.start(work)

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
    crew: Crew,
    goal: Goal = "min",
    target: float | None = None,
    space: Space | None = None,
    state: TuningState | None = None,
    **more: Any,
) -> LiveTuning:
    """All of it put together. *more*: what else `LiveTuning` takes."""
    reports = Reports()
    session = Session(search, sampler, reports.worth, goal, target, space)
    return LiveTuning(session, state or TuningState(runtime=PRIOR), policy, crew, reports, **more)


def _checkpoint(trial: Trial, kept: int) -> Checkpoint | None:
    """Its own, where it has trained; else the one it begins with, which may be another's."""
    if kept:
        return Checkpoint(trial.candidate, trial.begins + kept)
    if trial.begins:
        return Checkpoint(trial.candidate if trial.source is None else trial.source, trial.begins)
    return None
