"""What a part of a GPU does to a model that has it to itself."""

from __future__ import annotations

from astrarium.serving.placement.igniter_model import (
    WHOLE,
    GpuTraits,
    Inverse,
    Load,
    ModelTraits,
    predict,
)
from astrarium.serving.placement.problem import Demand, PlacedModel, PlacementGpu


def traits_of(model: PlacedModel) -> ModelTraits:
    """iGniter's coefficients; where nobody fitted any, time in inverse proportion to the share, and no
    interference."""
    if model.igniter is not None:
        return model.igniter
    return ModelTraits(Inverse(model.alone.stage_times[0] if model.alone is not None else ()))


def demand_at(model: PlacedModel, batch: int) -> Demand:
    """As measured for the batch, for the next larger one, or else for the largest."""
    sizes = sorted(model.demands)
    if not sizes:
        return Demand()
    return model.demands[next((size for size in sizes if size >= batch), sizes[-1])]


def share_factor(model: PlacedModel, gpu: PlacementGpu, batch: int, share: float) -> float:
    """How many times as long as on the whole GPU a batch takes on a part of it.

    By iGniter's coefficients, if there are any. Else a model loses nothing while its share is not below what
    it uses of the SMs, and from there on time grows in inverse proportion; one of which nobody knows that is
    taken to use all of them.
    """
    if share >= 1:
        return 1.0
    if model.igniter is None:
        used = demand_at(model, batch).sm_utilization
        return max(1.0, (1.0 if used is None else used) / share)
    traits = gpu.igniter or GpuTraits()
    [part] = predict(traits, [Load(model.igniter, batch, share * WHOLE)])
    [whole] = predict(traits, [Load(model.igniter, batch, WHOLE)])
    return max(1.0, part.latency / whole.latency)
