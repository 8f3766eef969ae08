"""What a plan makes of its GPUs: memory, and how busy each replica would keep them at a given load."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from astrarium.core.units import SECOND
from astrarium.placement.cells import WHOLE as PARTS
from astrarium.placement.cells import balanced, cells, station_numbers, stations
from astrarium.placement.interference import share_factor
from astrarium.placement.plan import Plan, Replica, memory_on, stage_of
from astrarium.placement.problem import PlacementGpu, Problem
from astrarium.serving.planning.clusters import Speeds


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


def uses(plan: Plan, problem: Problem, speeds: Speeds | None = None) -> tuple[GpuUse, ...]:
    """At the models' rates. *speeds*: of GPUs that are faster than the slowest kind."""
    found = cells(plan, problem)
    of_cells, of_queues = stations(found, problem)
    parts = balanced([model.rate for model in problem.models], [*of_cells, *of_queues])
    queues = dict(zip(found.queued, station_numbers(found.queued), strict=True))
    home = {gpu: number for number, cell in enumerate(found.cells) for gpu in cell.gpus}

    def load(replica: Replica, gpu: int) -> float:
        """Requests a second that come to a replica, as the router divides them."""
        number = home[gpu] if gpu in home else len(of_cells) + queues[replica]
        crowd = len(found.cells[number].gpus) if gpu in home else 1
        return problem.models[replica.model].rate * float(parts[number, replica.model]) / PARTS / crowd

    def use(gpu: PlacementGpu) -> GpuUse:
        """Worker queues run everywhere as on the slowest kind."""
        real = speeds if gpu.id in home else None
        replicas = (_replica_use(problem, gpu, one, load(one, gpu.id), real) for one in plan.on_gpu(gpu.id))
        return GpuUse(gpu, memory_on(plan, problem, gpu.id), tuple(replicas))

    return tuple(use(gpu) for gpu in problem.gpus)


def _replica_use(
    problem: Problem, gpu: PlacementGpu, replica: Replica, load: float, speeds: Speeds | None
) -> ReplicaUse:
    model = problem.models[replica.model]
    form, stage = model.forms[replica.shape], stage_of(replica, gpu.id)

    def taken(size: int) -> float:
        """By each request of such a batch."""
        faster = speeds.part(gpu.id, model.index, size) if speeds else 1.0
        return form.stage_times[stage][size] * share_factor(model, gpu, size, replica.share) * faster / size

    least = min(map(taken, range(1, min(replica.batch, form.max_batch) + 1)))
    return ReplicaUse(replica, form.memory(stage, replica.batch), load * least / SECOND)


def busy_for(use: GpuUse, model: int) -> float | None:
    """How busy a model finds a GPU: all of it where turns are taken, its own share where it is divided. None:
    it is not there."""
    mine = [each.busy for each in use.replicas if each.replica.model == model]
    if not mine:
        return None
    return max(mine) if use.divided else use.busy


def overloaded(found: Sequence[GpuUse], models: int, target: float) -> list[int]:
    """Models whose GPUs, even the least busy, have more to do than there is time for, the worst first. A run
    that ends soon does not show that where objectives are long."""
    busy = {}
    for model in range(models):
        each = [part for use in found if (part := busy_for(use, model)) is not None]
        busy[model] = min(each, default=0.0)
    return sorted(
        (model for model in busy if busy[model] * target > 1 + 1e-6), key=lambda model: -busy[model]
    )
