"""The candidates of a search: what each is, what it was worth when, and how it ended.

The sampler is told of each of its own exactly once, when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from astrarium.core.streams import stream
from astrarium.core.units import Time
from astrarium.tuning.samplers import Configuration, Goal, Sampler, Standing
from astrarium.tuning.searching import Results
from astrarium.tuning.spaces import STEP, Space


class Scored(NamedTuple):
    at: Time
    iterations: int  # in all
    value: float


@dataclass
class Candidate:
    number: int
    configuration: Configuration
    source: int | None = None  # whose checkpoint it began with
    done: int = 0  # iterations in its checkpoint
    history: list[Scored] = field(default_factory=list)
    standing: Standing = Standing.OPEN
    reason: str = ""

    @property
    def values(self) -> dict[str, Any]:
        return self.configuration.values

    @property
    def value(self) -> float | None:
        """The last one."""
        return self.history[-1].value if self.history else None


class Candidates:
    """What a search algorithm sees as its pool. *space* says how far a copy's values may go; where there is
    none, numbers of a copy are changed and all else stays."""

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
        candidate.history.append(Scored(now, iterations, value))

    def report(self, candidate: Candidate) -> bool:
        """True: the sampler's library would stop it."""
        _, iterations, value = candidate.history[-1]
        return self._sampler.report(candidate.configuration.id, iterations, value)

    def end(self, candidate: Candidate, standing: Standing, reason: str) -> None:
        """The first end counts."""
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
