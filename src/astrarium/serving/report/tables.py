"""Results as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from rich.table import Table
from rich.text import Text

from astrarium.core.quantities import to_ms, to_seconds
from astrarium.placement.evaluation import StageLine
from astrarium.run.report import number, plain_table, ranges
from astrarium.serving.planned.parts import RecordPart
from astrarium.serving.record import ServingRecord
from astrarium.serving.report.summary import ModelSummary, Summary, busy_time, measured_requests
from astrarium.serving.state import Outcome

# What a plan made of a run: each cell and each GPU in numbers.


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
    found = [_cell(part) for part in parts]
    return PlanSummary(policy, replicas, missing, found, _busy(record))


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
    """Of the measured time, by GPU."""
    span = record.duration - record.warmup
    busy: list[float] = np.minimum(busy_time(record)[0] / span, 1.0).tolist()
    return busy


# Where the time of requests went on their way, stage by stage, as a table for a terminal.


def stage_table(
    lines: Sequence[StageLine], attained: Mapping[str, float | None], title: str = "where time went"
) -> Table:
    """A model's first line bears its name and how many of its requests were in time."""
    table = plain_table("model", "in time", "stage", "of the mean", "p50 ms", "p95 ms", "p99 ms")
    for column in table.columns[1:3]:
        column.justify = "left"
    table.title = title
    named = ""
    for line in lines:
        head = ("", "") if line.model == named else (line.model, f"{attained[line.model] or 0.0:.2%}")
        times = (f"{to_ms(time):,.2f}" for time in (line.p50, line.p95, line.p99))
        table.add_row(Text(head[0]), head[1], line.stage, f"{line.part:.1%}", *times)
        named = line.model
    return table


def plain_lines(lines: Sequence[StageLine]) -> list[dict[str, Any]]:
    """For --json."""
    return [
        {"model": line.model, "stage": line.stage, "part": line.part}
        | {f"{name}_ms": to_ms(getattr(line, name)) for name in ("p50", "p95", "p99")}
        for line in lines
    ]


GOAL = 0.99  # the share of requests in time that a latency objective asks for
_MOST_MODELS = 40
_MOST_CELLS = 40


def overview_table(summaries: Mapping[str, Summary]) -> Table:
    """One row for each run: what came in time, what did not, on what hardware.

    Losses that no run had get no column, so that the table fits a narrow terminal more often.
    """
    rows = [_overview_cells(summary) for summary in summaries.values()]
    names = [name for name in rows[0] if not all(row[name] in _NOTHING for row in rows)]
    table = plain_table("policy", *names)
    for label, row in zip(summaries, rows, strict=True):
        table.add_row(label, *(row[name] for name in names))
    return table


_NOTHING = ("", "0", "0.0%")


def _overview_cells(s: Summary) -> dict[str, str | Text]:
    return {
        "offered/s": f"{s.offered_rate:,.0f}",
        "in time/s": f"{s.goodput_rate:,.0f}",
        "attained": _goal(s.attainment),
        "worst model": _goal(s.worst.attainment) if s.worst and len(s.models) > 1 else "",
        "mean batch": _mean_batch(s),
        "late": f"{s.outcomes.late:,}",
        "dropped": f"{s.outcomes.dropped:,}",
        "failed": f"{s.outcomes.failed:,}",
        "GPUs busy": f"{s.gpus.busy_fraction:.1%}",
        "used": f"{s.gpus.used}/{s.gpus.count}",
        "wasted": f"{s.gpus.wasted_fraction:.1%}",
    }


def model_table(summary: Summary) -> Table:
    """Worst models first; only those if there are very many."""
    table = plain_table("model", "SLO ms", "offered/s", "attained", "p50 ms", "p99 ms", "mean batch",
                   "late", "dropped")  # fmt: skip
    models = sorted(summary.models.items(), key=_worst_first)
    for name, model in models[:_MOST_MODELS]:
        table.add_row(name, *_model_cells(model))
    if len(models) > _MOST_MODELS:
        table.caption = f"the worst {_MOST_MODELS} of {len(models)} models"
    return table


def cell_table(summary: PlanSummary) -> Table:
    """One row for each cell of a plan, and for each model that lives nowhere."""

    table = plain_table("GPUs", "models, with the largest batch", "run by", "offered/s", "attained", "busy")
    for column in table.columns[1:3]:
        column.justify = "left"
    for cell in summary.cells[:_MOST_CELLS]:
        models = ", ".join(f"{name} {limit}" for name, limit in cell.models.items())
        numbers = (f"{cell.offered_rate:,.0f}", _goal(cell.attainment), f"{cell.busy_fraction:.1%}")
        table.add_row(ranges(cell.gpus), models, cell.run_by, *numbers)
    for name, why in summary.missing.items():
        table.add_row("none", f"{name}: {why}" if why else name)
    if len(summary.cells) > _MOST_CELLS:
        table.caption = f"the first {_MOST_CELLS} of {len(summary.cells)} cells"
    return table


def _model_cells(model: ModelSummary) -> tuple[str | Text, ...]:
    return (
        f"{model.slo_ms:g}",
        f"{model.offered_rate:,.0f}",
        _goal(model.attainment),
        *(number(value) for value in (model.p50_ms, model.p99_ms, model.mean_batch)),
        f"{model.outcomes.late:,}",
        f"{model.outcomes.dropped:,}",
    )


def _worst_first(named: tuple[str, ModelSummary]) -> tuple[float, str]:
    name, model = named
    return (2.0 if model.attainment is None else model.attainment, name)


def _mean_batch(summary: Summary) -> str:
    batches = sum(model.batches for model in summary.models.values())
    size = sum((model.mean_batch or 0.0) * model.batches for model in summary.models.values())
    return number(size / batches if batches else None)


def _goal(attainment: float | None) -> Text:
    if attainment is None:
        return Text("-")
    return Text(f"{attainment:.2%}", style="green" if attainment >= GOAL else "red")
