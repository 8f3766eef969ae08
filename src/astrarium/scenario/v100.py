"""Placement problems from the models that were measured on a V100."""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.core.units import Time
from astrarium.serving.placement.measured import Measurement, measured_model
from astrarium.serving.placement.problem import Demand, PlacedModel, PlacementGpu, Problem
from astrarium.workloads import v100


def placed_model(index: int, name: str, rate: float, slo: Time) -> PlacedModel:
    return measured_model(index, name, slo, rate, [_measurement(row) for row in v100.lookup(name)])


def placed_models(names: Sequence[str], rate: float, slo: Time) -> tuple[PlacedModel, ...]:
    """*rate*, in requests a second, and *slo* are those of each."""
    return tuple(placed_model(index, name, rate, slo) for index, name in enumerate(names))


def v100s(count: int) -> tuple[PlacementGpu, ...]:
    return tuple(PlacementGpu(index, v100.MEMORY, kind="v100") for index in range(count))


def problem(names: Sequence[str], rate: float, slo: Time, gpus: int) -> Problem:
    return Problem(placed_models(names, rate, slo), v100s(gpus))


def _measurement(row: v100.Measured) -> Measurement:
    demand = Demand(row.occupancy, row.weighted_occupancy, row.sm_utilization)
    return Measurement(row.batch, row.time, row.memory, demand)
