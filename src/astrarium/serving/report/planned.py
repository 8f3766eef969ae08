"""A run by a plan in numbers: each cell and each GPU."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from rich.table import Table

from astrarium.core.quantities import to_seconds
from astrarium.run.tables import plain_table, ranges
from astrarium.serving.ledger import Outcome
from astrarium.serving.planned.parts import RecordPart
from astrarium.serving.record import ServingRecord
from astrarium.serving.report.summary import busy_time, measured_requests
from astrarium.serving.report.tables import goal

_MOST_CELLS = 40  # that are shown


class CellSummary(msgspec.Struct, frozen=True):
    """*models*, each with the largest batch that it runs here."""

    run_by: str
    gpus: list[int]
    models: dict[str, int]
    requests: int
    offered_rate: float
    goodput_rate: float
    attainment: float | None
    busy_fraction: float


class PlanSummary(msgspec.Struct, frozen=True):
    """*missing*: models that live nowhere, and why. `gpu_busy` is by GPU."""

    policy: str
    replicas: int
    missing: dict[str, str]
    cells: list[CellSummary]
    gpu_busy: list[float]


def summarize_plan(
    policy: str, replicas: int, missing: dict[str, str], parts: Sequence[RecordPart], record: ServingRecord
) -> PlanSummary:
    cells = [_cell(part) for part in parts]
    return PlanSummary(policy, replicas, missing, cells, _busy(record))


def _cell(part: RecordPart) -> CellSummary:
    record = part.record
    measured = measured_requests(record)
    span = to_seconds(record.duration - record.warmup)
    in_time = int(np.count_nonzero(record.requests.outcome[measured] == Outcome.IN_TIME))
    limits = zip(record.setup.models, part.cell.limits, strict=True)
    return CellSummary(
        run_by=part.run_by,
        gpus=list(part.cell.gpus),
        models={model.name: limit for model, (_, limit) in limits},
        requests=len(measured),
        offered_rate=len(measured) / span,
        goodput_rate=in_time / span,
        attainment=in_time / len(measured) if len(measured) else None,
        busy_fraction=float(np.mean(_busy(record))),
    )


def _busy(record: ServingRecord) -> list[float]:
    """Return the part of the measured time that each GPU was busy."""
    span = record.duration - record.warmup
    busy: list[float] = np.minimum(busy_time(record)[0] / span, 1.0).tolist()
    return busy


def cell_table(summary: PlanSummary) -> Table:
    """Return one row for each cell of a plan, and for each model that lives nowhere."""

    table = plain_table("GPUs", "models, with the largest batch", "run by", "offered/s", "attained", "busy")
    for column in table.columns[1:3]:
        column.justify = "left"
    for cell in summary.cells[:_MOST_CELLS]:
        models = ", ".join(f"{name} {limit}" for name, limit in cell.models.items())
        numbers = (f"{cell.offered_rate:,.0f}", goal(cell.attainment), f"{cell.busy_fraction:.1%}")
        table.add_row(ranges(cell.gpus), models, cell.run_by, *numbers)
    for name, why in summary.missing.items():
        table.add_row("none", f"{name}: {why}" if why else name)
    if len(summary.cells) > _MOST_CELLS:
        table.caption = f"the first {_MOST_CELLS} of {len(summary.cells)} cells"
    return table
