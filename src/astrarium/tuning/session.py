"""A session joins a search, its sampler and the books; it is the same object simulated and live.

`SessionEngine` is an engine whose session hears events before the policy does. What the search wants next
arrives in the same step, so that no policy gives away GPUs that the next trial needs at that very instant.
Recorded steps have those arrivals among their events: a replay needs no search.

A candidate's value is not an event, and no policy hears it. A session asks for the value when a trial has
finished: a simulation knows the truth, a live run what the trial has reported. What a live trial reports on
its way counts at once (`observe`): for the best, the target, curves and the sampler's library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from astrarium.core.engine import Engine
from astrarium.core.errors import BrokenBooks, InputError
from astrarium.core.quantities import Time
from astrarium.tuning import contract
from astrarium.tuning.samplers import Goal, Sampler, Standing
from astrarium.tuning.search.contract import Budgeted, Candidate, CandidateScore, Pool, Results, Search, Want
from astrarium.tuning.spaces import Space
from astrarium.tuning.state import TuningState

ENDS = contract.TrialFinished | contract.TrialFailed | contract.TrialWithdrawn

# A candidate's value at the end of the trial; None where nothing was reported.
Worth = Callable[[contract.Trial], float | None]


class Best(NamedTuple):
    at: Time
    candidate: int
    value: float
    iterations: int  # that the candidate had then


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
        self.pool = Pool(sampler, goal, space)
        self.best: list[Best] = []  # each better than those before
        self.over = ""  # why the search is over; empty while it is not
        self.failed: dict[int, str] = {}  # by candidate: why, as soon as it is known
        self.budget = search.budget() if isinstance(search, Budgeted) else None  # iterations in all
        self._course = search.run(self.pool)
        self._worth = worth
        self._target = target
        self._goes_on_one_by_one = False
        self._open: dict[int, contract.Trial] = {}
        self._results: dict[int, _Result] = {}  # by candidate, that the search has not heard
        self._trials = 0

    @property
    def candidates(self) -> dict[int, Candidate]:
        return self.pool.all

    def begin(self, gpus: int | None = None) -> list[contract.Event]:
        """Return the events with which the search begins. *gpus* is their number, for searches that ask."""
        if gpus is not None:
            self.pool.workers = max(1, gpus)
        return [*self._ask_search(None), *self._advance()]

    def hear(self, now: Time, events: Sequence[contract.Event], state: TuningState) -> list[contract.Event]:
        """Return the events that follow from *events*, which the books have not heard yet."""
        before = len(self._results)
        for event in events:
            if isinstance(event, contract.GpusChanged):
                self.pool.workers = max(1, len(event.gpus))
            trial = self._ended(event, state)
            if trial is not None:
                self._results[trial.candidate] = self._result(now, trial, event)
        if self.reached:
            return list(self._stop("the target is reached"))
        if self.over or len(self._results) == before:
            return []
        return list(self._advance())

    def observe(
        self,
        now: Time,
        trial: int,
        iterations: int,
        value: float | None,
        metrics: Mapping[str, float] = MappingProxyType({}),
    ) -> bool:
        """Hear what a trial reports after so many iterations in all; tell whether it is news.

        What it reports at its end is told to the sampler with the results of the others: in the order in
        which candidates were drawn."""
        if trial not in self._open or value is None or not isfinite(value):
            return False
        candidate = self.candidates[self._open[trial].candidate]
        if not self._noted(candidate, CandidateScore(now, iterations, value, metrics)):
            return False
        if iterations < self._open[trial].total:
            self.pool.pass_on(candidate, iterations, value)
        return True

    @property
    def reached(self) -> bool:
        """Tell whether the best is as good as the target, and the search could end."""
        if self.over or self._target is None or not self.best:
            return False
        return self.pool.reached(self.best[-1].value, self._target)

    def close(self, why: str = "the run ended before the search did") -> None:
        """End the search and every candidate that is still open."""
        if not self.over:
            list(self._stop(why))

    def _ended(self, event: contract.Event, state: TuningState) -> contract.Trial | None:
        """Return the trial that ends with this event; None for late news."""
        if not isinstance(event, ENDS):
            return None
        row = state.open.get(event.trial)
        if row is None or (not isinstance(event, contract.TrialWithdrawn) and row.run != event.run):
            return None
        return self._open.pop(event.trial, None)

    def _result(self, now: Time, trial: contract.Trial, event: contract.Event) -> _Result:
        if isinstance(event, contract.TrialFailed):
            return self._failure(trial, event.error)
        if isinstance(event, contract.TrialWithdrawn):
            return _Result(None, Standing.WITHDRAWN, "it was withdrawn")
        value = self._worth(trial)
        if value is None or not isfinite(value):
            return self._failure(trial, f"its value is no number: {value}")
        candidate = self.candidates[trial.candidate]
        self._noted(candidate, CandidateScore(now, trial.total, value))
        self.pool.score(candidate, now, trial.total, value)
        return _Result(value)

    def _failure(self, trial: contract.Trial, reason: str) -> _Result:
        self.failed[trial.candidate] = reason
        return _Result(None, Standing.FAILED, reason)

    def _noted(self, candidate: Candidate, score: CandidateScore) -> bool:
        """Note a score in the candidate's curve, and the best if it is that; tell whether it is new."""
        if not self.pool.observe(candidate, score):
            return False
        if self.pool.better(score.value, self.best[-1].value if self.best else None):
            self.best.append(Best(score.at, candidate.number, score.value, score.iterations))
        return True

    def _tell_sampler(self) -> Results:
        """Tell the sampler all new results, in the order in which candidates were drawn, so that the order of
        finishing does not matter."""
        results = self._results
        self._results = {}
        return {number: self._tell_result(number, results[number]) for number in sorted(results)}

    def _tell_result(self, number: int, result: _Result) -> float | None:
        candidate = self.candidates[number]
        if result.value is None:
            self.pool.end(candidate, result.standing, result.reason)
        elif self.pool.report(candidate, candidate.done, result.value):
            self.pool.end(candidate, Standing.STOPPED, "the sampler's library stopped it")
        return result.value if candidate.standing is Standing.OPEN else None

    def _advance(self) -> Iterator[contract.Event]:
        """Yield what the search wants until it has to wait."""
        while not self.over and (not self._open or (self._goes_on_one_by_one and self._results)):
            if self._goes_on_one_by_one and not self._results:
                raise BrokenBooks("the search waits for results, and nothing runs")
            yield from self._ask_search(self._tell_sampler())

    def _ask_search(self, results: Results | None) -> Iterator[contract.Event]:
        try:
            wanted = next(self._course) if results is None else self._course.send(results)
        except StopIteration:
            yield from self._stop("the search is done")
            return
        self._goes_on_one_by_one = wanted.one_by_one
        by_group = attrgetter("group")
        for group, wants in groupby(sorted(wanted.trials, key=by_group), by_group):
            yield contract.GroupArrived(group, tuple(self._trial(want) for want in wants))

    def _trial(self, want: Want) -> contract.Trial:
        candidate = self.candidates[want.candidate]
        source = None if candidate.history else candidate.source
        missing = want.total - candidate.done
        trial = contract.Trial(self._trials, want.group, want.candidate, missing, candidate.done, source)
        self._open[trial.id] = trial
        self._trials += 1
        return trial

    def _stop(self, why: str) -> Iterator[contract.Event]:
        reached = self.reached
        self.over = why
        self._tell_sampler()
        self._course.close()
        if reached:
            self.pool.complete([self.best[-1].candidate])
        for trial in self._open.values():
            self.pool.end(self.candidates[trial.candidate], Standing.WITHDRAWN, why)
            yield contract.TrialWithdrawn(trial.id)
        self._open.clear()
        for candidate in self.candidates.values():
            if candidate.value is None:
                self.pool.end(candidate, Standing.WITHDRAWN, why)
        self.pool.stop(self.candidates)


class _Result(NamedTuple):
    value: float | None
    standing: Standing = Standing.OPEN
    reason: str = ""


@dataclass
class SessionEngine(Engine[TuningState, contract.Event, contract.Action]):
    """The engine of a search begins with the events of `session.begin()`, at the instant at which its driver
    passes them.

    A trial that ends at the instant at which its GPUs are lost has ended before: so the session, which hears
    first, and the books agree.
    """

    session: Session | None = None

    def step(self, now: Time, events: Sequence[contract.Event]) -> list[contract.Action]:
        assert self.session is not None
        ordered = sorted(events, key=lambda event: not isinstance(event, ENDS))
        return super().step(now, [*ordered, *self.session.hear(now, ordered, self.state)])

    def close(self, now: Time) -> None:
        assert self.session is not None
        self.session.close()
        super().close(now)
