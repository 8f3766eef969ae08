"""Tables of models that were measured on V100s of 16 GB come along: AlpaServe's, and Elvinger's thesis's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from astrarium.core.quantities import MILLISECOND
from astrarium.placement.problem import Form, GpuDemand, Shape, parse_shape

MeasuredRow = Mapping[str, float | None]  # a batch size by column; what cannot be read in print is None


def _table(name: str) -> Any:
    return msgspec.json.decode(files("astrarium.placement").joinpath(name).read_bytes())


@cache
def alpaserve_forms() -> dict[str, dict[Shape, Form]]:
    """Return the forms of each model for batches of one request; the largest has none for a single GPU."""
    models = _table("alpaserve.json")["models"]
    return {model: {form.shape: form for form in map(_form, rows.items())} for model, rows in models.items()}


def _form(named: tuple[str, dict[str, Any]]) -> Form:
    shape, row = named
    times = tuple((0, round(ms * MILLISECOND)) for ms in row["ms"])
    return Form(parse_shape(shape, ""), times, tuple(row["weights"]), tuple(row["activations"]))


@cache
def v100_rows() -> dict[str, list[MeasuredRow]]:
    """Return the rows of each model in Table A.1 of Elvinger's thesis, with rising batch sizes."""
    table = _table("v100_profiles.json")
    columns = table["columns"]
    models = table["models"]
    return {name: [dict(zip(columns, row, strict=True)) for row in rows] for name, rows in models.items()}


@cache
def v100_demands() -> dict[str, dict[int, GpuDemand]]:
    """Return what each model uses of the GPU, by batch size."""
    return {name: {int(row["batch"] or 0): demand(row) for row in rows} for name, rows in v100_rows().items()}


def demand(row: MeasuredRow) -> GpuDemand:
    names = ("achieved_occupancy_pct", "weighted_occupancy_pct", "weighted_sm_utilization_pct")
    return GpuDemand(*(share(row[name]) for name in names))


def share(percent: float | None) -> float | None:
    return None if percent is None else round(percent / 100, 6)
