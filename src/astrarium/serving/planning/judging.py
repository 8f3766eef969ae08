"""What a plan is worth on requests that it was not made with: each model's attainment, and how it spreads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from astrarium.core.units import Time
from astrarium.placement.interference import Interference
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Judge
from astrarium.placement.problem import Problem, Requests
from astrarium.serving.scenario import Scenario

# as `judging.judge`: the scenario, the problem, what slows replicas that share a GPU, and the warm-up
MakeJudge = Callable[[Scenario, Problem, Interference | None, Time], Judge]


class Attained(msgspec.Struct, frozen=True):
    """The part of the requests that was answered in time, over several draws of them."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Attained:
        return cls(math.fsum(values) / len(values), min(values), max(values))


class Judged(msgspec.Struct, frozen=True):
    """*models* in the order of the problem; *overall* counts every request alike."""

    models: tuple[Attained, ...]
    overall: Attained

    @property
    def worst(self) -> int:
        """The place of the model that fares worst."""
        return min(range(len(self.models)), key=lambda place: self.models[place].mean)

    def below(self, target: float) -> list[int]:
        """The models that do not get what they should, worst first."""
        found = [place for place, each in enumerate(self.models) if each.mean < target]
        return sorted(found, key=lambda place: self.models[place].mean)


def judged(plan: Plan, judge: Judge, draws: Sequence[Requests]) -> Judged:
    rows = [tuple(judge(plan, requests)) for requests in draws]
    models = tuple(Attained.of(column) for column in zip(*rows, strict=True))
    return Judged(models, Attained.of([_overall(row, each) for row, each in zip(rows, draws, strict=True)]))


def _overall(row: Sequence[float], requests: Requests) -> float:
    counts = [0] * len(row)
    for model in requests.models:
        counts[model] += 1
    total = sum(counts)
    return math.fsum(map(math.prod, zip(row, counts, strict=True))) / total if total else 1.0
