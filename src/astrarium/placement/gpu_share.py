"""A share of a GPU slows a model even where it has that share to itself."""

from __future__ import annotations

from astrarium.placement.igniter.model import WHOLE, GpuTraits, Inverse, ModelTraits, TenantLoad, predict
from astrarium.placement.problem import GpuDemand, PlacedModel, PlacementGpu


def traits_of(model: PlacedModel) -> ModelTraits:
    """Return iGniter's coefficients of a model.

    Where there are none, its time is in inverse proportion to its share, without interference.
    """
    if model.igniter is not None:
        return model.igniter
    return ModelTraits(Inverse(model.alone.stage_times[0] if model.alone is not None else ()))


def demand_at(model: PlacedModel, batch: int) -> GpuDemand:
    """Return the demand measured for a batch, for the next larger one, or else for the largest."""
    sizes = sorted(model.demands)
    if not sizes:
        return GpuDemand()
    return model.demands[next((size for size in sizes if size >= batch), sizes[-1])]


def share_factor(model: PlacedModel, gpu: PlacementGpu, batch: int, share: float) -> float:
    """Return how many times as long as on the whole GPU a batch takes on a part of it.

    iGniter's coefficients tell, if there are any. Else a model loses nothing while its share is not below
    what it uses of the SMs, and from there on time grows in inverse proportion; a model for which that was
    not measured is taken to use all of them.
    """
    if share >= 1:
        return 1.0
    if model.igniter is None:
        used = demand_at(model, batch).sm_utilization
        return max(1.0, (1.0 if used is None else used) / share)
    traits = gpu.igniter or GpuTraits()
    [part] = predict(traits, [TenantLoad(model.igniter, batch, share * WHOLE)])
    [whole] = predict(traits, [TenantLoad(model.igniter, batch, WHOLE)])
    return max(1.0, part.latency / whole.latency)
