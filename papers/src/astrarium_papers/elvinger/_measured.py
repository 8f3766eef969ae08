"""Models to place, from measurements of some batch sizes alone on one GPU."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.quantities import Time
from astrarium.placement.problem import ALONE, Form, GpuDemand, PlacedModel


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
