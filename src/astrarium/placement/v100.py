"""Models measured on one V100 with 16 GB: Table A.1 of Elvinger's thesis, in `v100_profiles.json`.

The time of a batch is its size over the printed throughput: the printed latency is the same number, rounded
to a tenth of a millisecond, and in one row it cannot be read. Other numbers that cannot be read are None.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.units import SECOND, Time
from astrarium.placement.problem import ALONE, Form, GpuDemand, PlacedModel, PlacementGpu, Problem

# Models from measurements of some batch sizes, alone on one GPU.


class Measurement(msgspec.Struct, frozen=True):
    """A measurement of batches of a size; *memory* is in bytes, None where it is not known."""

    batch: int
    time: Time
    memory: int | None
    demand: GpuDemand = GpuDemand()


def measured_model(
    index: int, name: str, slo: Time, rate: float, measurements: Sequence[Measurement]
) -> PlacedModel:
    form = measured_form(measurements, name)
    return PlacedModel(index, name, slo, rate, {ALONE: form}, {row.batch: row.demand for row in measurements})


def measured_form(measurements: Sequence[Measurement], source: str = "") -> Form:
    """Return the form of a model from *measurements* with rising batch sizes."""
    sizes = [row.batch for row in measurements]
    if not sizes or sizes[0] < 1 or sizes != sorted(set(sizes)):
        raise InputError("measurements", sizes, "at least one batch size, each larger than the last", source)
    if measurements[-1].memory is None:
        raise InputError("memory", None, f"a number of bytes for batches of {sizes[-1]}", source)
    known = [row for row in measurements if row.memory is not None]
    times = (0, *(_time(measurements, sizes, batch) for batch in range(1, sizes[-1] + 1)))
    reserved = tuple(_memory(known, batch) for batch in range(sizes[-1] + 1))
    return Form(ALONE, (times,), (reserved[0],), reserved=(reserved,))


def _time(rows: Sequence[Measurement], sizes: list[int], batch: int) -> Time:
    at = bisect_left(sizes, batch)
    above = rows[at]
    if at == 0 or above.batch == batch:
        return above.time
    below = rows[at - 1]
    return below.time + (above.time - below.time) * (batch - below.batch) // (above.batch - below.batch)


def _memory(known: list[Measurement], batch: int) -> int:
    return next(row.memory for row in known if row.batch >= batch and row.memory is not None)


MEMORY = 16 * 2**30


class MeasuredBatch(msgspec.Struct, frozen=True):
    """A measured batch was alone on the GPU; memory is in bytes, the rest are shares of the GPU, 0 to 1."""

    batch: int
    time: Time
    memory: int | None
    occupancy: float | None
    weighted_occupancy: float | None
    sm_utilization: float | None


def models() -> list[str]:
    """Return the models in the order of the table."""
    return list(_table())


def lookup(model: str) -> tuple[MeasuredBatch, ...]:
    """Return the measured batches of a model, with rising sizes."""
    if model not in _table():
        raise InputError("", model, f"a model measured on a V100: {one_of(models(), model)}")
    return _table()[model]


@cache
def _table() -> dict[str, tuple[MeasuredBatch, ...]]:
    text = files("astrarium.placement").joinpath("v100_profiles.json").read_text(encoding="utf-8")
    table = msgspec.json.decode(text)
    columns = table["columns"]
    return {
        name: tuple(_measured(dict(zip(columns, row, strict=True))) for row in rows)
        for name, rows in table["models"].items()
    }


def _measured(row: dict[str, Any]) -> MeasuredBatch:
    memory = _share(row["memory_pct"])
    return MeasuredBatch(
        batch=row["batch"],
        time=round(row["batch"] / row["throughput_rps"] * SECOND),
        memory=None if memory is None else round(memory * MEMORY),
        occupancy=_share(row["achieved_occupancy_pct"]),
        weighted_occupancy=_share(row["weighted_occupancy_pct"]),
        sm_utilization=_share(row["weighted_sm_utilization_pct"]),
    )


def _share(percent: float | None) -> float | None:
    return None if percent is None else round(percent / 100, 6)


# Placement problems from the models that were measured on a V100.


def placed_model(index: int, name: str, rate: float, slo: Time) -> PlacedModel:
    return measured_model(index, name, slo, rate, [_measurement(row) for row in lookup(name)])


def placed_models(names: Sequence[str], rate: float, slo: Time) -> tuple[PlacedModel, ...]:
    """Return models to place; *rate*, in requests a second, and *slo* are those of each."""
    return tuple(placed_model(index, name, rate, slo) for index, name in enumerate(names))


def v100s(count: int) -> tuple[PlacementGpu, ...]:
    return tuple(PlacementGpu(index, MEMORY, kind="v100") for index in range(count))


def problem(names: Sequence[str], rate: float, slo: Time, gpus: int) -> Problem:
    return Problem(placed_models(names, rate, slo), v100s(gpus))


def _measurement(row: MeasuredBatch) -> Measurement:
    demand = GpuDemand(row.occupancy, row.weighted_occupancy, row.sm_utilization)
    return Measurement(row.batch, row.time, row.memory, demand)
