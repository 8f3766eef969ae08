"""A session joins a search, its sampler and the books; it is the same object simulated and live.

`SessionEngine` is an engine whose session hears events before the policy does. What the search wants next
arrives in the same step, so that no policy gives away GPUs that the next trial needs at that very instant.
Recorded steps have those arrivals among their events: a replay needs no search.

A candidate's value is not an event, and no policy hears it. A session asks for the value when a trial has
finished: a simulation knows the truth, a live run what the trial has reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import isfinite
from typing import Any, NamedTuple

from astrarium.core.engine import Engine
from astrarium.core.errors import BrokenBooks, InputError
from astrarium.core.streams import stream
from astrarium.core.units import Time
from astrarium.tuning.contract import (
    Action,
    Event,
    GpusChanged,
    GroupArrived,
    Trial,
    TrialFailed,
    TrialFinished,
    TrialWithdrawn,
)
from astrarium.tuning.samplers import Configuration, Goal, Sampler, Standing
from astrarium.tuning.search.contract import Results, Search, Want
from astrarium.tuning.spaces import STEP, Space
from astrarium.tuning.state import TuningState


class CandidateScore(NamedTuple):
    at: Time
    iterations: int  # in all
    value: float


@dataclass
class Candidate:
    number: int
    configuration: Configuration
    source: int | None = None  # the candidate whose checkpoint it began with
    done: int = 0  # iterations in its checkpoint
    history: list[CandidateScore] = field(default_factory=list)
    standing: Standing = Standing.OPEN
    reason: str = ""

    @property
    def values(self) -> dict[str, Any]:
        return self.configuration.values

    @property
    def value(self) -> float | None:
        """Return the candidate's last value; None before the first."""
        return self.history[-1].value if self.history else None


class Candidates:
    """The candidates are what a search algorithm sees as its pool. *space* limits the values of a copy;
    without one, the numbers of a copy are changed and everything else stays."""

    def __init__(self, sampler: Sampler, goal: Goal, space: Space | None = None) -> None:
        self.all: dict[int, Candidate] = {}
        self.workers = 1  # GPUs, as far as is known
        self._sampler, self._sign, self._space = sampler, 1 if goal == "min" else -1, space or {}
        self._groups = 0

    # what a search asks

    def group(self) -> int:
        self._groups += 1
        return self._groups - 1

    def new(self) -> int | None:
        found = self._sampler.ask()
        return None if found is None else self._add(found).number

    def copy(self, source: int, seed: int) -> int:
        model = self.all[source]
        chance = stream(seed, "copy", len(self.all)).random(len(model.values))
        added = self._add(self._sampler.adopt(self._changed(model.values, chance)))
        added.source, added.done = source, model.done
        return added.number

    def stop(self, candidates: Iterable[int]) -> None:
        self._end_all(candidates, Standing.STOPPED, "others were better")

    def complete(self, candidates: Iterable[int]) -> None:
        self._end_all(candidates, Standing.COMPLETE, "")

    def ranked(self, results: Results) -> list[int]:
        worth = {number: value for number, value in results.items() if value is not None}
        return sorted(worth, key=lambda number: (self._sign * worth[number], number))

    # what its session does

    def better(self, value: float, than: float | None) -> bool:
        return than is None or self._sign * value < self._sign * than

    def reached(self, value: float, target: float) -> bool:
        return self._sign * value <= self._sign * target

    def score(self, candidate: Candidate, now: Time, iterations: int, value: float) -> None:
        candidate.done = iterations
        candidate.history.append(CandidateScore(now, iterations, value))

    def report(self, candidate: Candidate) -> bool:
        """Tell the sampler the candidate's last value; return True if the sampler's library would stop it."""
        _, iterations, value = candidate.history[-1]
        return self._sampler.report(candidate.configuration.id, iterations, value)

    def end(self, candidate: Candidate, standing: Standing, reason: str) -> None:
        """Record how a candidate ended; only its first end counts."""
        if candidate.standing is Standing.OPEN:
            candidate.standing, candidate.reason = standing, reason
            self._sampler.tell(candidate.configuration.id, candidate.value, standing)

    # helpers

    def _add(self, configuration: Configuration) -> Candidate:
        number = len(self.all)
        self.all[number] = Candidate(number, configuration)
        return self.all[number]

    def _end_all(self, numbers: Iterable[int], standing: Standing, reason: str) -> None:
        for number in numbers:
            self.end(self.all[number], standing, reason)

    def _changed(self, values: Mapping[str, Any], chance: Iterable[float]) -> dict[str, Any]:
        pairs = zip(values.items(), chance, strict=True)
        return {name: self._near(name, value, up=part < 0.5) for (name, value), part in pairs}

    def _near(self, name: str, value: Any, up: bool) -> Any:
        if name in self._space:
            return self._space[name].near(value, up)
        if isinstance(value, float):
            return value * STEP if up else value / STEP
        return value


ENDS = TrialFinished | TrialFailed | TrialWithdrawn

# A candidate's value at the end of the trial; None where nothing was reported.
Worth = Callable[[Trial], float | None]


class Best(NamedTuple):
    at: Time
    candidate: int
    value: float


class Session:
    """A session turns the ends of trials into what the search wants next. *target* is a value that is good
    enough: the search ends with the first candidate that reaches it."""

    def __init__(
        self,
        search: Search,
        sampler: Sampler,
        worth: Worth,
        goal: Goal = "min",
        target: float | None = None,
        space: Space | None = None,
    ) -> None:
        if sampler.goal not in (None, goal):
            raise InputError("goal", goal, f"{sampler.goal}, as the sampler was told")
        self.pool = Candidates(sampler, goal, space)
        self.best: list[Best] = []  # each better than those before
        self.over = ""  # why the search is over; empty while it is not
        self._course, self._worth, self._target = search.run(self.pool), worth, target
        self._each = False
        self._open: dict[int, Trial] = {}
        self._results: dict[int, _Result] = {}  # by candidate, that the search has not heard
        self._trials = 0

    @property
    def candidates(self) -> dict[int, Candidate]:
        return self.pool.all

    def begin(self, gpus: int | None = None) -> list[Event]:
        """Return the events with which the search begins. *gpus* is their number, for searches that ask."""
        if gpus is not None:
            self.pool.workers = max(1, gpus)
        return [*self._ask_search(None), *self._advance()]

    def hear(self, now: Time, events: Sequence[Event], state: TuningState) -> list[Event]:
        """Return the events that follow from *events*, which the books have not heard yet."""
        before = len(self._results)
        for event in events:
            if isinstance(event, GpusChanged):
                self.pool.workers = max(1, len(event.gpus))
            trial = self._ended(event, state)
            if trial is not None:
                self._results[trial.candidate] = self._result(now, trial, event)
        if self.over or len(self._results) == before:
            return []
        if self._target is not None and self.best and self.pool.reached(self.best[-1].value, self._target):
            return list(self._stop("the target is reached"))
        return list(self._advance())

    def close(self, why: str = "the run ended before the search did") -> None:
        """End the search and every candidate that is still open."""
        if not self.over:
            list(self._stop(why))

    # results

    def _ended(self, event: Event, state: TuningState) -> Trial | None:
        """Return the trial that ends with this event; None for late news."""
        if not isinstance(event, ENDS):
            return None
        row = state.open.get(event.trial)
        if row is None or (not isinstance(event, TrialWithdrawn) and row.run != event.run):
            return None
        return self._open.pop(event.trial, None)

    def _result(self, now: Time, trial: Trial, event: Event) -> _Result:
        if isinstance(event, TrialFailed):
            return _Result(None, Standing.FAILED, event.error)
        if isinstance(event, TrialWithdrawn):
            return _Result(None, Standing.WITHDRAWN, "it was withdrawn")
        value = self._worth(trial)
        if value is None or not isfinite(value):
            return _Result(None, Standing.FAILED, f"its value is no number: {value}")
        self.pool.score(self.candidates[trial.candidate], now, trial.total, value)
        if self.pool.better(value, self.best[-1].value if self.best else None):
            self.best.append(Best(now, trial.candidate, value))
        return _Result(value)

    def _tell_sampler(self) -> Results:
        """Tell the sampler all new results, in the order in which candidates were drawn, so that the order of
        finishing does not matter."""
        results, self._results = self._results, {}
        return {number: self._tell_result(number, results[number]) for number in sorted(results)}

    def _tell_result(self, number: int, result: _Result) -> float | None:
        candidate = self.candidates[number]
        if result.value is None:
            self.pool.end(candidate, result.standing, result.reason)
        elif self.pool.report(candidate):
            self.pool.end(candidate, Standing.STOPPED, "the sampler's library stopped it")
        return result.value if candidate.standing is Standing.OPEN else None

    # what comes next

    def _advance(self) -> Iterator[Event]:
        """Yield what the search wants until it has to wait."""
        while not self.over and (not self._open or (self._each and self._results)):
            if self._each and not self._results:
                raise BrokenBooks("the search waits for results, and nothing runs")
            yield from self._ask_search(self._tell_sampler())

    def _ask_search(self, results: Results | None) -> Iterator[Event]:
        try:
            wanted = next(self._course) if results is None else self._course.send(results)
        except StopIteration:
            yield from self._stop("the search is done")
            return
        self._each = wanted.each
        for group, wants in groupby(sorted(wanted.trials, key=_group), _group):
            yield GroupArrived(group, tuple(self._trial(want) for want in wants))

    def _trial(self, want: Want) -> Trial:
        candidate = self.candidates[want.candidate]
        source = None if candidate.history else candidate.source
        missing = want.total - candidate.done
        trial = Trial(self._trials, want.group, want.candidate, missing, candidate.done, source)
        self._open[trial.id] = trial
        self._trials += 1
        return trial

    def _stop(self, why: str) -> Iterator[Event]:
        self.over = why
        self._tell_sampler()
        self._course.close()
        if self.best and self._target is not None and self.pool.reached(self.best[-1].value, self._target):
            self.pool.complete([self.best[-1].candidate])
        for trial in self._open.values():
            self.pool.end(self.candidates[trial.candidate], Standing.WITHDRAWN, why)
            yield TrialWithdrawn(trial.id)
        self._open.clear()
        for candidate in self.candidates.values():
            if candidate.value is None:
                self.pool.end(candidate, Standing.WITHDRAWN, why)
        self.pool.stop(self.candidates)


class _Result(NamedTuple):
    value: float | None
    standing: Standing = Standing.OPEN
    reason: str = ""


def _group(want: Want) -> int:
    return want.group


@dataclass
class SessionEngine(Engine[TuningState, Event, Action]):
    """The engine of a search begins with the events of `session.begin()`, at the instant at which its driver
    passes them.

    A trial that ends at the instant at which its GPUs are lost has ended before: so the session, which hears
    first, and the books agree.
    """

    session: Session | None = None

    def step(self, now: Time, events: Sequence[Event]) -> list[Action]:
        assert self.session is not None
        ordered = sorted(events, key=lambda event: not isinstance(event, ENDS))
        return super().step(now, [*ordered, *self.session.hear(now, ordered, self.state)])

    def close(self, now: Time) -> None:
        assert self.session is not None
        self.session.close()
        super().close(now)
