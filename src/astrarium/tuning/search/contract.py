"""Search algorithms are generators that yield the trials they want, and are sent results.

A search speaks of totals: how many iterations a candidate shall have trained for in all. A trial runs the
difference to what the candidate has: it goes on from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from astrarium.core.quantities import Time
from astrarium.core.random_streams import stream
from astrarium.tuning.samplers import Configuration, Goal, Sampler, Standing
from astrarium.tuning.spaces import STEP, Space


class Want(msgspec.Struct, frozen=True, gc=False):
    """Train the candidate until it has *total* iterations, as a member of a group."""

    candidate: int
    group: int
    total: int


class WantedTrials(msgspec.Struct, frozen=True):
    """A search wants these trials. *one_by_one*: it goes on with every result that comes, else once all are
    there. Trials that were wanted before and have not ended are still wanted."""

    trials: tuple[Want, ...]
    one_by_one: bool = False


Results: TypeAlias = Mapping[int, float | None]  # by candidate; None: it failed, and is never promoted
Course: TypeAlias = Generator[WantedTrials, Results, None]


class CandidateScore(NamedTuple):
    at: Time
    iterations: int  # in all
    value: float
    metrics: Mapping[str, float] = MappingProxyType({})  # what else was reported with it


@dataclass
class Candidate:
    number: int
    configuration: Configuration
    source: int | None = None  # the candidate whose checkpoint it began with
    done: int = 0  # iterations in its checkpoint
    history: list[CandidateScore] = field(default_factory=list)  # at the ends of its trials, for the search
    curve: list[CandidateScore] = field(default_factory=list)  # every value that was reported, by iterations
    standing: Standing = Standing.OPEN
    reason: str = ""

    @property
    def values(self) -> dict[str, Any]:
        return self.configuration.values

    @property
    def value(self) -> float | None:
        """Return the candidate's last value; None before the first."""
        return self.curve[-1].value if self.curve else None

    @property
    def trained(self) -> int:
        """Return the iterations that it has reported, be they in its checkpoint or not."""
        return max(self.done, self.curve[-1].iterations if self.curve else 0)


class Pool:
    """The pool holds the candidates of a search. *space* limits the values of a copy; without one, the
    numbers of a copy are changed and everything else stays."""

    def __init__(self, sampler: Sampler, goal: Goal, space: Space | None = None) -> None:
        self.all: dict[int, Candidate] = {}
        self.workers = 1  # GPUs that there are now, as far as is known
        self._sampler = sampler
        self._sign = 1 if goal == "min" else -1
        self._space = space or {}
        self._groups = 0

    def group(self) -> int:
        """Return a number for a new group."""
        self._groups += 1
        return self._groups - 1

    def new(self) -> int | None:
        """Return a candidate that the sampler suggests; None where it has no more."""
        configuration = self._sampler.ask()
        return None if configuration is None else self._add(configuration).number

    def copy(self, source: int, seed: int) -> int:
        """Return a candidate with the checkpoint of another, and with slightly different values."""
        model = self.all[source]
        chance = stream(seed, "copy", len(self.all)).random(len(model.values))
        added = self._add(self._sampler.adopt(self._changed(model.values, chance)))
        added.source = source
        added.done = model.done
        return added.number

    def stop(self, candidates: Iterable[int]) -> None:
        """Stop candidates because others were better."""
        self._end_all(candidates, Standing.STOPPED, "others were better")

    def complete(self, candidates: Iterable[int]) -> None:
        """End candidates that trained for as long as the search lets anyone."""
        self._end_all(candidates, Standing.COMPLETE, "")

    def ranked(self, results: Results) -> list[int]:
        """Return candidates, the best first and equals by number, without those that failed."""
        worth = {number: value for number, value in results.items() if value is not None}
        return sorted(worth, key=lambda number: (self._sign * worth[number], number))

    def better(self, value: float, than: float | None) -> bool:
        return than is None or self._sign * value < self._sign * than

    def best_of(self, candidate: int) -> float | None:
        """Return the best value that the candidate has reported; None where there is none."""
        values = [score.value for score in self.all[candidate].curve]
        return min(values, key=lambda value: self._sign * value, default=None)

    def reached(self, value: float, target: float) -> bool:
        return self._sign * value <= self._sign * target

    def observe(self, candidate: Candidate, score: CandidateScore) -> bool:
        """Add a score to the candidate's curve; tell whether it is new, and not of an iteration that is run
        once more after its process was lost."""
        if candidate.curve and score.iterations <= candidate.curve[-1].iterations:
            return False
        candidate.curve.append(score)
        return True

    def score(self, candidate: Candidate, now: Time, iterations: int, value: float) -> None:
        candidate.done = iterations
        candidate.history.append(CandidateScore(now, iterations, value))

    def pass_on(self, candidate: Candidate, iterations: int, value: float) -> None:
        """Tell the sampler a value on the way to the end of a trial."""
        self._sampler.observe(candidate.configuration.id, iterations, value)

    def report(self, candidate: Candidate, iterations: int, value: float) -> bool:
        """Tell the sampler a candidate's value; return True if the sampler's library would stop it."""
        return self._sampler.report(candidate.configuration.id, iterations, value)

    def end(self, candidate: Candidate, standing: Standing, reason: str) -> None:
        """Record how a candidate ended; only its first end counts."""
        if candidate.standing is Standing.OPEN:
            candidate.standing = standing
            candidate.reason = reason
            self._sampler.tell(candidate.configuration.id, candidate.value, standing)

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


class Search(Protocol):
    def run(self, pool: Pool) -> Course: ...


@runtime_checkable
class Budgeted(Protocol):
    """A search may know how much there is to do at most: how long it takes is told by that."""

    def budget(self) -> int:
        """Return the iterations of all candidates together, if none fails."""


def drawn(pool: Pool, count: float) -> list[int]:
    """Draw new candidates: fewer where the sampler has no more."""
    numbers: list[int] = []
    while len(numbers) < count and (candidate := pool.new()) is not None:
        numbers.append(candidate)
    return numbers


def wants(group: int, candidates: Iterable[int], total: int) -> tuple[Want, ...]:
    return tuple(Want(candidate, group, total) for candidate in candidates)
