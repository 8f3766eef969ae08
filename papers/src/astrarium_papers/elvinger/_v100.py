"""Models measured on one V100 with 16 GB: Table A.1 of Elvinger's thesis, in `v100_profiles.json`.

The time of a batch is its size over the printed throughput: the printed latency is the same number, rounded
to a tenth of a millisecond, and in one row it cannot be read. Other numbers that cannot be read are None.
"""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.core.errors import InputError, one_of
from astrarium.core.quantities import SECOND, Time
from astrarium.placement.measured import MeasuredRow, demand, share, v100_rows
from astrarium.placement.problem import PlacedModel, PlacementGpu, Problem
from astrarium_papers.elvinger._measured import Measurement, measured_model

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


def placed_model(index: int, name: str, rate: float, slo: Time) -> PlacedModel:
    return measured_model(index, name, slo, rate, lookup(name))


def placed_models(names: Sequence[str], rate: float, slo: Time) -> tuple[PlacedModel, ...]:
    """Return models to place; *rate*, in requests a second, and *slo* are those of each."""
    return tuple(placed_model(index, name, rate, slo) for index, name in enumerate(names))


def v100s(count: int) -> tuple[PlacementGpu, ...]:
    return tuple(PlacementGpu(index, MEMORY, kind="v100") for index in range(count))


def problem(names: Sequence[str], rate: float, slo: Time, gpus: int) -> Problem:
    return Problem(placed_models(names, rate, slo), v100s(gpus))
