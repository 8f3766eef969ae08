"""Squishy bin packing (Nexus, section 6.1) says which models share a GPU, and at which batch sizes.

A model that fills whole GPUs gets them, at its largest batch size. What remains of its rate is a residual
load, which needs a part of a GPU: it gathers a batch during one duty cycle and runs it in the next. Loads
that share a GPU share its duty cycle, the shortest of theirs, and their batches shrink ("squish") to what
arrives in it. Residual loads are placed in the order of their size, each where the GPU becomes fullest.

Rates here are requests per nanosecond, by the index of the model; costs include the network's delay. Among
equals the one that is listed first comes first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from astrarium.core.quantities import Time

_ROUNDING = 1e-3  # of a request: no reason to take a larger batch
_NEARLY = 1e-6  # of a GPU: not worth a replica
_HALVINGS = 12


@dataclass(frozen=True)
class PackingProfile:
    """A packing profile is what is known of a model; two batches of the size `largest` fit in its SLO."""

    model: int
    slo: Time
    costs: Sequence[Time]
    largest: int

    @property
    def peak(self) -> float:
        """Return the rate that one GPU can serve."""
        return self.largest / self.costs[self.largest]


@dataclass(frozen=True)
class RateShare:
    """A rate share is a part of one model's rate, with the longest duty cycle in which it keeps its SLO."""

    profile: PackingProfile
    rate: float
    duty: float

    def batch(self, duty: float) -> int:
        """Return the batch size: how many requests arrive during a duty cycle."""
        return min(self.profile.largest, max(1, math.ceil(duty * self.rate - _ROUNDING)))

    def occupancy(self, duty: float) -> float:
        return self.profile.costs[self.batch(duty)] / duty


@dataclass(eq=False)
class GpuLoads:
    """One GPU serves its `loads` in one duty cycle, the shortest of theirs."""

    loads: list[RateShare]
    duty: float = field(init=False)

    def __post_init__(self) -> None:
        self.duty = min(load.duty for load in self.loads)

    @property
    def models(self) -> set[int]:
        return {load.profile.model for load in self.loads}

    def occupancy_with(self, load: RateShare) -> float:
        duty = min(self.duty, load.duty)
        return math.fsum(one.occupancy(duty) for one in [*self.loads, load])

    def batches(self) -> dict[int, int]:
        return {load.profile.model: load.batch(self.duty) for load in self.loads}

    def throughputs(self) -> dict[int, float]:
        return {model: batch / self.duty for model, batch in self.batches().items()}


def whole(profile: PackingProfile) -> RateShare:
    """Return all that one GPU can do for a model."""
    return RateShare(profile, profile.peak, float(profile.costs[profile.largest]))


def residual(profile: PackingProfile, rate: float) -> RateShare:
    """Return a load of less than a GPU, with the largest batch whose first request can wait for its last."""
    batch = 1
    while batch < profile.largest and batch / rate + profile.costs[batch + 1] <= profile.slo:
        batch += 1
    cost = profile.costs[batch]
    return RateShare(profile, rate, max(float(cost), min(profile.slo - cost, batch / rate)))


def pack(profiles: Sequence[PackingProfile], rates: Sequence[float], gpus: int) -> list[GpuLoads] | None:
    """Pack the rates on at most *gpus* GPUs; return None if they do not fit."""
    nodes: list[GpuLoads] = []
    rest: list[RateShare] = []
    for profile in profiles:
        rate = rates[profile.model]
        full = int(rate / profile.peak + _NEARLY)
        nodes += [GpuLoads([whole(profile)]) for _ in range(min(full, gpus + 1))]
        left = rate - full * profile.peak
        if not full or left > _NEARLY * profile.peak:
            rest.append(residual(profile, left))
    nodes.sort(key=lambda node: -node.loads[0].duty)
    nodes += _share(rest)
    return nodes if len(nodes) <= gpus else None


def _share(loads: list[RateShare]) -> list[GpuLoads]:
    nodes: list[GpuLoads] = []
    for load in sorted(loads, key=lambda load: -load.occupancy(load.duty)):
        place = _fullest(nodes, load)
        if place < 0:
            nodes.append(GpuLoads([load]))
        else:
            nodes[place] = GpuLoads([*nodes[place].loads, load])
    return nodes


def _fullest(nodes: list[GpuLoads], load: RateShare) -> int:
    """Return the GPU on which the load fits most tightly; -1 if on none."""
    place = -1
    most = 0.0
    for candidate, node in enumerate(nodes):
        occupancy = node.occupancy_with(load)
        if most < occupancy <= 1:
            place = candidate
            most = occupancy
    return place


def plan(
    profiles: Sequence[PackingProfile], rates: Sequence[float], gpus: int, spread: bool
) -> list[GpuLoads]:
    """Plan the loads of at most *gpus* GPUs, with every model on at least one of them.

    The rates are first scaled by the largest factor (of those tried) with which they fit: a plan that is
    too small is shared by all models in proportion. With *spread*, the factor may exceed one, and what is
    then left over is given away too, so that all GPUs share the load.
    """
    ceiling = gpus / math.fsum(rates[profile.model] / profile.peak for profile in profiles)
    nodes = _pack_most(profiles, rates, gpus, ceiling if spread else min(1.0, ceiling))
    if nodes is None:
        return _everywhere(profiles, gpus)
    if spread:
        _fill(nodes, profiles, rates, gpus)
    return nodes


def _pack_most(
    profiles: Sequence[PackingProfile], rates: Sequence[float], gpus: int, high: float
) -> list[GpuLoads] | None:
    """Pack the rates times the largest factor, not above *high*, with which they fit."""
    best = pack(profiles, [rate * high for rate in rates], gpus)
    low = 0.0 if best is None else high
    for _ in range(_HALVINGS if best is None else 0):
        middle = (low + high) / 2
        nodes = pack(profiles, [rate * middle for rate in rates], gpus)
        if nodes is None:
            high = middle
        else:
            best = nodes
            low = middle
    return best


def _everywhere(profiles: Sequence[PackingProfile], gpus: int) -> list[GpuLoads]:
    """Let all models take turns on each GPU: they are too many to keep any duty cycle."""
    cycle = math.fsum(profile.costs[profile.largest] for profile in profiles)
    return [GpuLoads([RateShare(profile, profile.peak, cycle) for profile in profiles]) for _ in range(gpus)]


def _fill(
    nodes: list[GpuLoads], profiles: Sequence[PackingProfile], rates: Sequence[float], gpus: int
) -> None:
    """Use every GPU, and use it whole: a GPU that serves a single model is all that model's."""
    for place, node in enumerate(nodes):
        if len(node.loads) == 1:
            nodes[place] = GpuLoads([whole(node.loads[0].profile)])
    replicas = Counter(model for node in nodes for model in node.models)
    while len(nodes) < gpus:
        busiest = max(profiles, key=lambda one: rates[one.model] / (one.peak * replicas[one.model]))
        nodes.append(GpuLoads([whole(busiest)]))
        replicas[busiest.model] += 1


def settle(
    nodes: Sequence[GpuLoads], gpus: Sequence[int], before: dict[int, set[int]]
) -> dict[int, GpuLoads]:
    """Choose a GPU for each of *nodes*: one that ran many of its models already, else the next by id."""
    open_nodes = list(nodes)
    places: dict[int, GpuLoads] = {}
    for gpu in gpus[: len(nodes)]:
        kept = before.get(gpu, set())
        node = max(open_nodes, key=lambda node: len(kept & node.models))
        open_nodes.remove(node)
        places[gpu] = node
    return places
