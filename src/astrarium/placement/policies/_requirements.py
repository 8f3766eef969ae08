"""Requirements say what replicas need and serve, by profiles: the oracle of Usher and its relatives.

Shares of a GPU are whole numbers of 1/10 000 here, rounded up, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Literal

import msgspec

from astrarium.core.quantities import SECOND, gib
from astrarium.placement.problem import Form, PlacedModel, Problem

WHOLE = 10_000
ROUNDING = 1e-4  # of a unit: what conversions of floats and whole bytes add at most
MICRO = 1_000_000

Metric = Literal["occupancy", "weighted_occupancy", "sm_utilization"]
METRIC_NAMES: dict[Metric, str] = {
    "occupancy": "achieved occupancy",
    "weighted_occupancy": "weighted achieved occupancy",
    "sm_utilization": "weighted SM utilization",
}


class BatchOption(msgspec.Struct, frozen=True):
    """A batch option is a replica with batches of a size: *goodput* in 1e-6 requests/s, *memory* in bytes.

    *compute* and *memory_share* are of a whole GPU, the latter of the largest one.
    """

    batch: int
    goodput: int
    compute: int
    memory: int
    memory_share: int


class ModelNeeds(msgspec.Struct, frozen=True):
    """A model's needs by batch size: all that were *profiled*, and those *usable* within SLO and memory."""

    model: PlacedModel
    profiled: tuple[BatchOption, ...]
    usable: tuple[BatchOption, ...]

    @property
    def rate(self) -> int:
        return round(self.model.rate * MICRO)

    def replicas(self, option: BatchOption) -> int:
        """Return how many replicas serve the whole load, by throughput alone."""
        return max(1, -(-self.rate // option.goodput))


def all_needs(problem: Problem, metric: Metric) -> list[ModelNeeds]:
    largest = max((gpu.memory for gpu in problem.gpus), default=0)
    return [_needs(model, metric, largest) for model in problem.models]


def why_unusable(needs: ModelNeeds, metric: Metric, gpus: Sequence[object]) -> str:
    """Say what a model without a usable batch size would have taken."""
    form = needs.model.alone
    if not gpus:
        return "at least one GPU"
    if form is None:
        return "a form for one GPU: this policy does not spread a model over several"
    if not needs.profiled:
        return f"a profile: its {METRIC_NAMES[metric]} was not measured for any batch size it can run"
    in_time = [option for option in needs.profiled if form.latency(option.batch) <= needs.model.slo]
    if not in_time:
        fastest = min(form.latency(option.batch) for option in needs.profiled)
        return f"an SLO of {fastest / 1e6:.1f} ms or more, not {needs.model.slo / 1e6:g} ms"
    return f"a GPU with {gib(min(option.memory for option in in_time))} or more"


def _needs(model: PlacedModel, metric: Metric, largest: int) -> ModelNeeds:
    form = model.alone
    if form is None or not largest:
        return ModelNeeds(model, (), ())
    shares = {batch: getattr(demand, metric) for batch, demand in sorted(model.demands.items())}
    profiled = tuple(
        _option(form, batch, share, largest)
        for batch, share in shares.items()
        if share is not None and 1 <= batch <= form.max_batch
    )
    usable = (
        option
        for option in profiled
        if form.latency(option.batch) <= model.slo and option.memory <= largest and option.compute <= WHOLE
    )
    return ModelNeeds(model, profiled, tuple(usable))


def _option(form: Form, batch: int, share: float, largest: int) -> BatchOption:
    memory = form.memory(0, batch)
    goodput = round(batch * SECOND / form.interval(batch) * MICRO)
    return BatchOption(batch, goodput, _units(share), memory, _units(memory / largest))


def _units(share: float) -> int:
    return ceil(share * WHOLE - ROUNDING)
