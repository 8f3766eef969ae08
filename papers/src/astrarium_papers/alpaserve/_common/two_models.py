"""Section 3.1: two models on two GPUs, one on each, or both as pipelines over both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from astrarium.core.quantities import SECOND
from astrarium.placement.groups.layout import Tables
from astrarium.placement.groups.runtime import DEFAULT, GroupRuntime
from astrarium.placement.problem import ALONE, PlacedModel, Shape
from astrarium_papers.alpaserve._common import cases, queueing
from astrarium_papers.alpaserve._common.served import TrimmedRequests, groups_of
from astrarium_papers.alpaserve._common.settings import (
    GIB,
    PARALLEL,
    SIMPLE,
    WITHOUT_OVERHEADS,
    outcome,
    pipelined,
    replicated,
    traffic,
)
from astrarium_papers.findings import Effort

MODELS = ("bert-6.7b", "bert-6.7b")
RATE = 3.0
MEMORY = 14 * GIB
GROUPS = {SIMPLE: replicated(2, 1), PARALLEL: pipelined(2, 2, 2)}
TWO = Shape(stages=2)
DRAWN = np.linspace(0, 100, 201)  # percentiles

Floats = npt.NDArray[np.float64]


class Traffic(NamedTuple):
    title: str
    cv: float
    share: float  # of the first model
    speedup: float  # in mean latency, as the paper has it


CASES = {
    "poisson": Traffic("Poisson arrivals", 1.0, 0.5, 1.3),
    "bursty": Traffic("Gamma arrivals, CV 3", 3.0, 0.5, 1.9),
    "uneven": Traffic("Poisson, 20 % and 80 %", 1.0, 0.2, 6.6),
}


def placed(share: float) -> tuple[PlacedModel, ...]:
    return cases.placed_models(MODELS, _rates(share), slo=None)


def _rates(share: float) -> list[float]:
    return [share * RATE, (1 - share) * RATE]


def requests(case: Traffic, seconds: float, seed: int) -> TrimmedRequests:
    return traffic(_rates(case.share), case.cv, seconds, seed)


def measured(case: Traffic, effort: Effort) -> dict[str, Any]:
    """Simulate both placements. The authors simulate 20 000 s, once; near saturation that is short."""
    seconds, seeds = effort.pick((10_000.0, 4), (20_000.0, 40))
    models = placed(case.share)

    def measure(seed: int) -> dict[str, dict[str, Any]]:
        workload = requests(case, seconds, seed)
        return {
            f"{name}{suffix}": _latencies(models, name, workload, runtime)
            for name in GROUPS
            for suffix, runtime in (("", DEFAULT), (" bare", WITHOUT_OVERHEADS))
        }

    seeds_measured = effort.map(measure, range(1, seeds + 1))
    return {name: _together([by_name[name] for by_name in seeds_measured]) for name in seeds_measured[0]}


def _latencies(
    models: Sequence[PlacedModel], name: str, workload: TrimmedRequests, runtime: GroupRuntime
) -> dict[str, Any]:
    """Return latencies of one seed: the mean, that of each model, and percentiles of all and of each
    model."""
    counted = slice(workload.first, workload.last)
    finish = outcome(models, GROUPS[name], workload, runtime).finish[counted]
    latency: Floats = (finish - workload.arrivals[counted]) / SECOND
    by_model = [latency[workload.models[counted] == model] for model in range(len(models))]
    return {
        "mean": round(float(latency.mean()), 4),
        "by_model": [round(float(times.mean()), 4) for times in by_model],
        "percentiles": np.array([np.percentile(times, DRAWN) for times in (latency, *by_model)]),
    }


def _together(seeds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers of all seeds: means stay apart, percentiles are averaged."""
    percentiles = np.mean([seed["percentiles"] for seed in seeds], axis=0)
    return {
        "mean": [seed["mean"] for seed in seeds],
        "by_model": [seed["by_model"] for seed in seeds],
        "percentiles": np.round(percentiles, 4).tolist(),
    }


def searched(effort: Effort) -> dict[str, list[str]]:
    """Return what the policies choose themselves, where answers are due within five times a model's own
    latency."""
    seconds = effort.pick(500.0, 10_000.0)
    case = cases.Case(MODELS, 2, RATE, 3.0, 5.0, seconds, "uniform", MEMORY)
    plans = {
        policy: groups_of(cases.run(case, policy).plan) for policy in ("selective-replication", "alpaserve")
    }
    return {
        policy: sorted(f"{len(group.models)}x{group.shape}" for group in plan)
        for policy, plan in plans.items()
    }


def theory(name: str, share: float) -> float:
    """Return the mean latency by the formulas of section 3.4, with the simulator's overheads, in seconds."""
    tables = Tables.of(placed(share))
    fixed = tables.runtime.fixed_overhead / SECOND
    alone, stages = (tables.times[tables.kinds[shape], 0, 0] / SECOND for shape in (ALONE, TWO))
    if name == SIMPLE:
        return fixed + queueing.simple(RATE, float(alone.sum()), share)
    return fixed + queueing.pipeline(RATE, float(stages.sum()), float(stages.max()))
