"""A timeline is plans that follow each other, and how requests fare across the changes.

Models move for free at the boundaries, as Clockwork++ in AlpaServe's evaluation is granted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from astrarium.core.errors import InputError
from astrarium.core.quantities import Time
from astrarium.placement.groups.layout import Clocks, Group, GroupLayout, Served, Tables
from astrarium.placement.groups.simulation import Engine, SimulatedRequests, simulate_groups
from astrarium.placement.plan import Plan
from astrarium_papers.alpaserve._common.served import groups_of


class Timeline(msgspec.Struct, frozen=True):
    """In a timeline, `plans[i]` holds from `starts[i]` until the next; the first start is 0."""

    starts: tuple[Time, ...]
    plans: tuple[Plan, ...]

    def __post_init__(self) -> None:
        if (
            len(self.starts) != len(self.plans)
            or self.starts[:1] != (0,)
            or list(self.starts) != sorted(self.starts)
        ):
            raise InputError(
                "starts", self.starts, f"{len(self.plans)} instants in order, the first of them 0"
            )


def pieces(timeline: Timeline, workload: SimulatedRequests, unit: float = 1) -> Iterator[slice]:
    """Divide the requests among the plans; *unit* is the clock's, in nanoseconds."""
    edges = np.searchsorted(workload.arrivals, np.array(timeline.starts[1:]) / unit).tolist()
    yield from (slice(a, b) for a, b in zip([0, *edges], [*edges, len(workload.arrivals)], strict=True))


def serve_timeline(
    tables: Tables,
    timeline: Timeline,
    workload: SimulatedRequests,
    carry_backlog: bool = True,
    engine: Engine = "native",
) -> Served:
    """Simulate plan after plan; groups are numbered within their plan.

    *carry_backlog*: a GPU that is busy at a boundary stays so until its work is done. The authors' simulator
    forgets it at every change of plans."""
    if tables.runtime.waits:
        raise InputError(
            "runtime.order", tables.runtime.order, "arrival and batches of 1, where plans change"
        )
    finish = np.empty(len(workload.arrivals), tables.times.dtype)
    where = np.empty(len(finish), np.int32)
    work = 0.0
    free: dict[int, float] = {}
    for plan, piece in zip(timeline.plans, pieces(timeline, workload, tables.runtime.unit), strict=True):
        groups = groups_of(plan)
        layout = GroupLayout.of(tables, groups)
        clocks = _clocks(layout, groups, free) if carry_backlog else None
        served = simulate_groups(layout, _part(workload, piece), clocks, engine)
        finish[piece], where[piece] = served.finish, served.group
        work += float(served.work.sum())
        if clocks is not None:
            free.update(_free(groups, clocks))
    return Served(finish, where, np.array([work], tables.times.dtype))


def _part(workload: SimulatedRequests, piece: slice) -> SimulatedRequests:
    return SimulatedRequests(workload.arrivals[piece], workload.models[piece], np.zeros_like(workload.totals))


def _stage_gpus(group: Group, stage: int) -> tuple[int, ...]:
    return group.gpus[stage * group.shape.operators : (stage + 1) * group.shape.operators]


def _clocks(layout: GroupLayout, groups: Sequence[Group], free: dict[int, float]) -> Clocks:
    clocks = layout.clocks()
    for row, group in zip(clocks, groups, strict=True):
        for stage in range(group.shape.stages):
            row[stage] = max(free.get(gpu, 0) for gpu in _stage_gpus(group, stage))
    return clocks


def _free(groups: Sequence[Group], clocks: Clocks) -> Iterator[tuple[int, float]]:
    for row, group in zip(clocks.tolist(), groups, strict=True):
        for stage in range(group.shape.stages):
            yield from ((gpu, row[stage]) for gpu in _stage_gpus(group, stage))
