"""How served requests fared: attainment and latencies, without both ends of a run, as the authors count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from astrarium.core.quantities import SECOND, Time
from astrarium.placement.groups.layout import REJECTED, Clocks, Group, Served, SmallInts
from astrarium.placement.groups.simulation import SimulatedRequests
from astrarium.placement.plan import Plan
from astrarium.placement.problem import Shape

TRIM: Time = 10 * SECOND  # what the authors leave out at both ends


@dataclass(frozen=True)
class TrimmedRequests(SimulatedRequests):
    """Of trimmed requests, those from *first* to *last* count; *totals* are theirs."""

    first: int
    last: int


def trimmed(arrivals: Clocks, models: SmallInts, count: int, trim: float) -> TrimmedRequests:
    """Make requests of columns; *trim* at both ends becomes a number of requests as the authors do."""
    skipped = 0
    if trim and len(arrivals) > 1 and arrivals[-1] > arrivals[0]:
        skipped = int(trim / float(arrivals[-1] - arrivals[0]) * len(arrivals))
    first = skipped
    last = max(skipped, len(arrivals) - skipped)
    totals = np.bincount(models[first:last], minlength=count)
    return TrimmedRequests(arrivals, models, totals, first, last)


def groups_of(plan: Plan) -> tuple[Group, ...]:
    """Return the groups that a plan's replicas make up: those on the same GPUs in the same shape."""
    members: dict[tuple[tuple[int, ...], Shape], list[int]] = {}
    for replica in plan.replicas:
        members.setdefault((replica.gpus, replica.shape), []).append(replica.model)
    return tuple(Group(gpus, shape, tuple(models)) for (gpus, shape), models in members.items())


@dataclass(frozen=True)
class Statistics:
    """Statistics of latencies, in units of the clock, are of answered requests only."""

    attainment: float
    by_model: npt.NDArray[np.float64]  # nan where nobody asked
    latency: Clocks
    mean: float
    p99: float


def statistics(served: Served, workload: TrimmedRequests) -> Statistics:
    counted = slice(workload.first, workload.last)
    finish = served.finish[counted]
    arrivals = workload.arrivals[counted]
    answered = finish != REJECTED
    good = np.bincount(workload.models[counted][answered], minlength=len(workload.totals))
    latency = (finish - arrivals)[answered]
    with np.errstate(invalid="ignore"):
        by_model = good / workload.totals
    some = len(latency) > 0
    mean, p99 = (float(latency.mean()), float(np.percentile(latency, 99))) if some else (0.0, 0.0)
    return Statistics(int(good.sum()) / max(1, len(finish)), by_model, latency, mean, p99)
