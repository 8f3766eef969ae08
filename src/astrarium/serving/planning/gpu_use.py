"""A plan uses its GPUs: memory, and how busy each replica would keep them at a given load."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from astrarium.core.quantities import SECOND
from astrarium.placement.cells import cells, station_numbers, stations
from astrarium.placement.gpu_share import share_factor
from astrarium.placement.plan import Plan, Replica, memory_on, stage_of
from astrarium.placement.problem import PlacementGpu, Problem
from astrarium.placement.routing import WHOLE as PARTS
from astrarium.placement.routing import balanced
from astrarium.serving.planning.speeds import Speeds


class ReplicaUse(msgspec.Struct, frozen=True):
    """A replica uses one GPU: it is *busy* a part of the time, in the best batches."""

    replica: Replica
    memory: int
    busy: float


class GpuUse(msgspec.Struct, frozen=True):
    """A GPU is used by replicas: *busy* is of its whole time; those with parts of it work side by side."""

    gpu: PlacementGpu
    memory: int
    replicas: tuple[ReplicaUse, ...]

    @property
    def divided(self) -> bool:
        return any(use.replica.share < 1 for use in self.replicas)

    @property
    def busy(self) -> float:
        """Return how busy the GPU is; side by side, the replica that works most tells."""
        parts = [use.busy for use in self.replicas]
        return max(parts, default=0.0) if self.divided else math.fsum(parts)


def uses(plan: Plan, problem: Problem, speeds: Speeds | None = None) -> tuple[GpuUse, ...]:
    """Return the use of each GPU at the models' rates; *speeds* are of GPUs that are faster than others."""
    plan_cells = cells(plan, problem)
    of_cells, of_queues = stations(plan_cells, problem)
    parts = balanced([model.rate for model in problem.models], [*of_cells, *of_queues])
    queues = dict(zip(plan_cells.queued, station_numbers(plan_cells.queued), strict=True))
    home = {gpu: number for number, cell in enumerate(plan_cells.cells) for gpu in cell.gpus}

    def load(replica: Replica, gpu: int) -> float:
        """Return the requests a second that come to a replica, as the router divides them."""
        number = home[gpu] if gpu in home else len(of_cells) + queues[replica]
        crowd = len(plan_cells.cells[number].gpus) if gpu in home else 1
        return problem.models[replica.model].rate * float(parts[number, replica.model]) / PARTS / crowd

    def use(gpu: PlacementGpu) -> GpuUse:
        """Return a GPU's use; worker queues run everywhere as on the slowest kind."""
        real = speeds if gpu.id in home else None
        replicas = (_replica_use(problem, gpu, one, load(one, gpu.id), real) for one in plan.on_gpu(gpu.id))
        return GpuUse(gpu, memory_on(plan, problem, gpu.id), tuple(replicas))

    return tuple(use(gpu) for gpu in problem.gpus)


def _replica_use(
    problem: Problem, gpu: PlacementGpu, replica: Replica, load: float, speeds: Speeds | None
) -> ReplicaUse:
    model = problem.models[replica.model]
    form = model.forms[replica.shape]
    stage = stage_of(replica, gpu.id)

    def taken(size: int) -> float:
        """Return the time taken by each request of such a batch."""
        faster = speeds.part(gpu.id, model.index, size) if speeds else 1.0
        return form.stage_times[stage][size] * share_factor(model, gpu, size, replica.share) * faster / size

    least = min(map(taken, range(1, min(replica.batch, form.max_batch) + 1)))
    return ReplicaUse(replica, form.memory(stage, replica.batch), load * least / SECOND)


def busy_for(use: GpuUse, model: int) -> float | None:
    """Return how busy a model finds a GPU: all of it by turns, its own share side by side; else None."""
    mine = [part.busy for part in use.replicas if part.replica.model == model]
    if not mine:
        return None
    return max(mine) if use.divided else use.busy


def overloaded(uses: Sequence[GpuUse], models: int, target: float) -> list[int]:
    """Return the models whose GPUs, even the least busy, have more work than time, the worst first.

    A run that ends soon does not show that where objectives are long.
    """
    busy = {}
    for model in range(models):
        shares = [part for use in uses if (part := busy_for(use, model)) is not None]
        busy[model] = min(shares, default=0.0)
    return sorted(
        (model for model in busy if busy[model] * target > 1 + 1e-6), key=lambda model: -busy[model]
    )
