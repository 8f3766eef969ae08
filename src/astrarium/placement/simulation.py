"""The simulation runs groups on requests, natively where that was built, and counts answers in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from astrarium.core.errors import extension
from astrarium.core.units import SECOND, Time
from astrarium.placement.groups import (
    REJECTED,
    Clocks,
    FirstCome,
    GroupLayout,
    Ints,
    Served,
    SmallInts,
    Tables,
    Waiting,
)
from astrarium.placement.problem import PlacementRequests

Engine = Literal["native", "python"]
TRIM: Time = 10 * SECOND  # what the authors leave out at both ends


@dataclass(frozen=True)
class SimulatedRequests:
    """Simulated requests are columns; those from *first* to *last* count."""

    arrivals: Clocks
    models: SmallInts
    first: int
    last: int
    totals: Ints  # that count, by place of a model

    @classmethod
    def of(cls, tables: Tables, requests: PlacementRequests, trim: Time = 0) -> SimulatedRequests:
        return cls.from_columns(*tables.columns(requests), len(tables.slo), trim / tables.runtime.unit)

    @classmethod
    def from_columns(
        cls, arrivals: Clocks, models: SmallInts, count: int, trim: float = 0
    ) -> SimulatedRequests:
        """Make requests of columns; *trim* at both ends becomes a number of requests as the authors do."""
        skipped = 0
        if trim and len(arrivals) > 1 and arrivals[-1] > arrivals[0]:
            skipped = int(trim / float(arrivals[-1] - arrivals[0]) * len(arrivals))
        first, last = skipped, max(skipped, len(arrivals) - skipped)
        totals = np.bincount(models[first:last], minlength=count)
        return cls(arrivals, models, first, last, totals)

    @property
    def counted(self) -> int:
        return self.last - self.first

    def of_models(self, places: npt.NDArray[np.bool_]) -> SimulatedRequests:
        """Return only the requests of some models; the same ones count."""
        kept = places[self.models]
        first, last = int(kept[: self.first].sum()), int(kept[: self.last].sum())
        return SimulatedRequests(self.arrivals[kept], self.models[kept], first, last, self.totals * places)

    def beginning(self, share: float) -> SimulatedRequests:
        """Return the first part of the requests: enough to tell bad placements from good ones."""
        end = int(len(self.arrivals) * share)
        last = max(self.first, min(self.last, end))
        totals = np.bincount(self.models[self.first : last], minlength=len(self.totals))
        return SimulatedRequests(self.arrivals[:end], self.models[:end], self.first, last, totals)


@dataclass(frozen=True)
class Score:
    """A score counts requests in time by place of a model, and the work of each group's slowest stage."""

    good: Ints
    work: Clocks

    @property
    def served(self) -> int:
        return int(self.good.sum())


def score(layout: GroupLayout, workload: SimulatedRequests, engine: Engine = "native") -> Score:
    """Simulate groups and return what a search needs: requests in time, and work."""
    native = extension("_placement") if engine == "native" else None
    if native is None or layout.tables.runtime.waits:
        served = serve(layout, workload, engine=engine)
        return Score(in_time(served, workload), served.work)
    good = np.zeros(len(workload.totals), np.int64)
    work = np.zeros(len(layout.kind), layout.tables.times.dtype)
    runtime = layout.tables.runtime
    native.attainment(
        *_columns(layout, workload),
        runtime.fixed,
        runtime.dispatch == "queue",
        runtime.another,
        workload.first,
        workload.last,
        good,
        work,
    )
    return Score(good, work)


def serve(
    layout: GroupLayout, workload: SimulatedRequests, clocks: Clocks | None = None, engine: Engine = "native"
) -> Served:
    """Simulate groups and return the fate of every request; *clocks* of the stages are read and updated."""
    native = extension("_placement") if engine == "native" else None
    if native is None:
        return _reference(layout, workload, clocks)
    served = Served.empty(len(workload.arrivals), layout)
    runtime, columns = layout.tables.runtime, _columns(layout, workload)
    if runtime.waits:
        by_deadline = runtime.order == "deadline"
        rules = (runtime.fixed, by_deadline, runtime.another)
        native.waiting(*columns, *rules, served.finish, served.group, served.work)
        return served
    rules = (runtime.fixed, runtime.dispatch == "queue", runtime.another)
    kept = layout.clocks() if clocks is None else clocks
    native.outcomes(*columns, *rules, kept, clocks is not None, served.finish, served.group, served.work)
    return served


def _columns(layout: GroupLayout, workload: SimulatedRequests) -> tuple[Any, ...]:
    tables = layout.tables
    groups = (tables.times, layout.kind, layout.stages, layout.hosts)
    return (*groups, workload.arrivals, workload.models, tables.slo)


def _reference(layout: GroupLayout, workload: SimulatedRequests, clocks: Clocks | None) -> Served:
    if layout.tables.runtime.waits:
        return Waiting(layout, workload.arrivals, workload.models).run()
    runtime = FirstCome(layout, layout.clocks() if clocks is None else clocks)
    return runtime.run(workload.arrivals, workload.models)


def in_time(served: Served, workload: SimulatedRequests) -> Ints:
    """Count requests in time by place of a model: all that are answered are."""
    counted = slice(workload.first, workload.last)
    good = served.finish[counted] != REJECTED
    return np.bincount(workload.models[counted][good], minlength=len(workload.totals))


@dataclass(frozen=True)
class Statistics:
    """Statistics of latencies, in units of the clock, are of answered requests only."""

    attainment: float
    by_model: npt.NDArray[np.float64]  # nan where nobody asked
    latency: Clocks
    mean: float
    p99: float


def statistics(served: Served, workload: SimulatedRequests) -> Statistics:
    good = in_time(served, workload)
    counted = slice(workload.first, workload.last)
    finish, arrivals = served.finish[counted], workload.arrivals[counted]
    answered = finish != REJECTED
    latency = (finish - arrivals)[answered]
    with np.errstate(invalid="ignore"):
        by_model = good / workload.totals
    some = len(latency) > 0
    mean, p99 = (float(latency.mean()), float(np.percentile(latency, 99))) if some else (0.0, 0.0)
    return Statistics(int(good.sum()) / max(1, workload.counted), by_model, latency, mean, p99)
