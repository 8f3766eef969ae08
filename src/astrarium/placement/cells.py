"""A plan is run by cells, GPUs that take turns at the same models, and by worker queues for all others.

A GPU whose replicas have it whole runs one batch at a time. Those with the same models and the same limits on
their batches form a cell, a small cluster of its own, which any batching policy can run: Symphony's
sub-clusters. Replicas side by side on a GPU, or over several, are more than batching policies know of; they
have queues of their own (`evaluate`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from astrarium.core.errors import InputError
from astrarium.placement.gpu_share import share_factor
from astrarium.placement.plan import Plan, Replica
from astrarium.placement.problem import ALONE, Form, PlacedModel, Problem

Limits = tuple[tuple[int, int], ...]


class Cell(msgspec.Struct, frozen=True):
    """A cell is GPUs with the same models; *limits* has each model's index and its largest batch here."""

    gpus: tuple[int, ...]
    limits: Limits

    @property
    def models(self) -> tuple[int, ...]:
        return tuple(model for model, _ in self.limits)


class Cells(msgspec.Struct, frozen=True):
    """The cells of a plan, and the replicas that worker queues run (*queued*)."""

    cells: tuple[Cell, ...]
    queued: tuple[Replica, ...] = ()


class Station(msgspec.Struct, frozen=True):
    """A station serves requests batch by batch, as many batches at a time as it has servers.

    `costs` are by model: how long a request keeps one of the servers, in nanoseconds, in the best batches.
    """

    servers: int
    costs: dict[int, float]


def cells(plan: Plan, problem: Problem) -> Cells:
    """Return the cells of a plan in the order of their first GPUs; GPUs without replicas are in none."""
    known = [gpu.id for gpu in problem.gpus]
    on_gpu = {gpu: list(plan.on_gpu(gpu)) for gpu in known}
    taking_turns = {gpu for gpu in known if all(one.shape == ALONE and one.share >= 1 for one in on_gpu[gpu])}
    members: dict[Limits, list[int]] = {}
    for gpu in known:
        if gpu in taking_turns and on_gpu[gpu]:
            members.setdefault(limits_of(on_gpu[gpu]), []).append(gpu)
    queued = tuple(replica for replica in plan.replicas if not taking_turns.issuperset(replica.gpus))
    return Cells(tuple(Cell(tuple(gpus), limits) for limits, gpus in members.items()), queued)


def limits_of(replicas: Iterable[Replica]) -> Limits:
    """Return the largest batch of each model among replicas."""
    largest: dict[int, int] = {}
    for replica in replicas:
        largest[replica.model] = max(replica.batch, largest.get(replica.model, 0))
    return tuple(sorted(largest.items()))


def stations(plan_cells: Cells, problem: Problem) -> tuple[list[Station], list[Station]]:
    """Return a station for each cell, and for worker queues: replicas on the same whole GPUs share one."""
    models = {model.index: model for model in problem.models}
    of_cells = [
        Station(len(cell.gpus), {index: _cost(_alone(models[index]), limit) for index, limit in cell.limits})
        for cell in plan_cells.cells
    ]
    together: dict[int, dict[int, float]] = {}
    for number, replica in zip(station_numbers(plan_cells.queued), plan_cells.queued, strict=True):
        costs = together.setdefault(number, {})
        cost = _queued_cost(models[replica.model], replica, problem)
        costs[replica.model] = min(cost, costs.get(replica.model, cost))
    return of_cells, [Station(1, costs) for costs in together.values()]


def station_numbers(queued: Sequence[Replica]) -> list[int]:
    """Return each replica's station: replicas on the same whole GPUs share one, others have their own."""
    numbers: dict[object, int] = {}
    return [
        numbers.setdefault((one.gpus, one.shape) if one.share >= 1 else place, len(numbers))
        for place, one in enumerate(queued)
    ]


def companies(queued: Sequence[Replica]) -> list[tuple[int, ...]]:
    """Return groups of replicas, by place, that share a GPU or a model; groups run without each other."""
    groups: list[tuple[set[object], list[int]]] = []
    for place, replica in enumerate(queued):
        ties: set[object] = {("model", replica.model), *(("gpu", gpu) for gpu in replica.gpus)}
        places = [place]
        for company in [group for group in groups if group[0] & ties]:
            groups.remove(company)
            ties |= company[0]
            places += company[1]
        groups.append((ties, places))
    return sorted(tuple(sorted(places)) for _, places in groups)


def _alone(model: PlacedModel) -> Form:
    if model.alone is None:
        raise InputError("plan", model.name, "a model that can run on one GPU, where a replica has one")
    return model.alone


def _cost(form: Form, limit: int) -> float:
    return min(form.interval(size) / size for size in range(1, min(limit, form.max_batch) + 1))


def _queued_cost(model: PlacedModel, replica: Replica, problem: Problem) -> float:
    cost = _cost(model.forms[replica.shape], replica.batch)
    return cost * share_factor(model, problem.gpu(replica.gpus[0]), replica.batch, replica.share)
