"""What a plan made of a run: each cell and each GPU in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from astrarium.core.units import to_seconds
from astrarium.serving.record import ServingRecord
from astrarium.serving.report.summary import busy_time, measured_requests
from astrarium.serving.state import Outcome


class Cell(Protocol):
    """A part of a planned run, with a record of its own."""

    @property
    def run_by(self) -> str: ...
    @property
    def gpus(self) -> tuple[int, ...]: ...
    @property
    def limits(self) -> tuple[int, ...]: ...
    @property
    def record(self) -> ServingRecord: ...


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
    policy: str, replicas: int, missing: dict[str, str], parts: Sequence[Cell], record: ServingRecord
) -> PlanSummary:
    found = [_cell(part) for part in parts]
    return PlanSummary(policy, replicas, missing, found, _busy(record))


def _cell(part: Cell) -> CellSummary:
    record = part.record
    measured = measured_requests(record)
    span = to_seconds(record.duration - record.warmup)
    in_time = int(np.count_nonzero(record.requests.outcome[measured] == Outcome.IN_TIME))
    names = [model.name for model in record.setup.models]
    return CellSummary(
        run_by=part.run_by,
        gpus=list(part.gpus),
        models=dict(zip(names, part.limits, strict=True)),
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


def ranges(numbers: Sequence[int]) -> str:
    """'0-2, 5'"""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
