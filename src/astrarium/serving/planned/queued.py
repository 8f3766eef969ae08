"""Replicas that share GPUs, or lie over several, are run by worker queues and recorded like any run."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from astrarium.core.arrivals import Arrivals
from astrarium.core.errors import InputError
from astrarium.core.profiles import Dynamic
from astrarium.core.quantities import Time
from astrarium.placement.cells import Cell, limits_of
from astrarium.placement.gpu_share import share_factor
from astrarium.placement.interference import IgniterInterference, Interference, NoInterference, Tenant
from astrarium.placement.path import BatchJourney
from astrarium.placement.plan import ROUNDING, Plan, Replica
from astrarium.placement.problem import PlacedModel, PlacementGpu, PlacementRequests, Problem
from astrarium.placement.routing import Numbers
from astrarium.placement.worker_queues import Batching, PlanSimulation
from astrarium.serving.contract import Setup
from astrarium.serving.ledger import Fate, Outcome
from astrarium.serving.planned.parts import RecordPart, cell_scenario, part_of
from astrarium.serving.record import BATCHES, Batches, Ints, ServingRecord, recorded
from astrarium.serving.record import Requests as Outcomes
from astrarium.serving.scenario import Scenario, build

RUN_BY = "worker queues"
# A replica that is free takes what waits: holding requests back for fuller batches pays where others can use
# the GPU meanwhile, and here each replica has its own part of it.
BATCHING = Batching(max_wait=0, drop_expired=True)
EXPIRED = "expired"
Row = tuple[int, ...]


def run_queues(
    scenario: Scenario,
    problem: Problem,
    queued: tuple[Replica, ...],
    arrivals: Arrivals,
    numbers: Numbers,
    interference: Interference | None = None,
) -> RecordPart:
    """Run replicas by worker queues; every request travels to its replica by itself, and waits there."""
    cell = _as_cell(queued)
    slowing = Shared(interference or NoInterference())
    alone = cell_scenario(scenario, problem, cell)
    _check_profiles(alone)
    setup = build.setup(alone, placed=True)
    mine = part_of(arrivals, numbers, cell.models)
    coming = arrivals.time[numbers] + setup.network.delay(1)
    requests = PlacementRequests.of(coming, arrivals.model[numbers])
    ready, replicas = prepared(problem, queued, slowing, setup.network.delay(1) + setup.network.response)
    simulation = PlanSimulation(ready, Plan("", replicas), slowing, BATCHING)
    simulation.run(requests, None)
    record = _record(alone, setup, mine, simulation.begun, cell)
    return RecordPart(RUN_BY, cell, numbers, record)


class Shared:
    """Shared interference divides a GPU among replicas at work whose shares add up to more than all of it.

    iGniter's model sees to that itself.
    """

    def __init__(self, others: Interference) -> None:
        self._others = others
        self._done = isinstance(others, IgniterInterference)

    def slowdowns(self, gpu: PlacementGpu, tenants: Sequence[Tenant]) -> tuple[float, ...]:
        slowed = self._others.slowdowns(gpu, tenants)
        crowd = 1.0 if self._done else math.fsum(tenant.share for tenant in tenants if tenant.busy)
        if crowd <= 1 + ROUNDING:
            return slowed
        return tuple(
            slow * crowd if tenant.busy else slow for slow, tenant in zip(slowed, tenants, strict=True)
        )


def prepared(
    problem: Problem, queued: Sequence[Replica], interference: Interference, way: Time
) -> tuple[Problem, tuple[Replica, ...]]:
    """Return problem and replicas for the queues: batches that leave time to wait for the one before.

    Objectives are for the start of a batch, so that a request that waits too long is dropped while the others
    can still be served.

    Without this, in an overload everybody would be answered, and everybody just too late.
    """
    models = {model.index: model for model in problem.models}
    lead = dict[int, Time]()
    replicas = []
    for replica in queued:
        model = models[replica.model]
        times = _times(model, replica, _company(replica, queued, problem, interference), problem)
        size = max(bisect_right(times, (model.slo - way) // 2), 1)
        lead[model.index] = max(times[size - 1], lead.get(model.index, 0))
        replicas.append(msgspec.structs.replace(replica, batch=size))
    nearer = tuple(
        msgspec.structs.replace(model, slo=max(1, model.slo - way - lead.get(model.index, 0) + 1))
        for model in problem.models
    )
    return msgspec.structs.replace(problem, models=nearer), tuple(replicas)


def _times(model: PlacedModel, replica: Replica, company: float, problem: Problem) -> list[Time]:
    """Return the times of batches of 1, 2, ... on the replica's share."""
    form = model.forms[replica.shape]
    gpu = problem.gpu(replica.gpus[0])
    sizes = range(1, min(replica.batch, form.max_batch) + 1)
    return [
        round(form.latency(size) * share_factor(model, gpu, size, replica.share) * company) for size in sizes
    ]


def _company(
    replica: Replica, queued: Sequence[Replica], problem: Problem, interference: Interference
) -> float:
    """Return how many times as long a replica takes while all others on its GPUs are at work."""
    worst = 1.0
    for gpu in replica.gpus:
        others = [one for one in queued if gpu in one.gpus]
        tenants = [Tenant(one.model, one.batch, one.share) for one in others]
        slowdowns = interference.slowdowns(problem.gpu(gpu), tenants)
        worst = max(worst, slowdowns[others.index(replica)])
    return worst


def _as_cell(queued: Sequence[Replica]) -> Cell:
    """Return one cell with all GPUs and models of the replicas."""
    gpus = sorted({gpu for replica in queued for gpu in replica.gpus})
    return Cell(tuple(gpus), limits_of(queued))


def _check_profiles(scenario: Scenario) -> None:
    for name, model in scenario.models.items():
        if isinstance(model.profile, Dynamic):
            expected = "times that are known, for a model that shares a GPU or lies over several"
            raise InputError(f"models.{name}.profile", "dynamic", expected)


def _record(
    scenario: Scenario, setup: Setup, arrivals: Arrivals, batches: Sequence[BatchJourney], cell: Cell
) -> ServingRecord:
    rows = [list(_rows(batch, cell)) for batch in batches]
    requests = _outcomes(arrivals, build.deadlines(arrivals, setup), setup, batches, rows)
    columns = _columns([row for batch_rows in rows for row in batch_rows])
    return recorded(scenario.with_policy(RUN_BY), setup, requests, columns, ("", EXPIRED), "python")


def _rows(batch: BatchJourney, cell: Cell) -> Iterator[Row]:
    """Yield a row for each GPU that worked on the batch."""
    assert batch.replica is not None
    replica = batch.replica
    width = batch.replica.shape.operators
    model = cell.models.index(replica.model)
    for place, gpu in enumerate(replica.gpus):
        began, ended = batch.stays[place // width]
        size = len(batch.members)
        yield model, cell.gpus.index(gpu), size, batch.start, began, ended, Fate.FINISHED


def _columns(rows: Sequence[Row]) -> Batches:
    columns = zip(*rows, strict=True) if rows else [()] * len(BATCHES)
    named = zip(BATCHES.items(), columns, strict=True)
    return Batches(**{name: np.array(column, kind) for (name, kind), column in named})


def _outcomes(
    arrivals: Arrivals,
    deadlines: Ints,
    setup: Setup,
    batches: Sequence[BatchJourney],
    rows: Sequence[Sequence[Row]],
) -> Outcomes:
    """Return the outcomes of requests; one that is in no batch was dropped, at its deadline."""
    done = deadlines.copy()
    number = np.full(len(arrivals), -1, np.int64)
    first = np.cumsum([0, *(len(batch_rows) for batch_rows in rows)]).tolist()
    for batch, row in zip(batches, first, strict=False):
        done[batch.members], number[batch.members] = batch.done + setup.network.response, row
    dropped = number < 0
    outcome = np.where(dropped, Outcome.DROPPED, np.where(done <= deadlines, Outcome.IN_TIME, Outcome.LATE))
    reason = np.where(dropped, 1, 0).astype(np.int8)
    columns = (arrivals.time, deadlines, arrivals.model, arrivals.application)
    return Outcomes(*columns, outcome.astype(np.int8), reason, done, number, arrivals.length)
