"""Models measured on one V100 with 16 GB: Table A.1 of Elvinger's thesis, in `v100_profiles.json`.

The time of a batch is its size over the printed throughput: the printed latency is the same number, rounded
to a tenth of a millisecond, and in one row it cannot be read. Other numbers that cannot be read are None.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.quantities import SECOND, Time
from astrarium.placement.measured import MeasuredRow, demand, share, v100_rows
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


def models() -> list[str]:
    """Return the models in the order of the table."""
    return list(v100_rows())


def lookup(model: str) -> tuple[Measurement, ...]:
    """Return the measured batches of a model, with rising sizes."""
    if model not in v100_rows():
        raise InputError("", model, f"a model measured on a V100: {one_of(models(), model)}")
    return tuple(_measured(row) for row in v100_rows()[model])


def _measured(row: MeasuredRow) -> Measurement:
    batch = row["batch"]
    rate = row["throughput_rps"]
    memory = share(row["memory_pct"])
    assert batch is not None
    assert rate is not None
    known = None if memory is None else round(memory * MEMORY)
    return Measurement(int(batch), round(batch / rate * SECOND), known, demand(row))


# Placement problems from the models that were measured on a V100.


def placed_model(index: int, name: str, rate: float, slo: Time) -> PlacedModel:
    return measured_model(index, name, slo, rate, lookup(name))


def placed_models(names: Sequence[str], rate: float, slo: Time) -> tuple[PlacedModel, ...]:
    """Return models to place; *rate*, in requests a second, and *slo* are those of each."""
    return tuple(placed_model(index, name, rate, slo) for index, name in enumerate(names))


def v100s(count: int) -> tuple[PlacementGpu, ...]:
    return tuple(PlacementGpu(index, MEMORY, kind="v100") for index in range(count))


def problem(names: Sequence[str], rate: float, slo: Time, gpus: int) -> Problem:
    return Problem(placed_models(names, rate, slo), v100s(gpus))
