"""Parts of a run, which know nothing of each other, are put together as if they were one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Any

import msgspec
import numpy as np

from astrarium.core.arrivals import Arrivals
from astrarium.core.quantities import Bytes
from astrarium.placement.cells import Cell
from astrarium.placement.problem import Problem
from astrarium.serving.contract import Setup
from astrarium.serving.ledger import Outcome
from astrarium.serving.record import BATCHES, Batches, Ints, Requests, ServingRecord, recorded
from astrarium.serving.scenario import Scenario, build
from astrarium.serving.scenario.cluster import Cluster, GpuGroup

NO_REPLICA = "no replica"  # why requests of a model that lives nowhere are dropped, at once


@dataclass(frozen=True)
class RecordPart:
    """A record part is a record of some requests (`numbers`, of the whole run) on some of the GPUs.

    In the record everything is counted from 0; the *cell* has the numbers in the whole run.
    """

    run_by: str
    cell: Cell
    numbers: Ints
    record: ServingRecord


def cell_scenario(scenario: Scenario, problem: Problem, cell: Cell) -> Scenario:
    """Return the scenario with the cell's GPUs and models only; its arrivals are made outside."""
    names = list(scenario.models)
    gpus = {gpu.id: gpu for gpu in problem.gpus}
    models = {
        names[index]: msgspec.structs.replace(scenario.models[names[index]], max_batch=limit)
        for index, limit in cell.limits
    }
    alike = groupby((gpus[id_].kind, gpus[id_].memory) for id_ in cell.gpus)
    groups = tuple(GpuGroup(len(list(members)), kind, Bytes(memory)) for (kind, memory), members in alike)
    return msgspec.structs.replace(scenario, cluster=Cluster(groups), models=models)


def part_of(arrivals: Arrivals, numbers: Ints, models: Sequence[int]) -> Arrivals:
    """Return some of the arrivals; models are renumbered by their place in *models*."""
    places = np.full(max(models, default=-1) + 1, -1, np.int32)
    places[list(models)] = np.arange(len(models), dtype=np.int32)
    return Arrivals(
        arrivals.time[numbers],
        places[arrivals.model[numbers]],
        arrivals.application[numbers],
        arrivals.work[numbers],
        arrivals.profiled[numbers],
        arrivals.length[numbers],
    )


def together(
    scenario: Scenario, setup: Setup, arrivals: Arrivals, parts: Sequence[RecordPart]
) -> ServingRecord:
    """Put parts together to one record; requests that are in no part are dropped."""
    left_out = len(arrivals) - sum(len(part.numbers) for part in parts)
    reasons = _reasons(parts, [NO_REPLICA] if left_out else [])
    batches, rank = _batches(parts)
    requests = _requests(arrivals, build.deadlines(arrivals, setup), parts, rank, reasons)
    engine = "native" if all(part.record.engine == "native" for part in parts) else "python"
    return recorded(scenario, setup, requests, batches, list(reasons), engine)


def _reasons(parts: Sequence[RecordPart], others: Sequence[str]) -> dict[str, int]:
    """Return codes by reason, in the order of the parts."""
    reasons = dict.fromkeys(["", *(reason for part in parts for reason in part.record.reasons), *others])
    return {reason: code for code, reason in enumerate(reasons)}


def _batches(parts: Sequence[RecordPart]) -> tuple[Batches, list[Ints]]:
    """Return the batches in the order of dispatch, and for each part the new numbers of its batches."""
    columns: dict[str, Any] = {
        name: np.concatenate([_column(part, name) for part in parts] or [np.empty(0, kind)])
        for name, kind in BATCHES.items()
    }
    order = np.argsort(columns["dispatched"], kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    edges = accumulate((len(part.record.batches.fate) for part in parts), initial=0)
    numbers = [rank[first:last] for first, last in pairwise(edges)]
    return Batches(**{name: column[order] for name, column in columns.items()}), numbers


def _column(part: RecordPart, name: str) -> Ints:
    column: Ints = getattr(part.record.batches, name)
    known = {"model": part.cell.models, "gpu": part.cell.gpus}.get(name)
    return column if known is None else np.array(known, np.int32)[column]


def _requests(
    arrivals: Arrivals,
    deadlines: Ints,
    parts: Sequence[RecordPart],
    rank: Sequence[Ints],
    reasons: dict[str, int],
) -> Requests:
    count = len(arrivals)
    outcome = np.full(count, Outcome.DROPPED, np.int8)
    kind = np.result_type(np.int8, *(part.record.requests.reason.dtype for part in parts))
    reason = np.full(count, reasons.get(NO_REPLICA, 0), kind)
    done = arrivals.time.copy()
    batch = np.full(count, -1, np.int64)
    for part, numbers in zip(parts, rank, strict=True):
        known = part.record.requests
        mine = part.numbers
        outcome[mine], done[mine] = known.outcome, known.done
        codes = np.array([reasons[text] for text in part.record.reasons], kind)
        reason[mine] = codes[known.reason]
        batch[mine] = np.where(known.batch >= 0, numbers[known.batch], -1) if len(numbers) else -1
    return Requests(
        arrivals.time,
        deadlines,
        arrivals.model,
        arrivals.application,
        outcome,
        reason,
        done,
        batch,
        arrivals.length,
    )
