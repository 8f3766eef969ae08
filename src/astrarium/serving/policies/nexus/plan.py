"""Squishy bin packing (Nexus, section 6.1): which models share a GPU, and at which batch sizes.

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

from astrarium.core.units import Time

_ROUNDING = 1e-3  # of a request: no reason to take a larger batch
_NEARLY = 1e-6  # of a GPU: not worth a replica
_HALVINGS = 12


@dataclass(frozen=True)
class Profile:
    """What the packing knows of a model; `largest` is the batch size at which two batches fit in the SLO."""

    model: int
    slo: Time
    costs: Sequence[Time]
    largest: int

    @property
    def peak(self) -> float:
        """The rate that one GPU can serve."""
        return self.largest / self.costs[self.largest]


@dataclass(frozen=True)
class Load:
    """A share of one model's rate, and the longest duty cycle in which it keeps its SLO."""

    profile: Profile
    rate: float
    duty: float

    def batch(self, duty: float) -> int:
        """How many requests arrive during a duty cycle."""
        return min(self.profile.largest, max(1, math.ceil(duty * self.rate - _ROUNDING)))

    def occupancy(self, duty: float) -> float:
        return self.profile.costs[self.batch(duty)] / duty


@dataclass(eq=False)
class Node:
    """What one GPU is to do: `loads` in one duty cycle."""

    loads: list[Load]
    duty: float = field(init=False)

    def __post_init__(self) -> None:
        self.duty = min(load.duty for load in self.loads)

    @property
    def models(self) -> set[int]:
        return {load.profile.model for load in self.loads}

    def occupancy_with(self, load: Load) -> float:
        duty = min(self.duty, load.duty)
        return math.fsum(one.occupancy(duty) for one in [*self.loads, load])

    def batches(self) -> dict[int, int]:
        return {load.profile.model: load.batch(self.duty) for load in self.loads}

    def throughputs(self) -> dict[int, float]:
        return {model: batch / self.duty for model, batch in self.batches().items()}


def whole(profile: Profile) -> Load:
    """All that one GPU can do for a model."""
    return Load(profile, profile.peak, float(profile.costs[profile.largest]))


def residual(profile: Profile, rate: float) -> Load:
    """Less than a GPU's worth: the largest batch whose first request can wait for its last."""
    batch = 1
    while batch < profile.largest and batch / rate + profile.costs[batch + 1] <= profile.slo:
        batch += 1
    cost = profile.costs[batch]
    return Load(profile, rate, max(float(cost), min(profile.slo - cost, batch / rate)))


def pack(profiles: Sequence[Profile], rates: Sequence[float], gpus: int) -> list[Node] | None:
    """The rates on at most that many GPUs; None if they do not fit."""
    nodes: list[Node] = []
    rest: list[Load] = []
    for profile in profiles:
        rate = rates[profile.model]
        full = int(rate / profile.peak + _NEARLY)
        nodes += [Node([whole(profile)]) for _ in range(min(full, gpus + 1))]
        left = rate - full * profile.peak
        if not full or left > _NEARLY * profile.peak:
            rest.append(residual(profile, left))
    nodes.sort(key=lambda node: -node.loads[0].duty)
    nodes += _share(rest)
    return nodes if len(nodes) <= gpus else None


def _share(loads: list[Load]) -> list[Node]:
    nodes: list[Node] = []
    for load in sorted(loads, key=lambda load: -load.occupancy(load.duty)):
        place = _fullest(nodes, load)
        if place < 0:
            nodes.append(Node([load]))
        else:
            nodes[place] = Node([*nodes[place].loads, load])
    return nodes


def _fullest(nodes: list[Node], load: Load) -> int:
    """Where the load fits most tightly; -1 if nowhere."""
    place, most = -1, 0.0
    for candidate, node in enumerate(nodes):
        occupancy = node.occupancy_with(load)
        if most < occupancy <= 1:
            place, most = candidate, occupancy
    return place


def plan(profiles: Sequence[Profile], rates: Sequence[float], gpus: int, spread: bool) -> list[Node]:
    """At most one node for each GPU, and every model on one of them at least.

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
    profiles: Sequence[Profile], rates: Sequence[float], gpus: int, high: float
) -> list[Node] | None:
    """Bisects for the largest factor not above *high* with which the rates fit."""
    best = pack(profiles, [rate * high for rate in rates], gpus)
    low = 0.0 if best is None else high
    for _ in range(_HALVINGS if best is None else 0):
        middle = (low + high) / 2
        nodes = pack(profiles, [rate * middle for rate in rates], gpus)
        if nodes is None:
            high = middle
        else:
            best, low = nodes, middle
    return best


def _everywhere(profiles: Sequence[Profile], gpus: int) -> list[Node]:
    """Too many models for the GPUs to keep any duty cycle: all of them take turns on each GPU."""
    cycle = math.fsum(profile.costs[profile.largest] for profile in profiles)
    return [Node([Load(profile, profile.peak, cycle) for profile in profiles]) for _ in range(gpus)]


def _fill(nodes: list[Node], profiles: Sequence[Profile], rates: Sequence[float], gpus: int) -> None:
    """Leave no GPU unused, in part or whole: one that serves a single model is all that model's."""
    for place, node in enumerate(nodes):
        if len(node.loads) == 1:
            nodes[place] = Node([whole(node.loads[0].profile)])
    replicas = Counter(model for node in nodes for model in node.models)
    while len(nodes) < gpus:
        busiest = max(profiles, key=lambda one: rates[one.model] / (one.peak * replicas[one.model]))
        nodes.append(Node([whole(busiest)]))
        replicas[busiest.model] += 1


def settle(nodes: Sequence[Node], gpus: Sequence[int], before: dict[int, set[int]]) -> dict[int, Node]:
    """A GPU for each node: one that ran many of its models already, else the next by id."""
    open_nodes = list(nodes)
    places: dict[int, Node] = {}
    for gpu in gpus[: len(nodes)]:
        kept = before.get(gpu, set())
        node = max(open_nodes, key=lambda node: len(kept & node.models))
        open_nodes.remove(node)
        places[gpu] = node
    return places
