"""A planning load has requests to plan with and others to judge by, at today's load or at a grown one.

Arrivals that are drawn are drawn again from other seeds. A trace cannot be: its first half is the history
that plans are made with, and its second half, in windows, judges them. A trace grows by being run faster,
over and over, so that bursts stay bursts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from astrarium.core.arrivals import Ints
from astrarium.core.errors import InputError
from astrarium.core.processes import Times, merged
from astrarium.core.quantities import SECOND, Rate, Time
from astrarium.core.random_streams import stream
from astrarium.placement.interference import Interference
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Judge
from astrarium.placement.problem import PlacementRequests, Problem
from astrarium.serving.scenario import Scenario, build
from astrarium.serving.scenario.rates import spans
from astrarium.serving.scenario.workload import Change, Workload

# as `PlanJudge`: the scenario, the problem, what slows replicas that share a GPU, and the warm-up
MakeJudge = Callable[[Scenario, Problem, Interference | None, Time], Judge]


class Attained(msgspec.Struct, frozen=True):
    """The part of the requests that is answered in time differs between draws of them."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Attained:
        return cls(math.fsum(values) / len(values), min(values), max(values))


class Judged(msgspec.Struct, frozen=True):
    """A judged plan's *models* are in the order of the problem; *overall* counts every request alike."""

    models: tuple[Attained, ...]
    overall: Attained

    @property
    def worst(self) -> int:
        """Return the place of the model that fares worst."""
        return min(range(len(self.models)), key=lambda place: self.models[place].mean)

    def below(self, target: float) -> list[int]:
        """Return the models below their target, worst first."""
        places = [place for place, attained in enumerate(self.models) if attained.mean < target]
        return sorted(places, key=lambda place: self.models[place].mean)


def judged(plan: Plan, judge: Judge, draws: Sequence[PlacementRequests]) -> Judged:
    rows = [tuple(judge(plan, requests)) for requests in draws]
    models = tuple(Attained.of(column) for column in zip(*rows, strict=True))
    return Judged(models, Attained.of([_overall(row, draw) for row, draw in zip(rows, draws, strict=True)]))


def _overall(row: Sequence[float], requests: PlacementRequests) -> float:
    counts = [0] * len(row)
    for model in requests.models:
        counts[model] += 1
    total = sum(counts)
    return math.fsum(map(math.prod, zip(row, counts, strict=True))) / total if total else 1.0


WINDOW = 100  # requests at least, in a part of a trace that judges


@dataclass(frozen=True)
class PlanningLoad:
    """A scenario's load is judged *seeds* times over, never with the requests that plans are made with."""

    scenario: Scenario
    seeds: int = 3

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError("--seeds", self.seeds, "at least one")

    @property
    def traced(self) -> bool:
        return self.scenario.workload.file is not None

    @property
    def warmup(self) -> Time:
        """Return until when requests are served and not counted; windows of a trace count as a whole."""
        return 0 if self.traced else self.scenario.workload.warmup

    def posed(self, problem: Problem) -> Problem:
        """Return the problem with requests to plan with, and their rates where the scenario has a trace."""
        if not self.traced:
            return problem
        trace = self._trace()
        before = trace.time < trace.half
        time = trace.time[before]
        model = trace.model[before]
        counts = np.bincount(model, minlength=len(problem.models))
        known = msgspec.structs.replace(problem, requests=PlacementRequests.of(time, model))
        return with_rates(known, (counts * SECOND / trace.half).tolist())

    def fresh(self, factors: Sequence[float] = ()) -> list[PlacementRequests]:
        """Return requests to judge by; each model gets *factors* times today's (none: today's)."""
        if self.traced:
            return [_repeated(window, factors) for window in self._windows()]
        scenario = grown(self.scenario, factors) if factors else self.scenario
        seeds = (int(stream(scenario.seed, "judging", place).integers(2**31)) for place in range(self.seeds))
        drawn = (build.arrivals(scenario.with_seed(seed)) for seed in seeds)
        return [PlacementRequests.of(arrivals.time, arrivals.model) for arrivals in drawn]

    def judging(self, problem: Problem, factors: Sequence[float] = ()) -> Problem:
        """Return the problem with the rates that judge; a trace's second half may have others."""
        if self.traced:
            trace = self._trace()
            counts = np.bincount(trace.model[trace.time >= trace.half], minlength=len(problem.models))
            rates = counts * SECOND / max(1, self.scenario.duration - trace.half)
        else:
            rates = np.array([model.rate for model in problem.models])
        return with_rates(problem, (rates * (np.array(factors) if factors else 1.0)).tolist())

    def _trace(self) -> _Trace:
        whole = build.arrivals(self.scenario)
        return _Trace(whole.time, whole.model, max(1, self.scenario.duration // 2))

    def _windows(self) -> list[_Window]:
        trace = self._trace()
        after = trace.time >= trace.half
        time = trace.time[after] - trace.half
        model = trace.model[after]
        count = min(self.seeds, max(1, len(time) // WINDOW))
        length = -(-(self.scenario.duration - trace.half) // count)
        places = [np.flatnonzero(time // length == place) for place in range(count)]
        return [
            _Window(time[rows] - place * length, model[rows], length) for place, rows in enumerate(places)
        ]


@dataclass(frozen=True)
class _Trace:
    time: Ints
    model: Ints
    half: Time  # here history ends, and what judges begins


@dataclass(frozen=True)
class _Window:
    """A window has requests of the judging half of a trace, their times counted from its begin."""

    time: Ints
    model: Ints
    length: Time


def with_rates(problem: Problem, rates: Sequence[float]) -> Problem:
    models = zip(problem.models, rates, strict=True)
    return msgspec.structs.replace(
        problem, models=tuple(msgspec.structs.replace(model, rate=rate) for model, rate in models)
    )


def grown(scenario: Scenario, factors: Sequence[float]) -> Scenario:
    """Return the scenario with each model's rate, and its changes, times its factor."""
    names = list(scenario.models)
    parts = [
        {name: Rate(rate * factor) for name, rate, factor in zip(names, part.rates, factors, strict=True)}
        for part in spans(scenario.workload, names)
    ]
    starts = [change.at for change in scenario.workload.changes]
    changes = tuple(Change(at, rates) for at, rates in zip(starts, parts[1:], strict=False))
    workload: Workload = msgspec.structs.replace(
        scenario.workload, rate=parts[0], popularity=None, changes=changes
    )
    return msgspec.structs.replace(scenario, workload=workload)


def _repeated(window: _Window, factors: Sequence[float]) -> PlacementRequests:
    """Run each model's requests faster by its factor, repeated when they end before the window does."""
    if not factors:
        return PlacementRequests.of(window.time, window.model)
    times = [
        _faster(window.time[window.model == place], factor, window.length)
        for place, factor in enumerate(factors)
    ]
    return PlacementRequests.of(*merged(times))


def _faster(time: Times, factor: float, length: Time) -> Times:
    if factor <= 0:
        return time[:0]
    rounds = np.arange(int(np.ceil(factor)))
    again = np.rint((time[None, :] + rounds[:, None] * length) / factor).astype(np.int64).ravel()
    return again[again < length]
