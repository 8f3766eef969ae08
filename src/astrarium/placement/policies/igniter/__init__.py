"""iGniter uses as few GPUs as possible, with the smallest shares that keep the objectives beside others.

Xu et al., "iGniter: Interference-Aware GPU Resource Provisioning for Predictable DNN Inference in the Cloud"
(IEEE TPDS 34(3), 2022). Half of an objective is for gathering a batch, half for running it. Each model gets
the batch that keeps up with its rate and the least share that would do alone. Then, the largest share first,
it is tried on every GPU in use: whoever misses its objective there gets more, unit by unit, until nobody does
or the GPU is full. The GPU where that takes the least wins; where there is none, another GPU is opened. A
model too large for one GPU first fills whole ones, planned at 90 % of what they can do.

Settled by us:
- Batches stay within the memory and the profile of the model. One that is smaller than its rate asks for must
  be faster in turn, so that every replica keeps up with what it was given.
- Nobody is placed where it, or another, would miss by the model's own prediction, also when GPUs run out.
  Then two orders are tried, the one above and the most requests for a share first, and the plan that serves
  more is kept. What is left is done in part: the largest part that fits beside the others, then of the rest,
  on one GPU after another, and `why` says how much. A model with no place at all is missing, with what it
  would have taken and how many GPUs the whole load takes. With `leftovers: truncate` the plan is the one for
  as many GPUs as it takes, without those that are not there (Elvinger's thesis, section 5.1.5).
- A model without coefficients is taken to need time in inverse proportion to its share, and to disturb
  nobody; its `why` says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Literal

import msgspec

from astrarium.core.quantities import gib
from astrarium.placement.igniter import model as igniter
from astrarium.placement.plan import Plan, Replica
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.policies.igniter.gpu import IgniterGpu, ReplicaLoad, ShareTrial
from astrarium.placement.policies.igniter.loads import ModelLoad, parts, split, workload
from astrarium.placement.problem import Problem

_NOTHING = 1e-6  # requests a second: what rounding leaves


@placement_policies.register("igniter")
class Igniter:
    """Share GPUs by a model of interference: few GPUs, the smallest shares that keep the objectives."""

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        leftovers: Annotated[
            Literal["squeeze", "truncate"],
            msgspec.Meta(description="what finds no GPU: done in part where it fits, or left out"),
        ] = "squeeze"
        headroom: Annotated[
            float, msgspec.Meta(gt=0, le=1, description="how much of whole GPUs to plan with")
        ] = 0.9

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def place(self, problem: Problem, search: Search) -> Plan:
        if not problem.gpus:
            return Plan("igniter", (), {model.index: "a GPU: there is none" for model in problem.models})
        largest = max(_empty_gpus(problem), key=lambda gpu: gpu.memory)  # what workloads are sized for
        sized = {model.index: workload(model, largest) for model in problem.models}
        loads = {index: load for index, load in sized.items() if isinstance(load, ModelLoad)}
        missing = {index: why for index, why in sized.items() if isinstance(why, str)}
        pieces = _in_order(loads, largest, self.parameters.headroom)
        gpus = _endless(pieces, _empty_gpus(problem), largest)
        if len(gpus) > len(problem.gpus):
            needed = sum(1 for gpu in gpus if gpu.pieces)
            missing = {index: _out_of_room(pieces, index, largest, needed) for index in loads} | missing
            gpus = self._best_effort(problem, pieces, loads, largest, gpus[: len(problem.gpus)])
        return _plan(problem, gpus, missing)

    def _best_effort(
        self,
        problem: Problem,
        pieces: Sequence[ReplicaLoad],
        loads: Mapping[int, ModelLoad],
        largest: IgniterGpu,
        truncated: list[IgniterGpu],
    ) -> list[IgniterGpu]:
        if self.parameters.leftovers == "truncate":
            return truncated
        by_yield = sorted(pieces, key=lambda piece: -piece.rate / largest.least_units(piece))
        plans = [_squeezed(_empty_gpus(problem), order, loads, largest) for order in (pieces, by_yield)]
        return max(plans, key=lambda gpus: math.fsum(piece.rate for gpu in gpus for piece in gpu.pieces))


def _empty_gpus(problem: Problem) -> list[IgniterGpu]:
    return [IgniterGpu(gpu.id, gpu.memory, gpu.igniter or igniter.GpuTraits()) for gpu in problem.gpus]


def _in_order(loads: Mapping[int, ModelLoad], gpu: IgniterGpu, headroom: float) -> list[ReplicaLoad]:
    pieces = [piece for load in loads.values() for piece in split(load, gpu, headroom)]
    return sorted(pieces, key=lambda piece: -gpu.least_units(piece))


def _settled(gpus: Sequence[IgniterGpu], piece: ReplicaLoad) -> bool:
    """Place a piece on the GPU in use where shares grow least; else on the first empty one that will do."""
    trials = [(gpu, trial) for gpu in gpus if gpu.pieces and not gpu.full and (trial := gpu.tried(piece))]
    if not trials:
        opened = ((gpu, trial) for gpu in gpus if not gpu.pieces and (trial := gpu.tried(piece)))
        trials = list(islice(opened, 1))
    if not trials:
        return False
    gpu, trial = min(trials, key=lambda pair: pair[1].added)
    gpu.settle(trial)
    return True


def _endless(pieces: Sequence[ReplicaLoad], gpus: list[IgniterGpu], largest: IgniterGpu) -> list[IgniterGpu]:
    """Place all pieces on as many GPUs as it takes: those of the cluster, then more like the largest."""
    for piece in pieces:
        if not _settled(gpus, piece):
            gpus = [*gpus, IgniterGpu(-1, largest.memory, largest.traits)]
            _settled(gpus[-1:], piece)
    return gpus


def _out_of_room(pieces: Iterable[ReplicaLoad], model: int, gpu: IgniterGpu, needed: int) -> str:
    """Say why a model is missing, should it find no place."""
    own = [piece for piece in pieces if piece.model == model]
    parts = [f"{gpu.least_units(piece) * gpu.traits.unit:g} %" for piece in own if not piece.whole]
    whole = len(own) - len(parts)
    room = " and ".join([f"{whole} x 100 %"] * bool(whole) + parts)
    batches = max(piece.batch for piece in own)
    memory = gib(max(piece.memory for piece in own))
    demand = f"{room} of a GPU and {memory}, with batches of up to {batches}: more than any has left"
    return f"{demand}; the whole load takes {needed} GPUs"


def _squeezed(
    gpus: list[IgniterGpu], pieces: Sequence[ReplicaLoad], loads: Mapping[int, ModelLoad], largest: IgniterGpu
) -> list[IgniterGpu]:
    """Place the pieces that fit as they are, and of the others as much as there is room for."""
    left: dict[int, float] = {}
    for piece in pieces:
        if not _settled(gpus, piece):
            left[piece.model] = left.get(piece.model, 0.0) + piece.rate
    for model, rate in left.items():
        while rate > _NOTHING and (fitting := _largest_part(loads[model], rate, gpus, largest)):
            gpu, trial = fitting
            gpu.settle(trial)
            rate -= trial.piece.rate
    return gpus


def _largest_part(
    load: ModelLoad, rate: float, gpus: Sequence[IgniterGpu], largest: IgniterGpu
) -> tuple[IgniterGpu, ShareTrial] | None:
    """Find the largest part of a rate that fits on a GPU without the model; of equals, the cheapest."""
    for part in parts(load, largest, rate):
        others = (gpu for gpu in gpus if all(piece.model != part.model for piece in gpu.pieces))
        trials = [(gpu, trial) for gpu in others if (trial := gpu.tried(part))]
        if trials:
            return min(trials, key=lambda pair: pair[1].added)
    return None


def _plan(problem: Problem, gpus: Sequence[IgniterGpu], missing: Mapping[int, str]) -> Plan:
    rates = {model.index: model.rate for model in problem.models}
    served = dict.fromkeys(rates, 0.0)
    replicas: list[Replica] = []
    for gpu in gpus:
        for place, (piece, expected) in enumerate(zip(gpu.pieces, gpu.predictions(), strict=True)):
            served[piece.model] += piece.rate
            why = _why(gpu, piece, expected, rates[piece.model])
            share = round(gpu.share(place) / 100, 9)
            replicas.append(Replica(piece.model, (gpu.id,), batch=piece.batch, share=share, why=why))
    placed = {replica.model for replica in replicas}
    unplaced = {index: why for index, why in sorted(missing.items()) if index not in placed}
    total = math.fsum(rates.values())
    attainment = min(1.0, math.fsum(served.values()) / total) if total else None
    return Plan("igniter", tuple(replicas), unplaced, attainment)


def _why(gpu: IgniterGpu, piece: ReplicaLoad, expected: igniter.Prediction, rate: float) -> str:
    alone = gpu.least_units(piece) * gpu.traits.unit
    sentence = f"batches of {piece.batch} take {expected.latency:.2f} of {piece.budget:.2f} ms"
    sentence += "; a GPU for itself" if piece.whole else f"; alone {alone:g} % would do"
    if piece.rate < rate - _NOTHING:
        sentence += f"; {piece.rate:.1f} of {rate:.1f} requests a second"
    return sentence + ("; without coefficients" if isinstance(piece.traits.active, igniter.Inverse) else "")
