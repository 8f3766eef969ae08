"""What a plan makes of its GPUs: memory, and how busy each replica would keep them at a given load."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from astrarium.core.units import SECOND
from astrarium.serving.placement.cells import cells, stations
from astrarium.serving.placement.plan import Plan, Replica, memory_on, stage_of
from astrarium.serving.placement.problem import PlacedModel, PlacementGpu, Problem
from astrarium.serving.placement.router import WHOLE as PARTS
from astrarium.serving.placement.router import balanced
from astrarium.serving.placement.sharing import share_factor


class ReplicaUse(msgspec.Struct, frozen=True):
    """On one GPU. *busy*: the part of the time that it works there, in batches as good as they get."""

    replica: Replica
    memory: int
    busy: float


class GpuUse(msgspec.Struct, frozen=True):
    """*busy* is of the GPU's whole time; replicas with parts of it work side by side."""

    gpu: PlacementGpu
    memory: int
    replicas: tuple[ReplicaUse, ...]

    @property
    def divided(self) -> bool:
        return any(use.replica.share < 1 for use in self.replicas)

    @property
    def busy(self) -> float:
        """Side by side, the one that works most tells when the GPU is full."""
        each = [use.busy for use in self.replicas]
        return max(each, default=0.0) if self.divided else math.fsum(each)


def uses(plan: Plan, problem: Problem, factors: Sequence[float] = ()) -> tuple[GpuUse, ...]:
    """*factors*: how many times its rate each model gets; none: its rate."""
    models = {model.index: model for model in problem.models}
    scale = factors or [1.0] * len(problem.models)
    rates = [model.rate * factor for model, factor in zip(problem.models, scale, strict=True)]
    found = cells(plan, problem)
    of_cells, of_queues = stations(found, problem)
    parts = balanced([model.rate for model in problem.models], [*of_cells, *of_queues])
    queues = _queue_numbers(found.queued, len(of_cells))
    home = {gpu: number for number, cell in enumerate(found.cells) for gpu in cell.gpus}

    def load(replica: Replica, gpu: int) -> float:
        """Requests a second that come to a replica, as the router divides them: for the load of today."""
        number = home[gpu] if gpu in home else queues[replica]
        crowd = len(found.cells[number].gpus) if gpu in home else 1
        return rates[replica.model] * float(parts[number, replica.model]) / PARTS / crowd

    return tuple(_gpu_use(plan, problem, models, gpu, load) for gpu in problem.gpus)


def _queue_numbers(queued: Sequence[Replica], first: int) -> dict[Replica, int]:
    """Replicas on the same GPUs, whole, are one station; each with a part of a GPU is its own."""
    keys = [(one.gpus, one.shape) if one.share >= 1 else number for number, one in enumerate(queued)]
    order = list(dict.fromkeys(keys))
    return {one: first + order.index(key) for one, key in zip(queued, keys, strict=True)}


def _gpu_use(
    plan: Plan,
    problem: Problem,
    models: Mapping[int, PlacedModel],
    gpu: PlacementGpu,
    load: Callable[[Replica, int], float],
) -> GpuUse:
    found = tuple(
        _replica_use(models[replica.model], gpu, replica, load(replica, gpu.id))
        for replica in plan.on_gpu(gpu.id)
    )
    return GpuUse(gpu, memory_on(plan, problem, gpu.id), found)


def _replica_use(model: PlacedModel, gpu: PlacementGpu, replica: Replica, load: float) -> ReplicaUse:
    form, stage = model.forms[replica.shape], stage_of(replica, gpu.id)
    largest = min(replica.batch, form.max_batch)
    times = form.stage_times[stage]
    taken = min(
        times[size] * share_factor(model, gpu, size, replica.share) / size for size in range(1, largest + 1)
    )
    return ReplicaUse(replica, form.memory(stage, replica.batch), load * taken / SECOND)
