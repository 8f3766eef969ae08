"""The simulation runs groups on requests, natively where that was built, and counts answers in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from astrarium.core.optional import extension
from astrarium.placement.groups.first_come import FirstCome
from astrarium.placement.groups.layout import (
    REJECTED,
    Bools,
    Clocks,
    GroupLayout,
    Ints,
    Served,
    SmallInts,
    Tables,
)
from astrarium.placement.groups.queued import QueuedGroups
from astrarium.placement.problem import PlacementRequests

Engine = Literal["native", "python"]


@dataclass(frozen=True)
class SimulatedRequests:
    """Simulated requests are columns; *totals* counts them by place of a model."""

    arrivals: Clocks
    models: SmallInts
    totals: Ints

    @classmethod
    def of(cls, tables: Tables, requests: PlacementRequests) -> SimulatedRequests:
        return cls.from_columns(*tables.columns(requests), len(tables.slo))

    @classmethod
    def from_columns(cls, arrivals: Clocks, models: SmallInts, count: int) -> SimulatedRequests:
        return SimulatedRequests(arrivals, models, np.bincount(models, minlength=count))

    def __len__(self) -> int:
        return len(self.arrivals)

    def of_models(self, places: Bools) -> SimulatedRequests:
        """Return only the requests of some models."""
        kept = places[self.models]
        return SimulatedRequests(self.arrivals[kept], self.models[kept], self.totals * places)

    def beginning(self, share: float) -> SimulatedRequests:
        """Return the first part of the requests: enough to tell bad placements from good ones."""
        end = int(len(self) * share)
        return self.from_columns(self.arrivals[:end], self.models[:end], len(self.totals))


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
        served = simulate_groups(layout, workload, engine=engine)
        return Score(in_time(served, workload), served.work)
    good = np.zeros(len(workload.totals), np.int64)
    work = np.zeros(len(layout.kind), layout.tables.times.dtype)
    runtime = layout.tables.runtime
    native.attainment(
        *_columns(layout, workload),
        runtime.fixed,
        runtime.dispatch == "queue",
        runtime.another,
        0,
        len(workload),
        good,
        work,
    )
    return Score(good, work)


def simulate_groups(
    layout: GroupLayout, workload: SimulatedRequests, clocks: Clocks | None = None, engine: Engine = "native"
) -> Served:
    """Simulate groups and return the fate of every request; *clocks* of the stages are read and updated."""
    native = extension("_placement") if engine == "native" else None
    if native is None:
        return _reference(layout, workload, clocks)
    served = Served.empty(len(workload.arrivals), layout)
    runtime = layout.tables.runtime
    columns = _columns(layout, workload)
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
        return QueuedGroups(layout, workload.arrivals, workload.models).run()
    runtime = FirstCome(layout, layout.clocks() if clocks is None else clocks)
    return runtime.run(workload.arrivals, workload.models)


def in_time(served: Served, workload: SimulatedRequests) -> Ints:
    """Count requests in time by place of a model: all that are answered are."""
    good = served.finish != REJECTED
    return np.bincount(workload.models[good], minlength=len(workload.totals))
