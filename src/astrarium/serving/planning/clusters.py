"""Clusters of another size are made with GPUs like a scenario's; a bound says how few could do at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.quantities import write_bytes
from astrarium.placement.problem import Form, PlacementGpu, Problem
from astrarium.serving.planning.speeds import Speeds
from astrarium.serving.scenario import Scenario
from astrarium.serving.scenario.cluster import Cluster, GpuGroup

MOST_GPUS = 65_536  # what a scenario may have


def sized(scenario: Scenario, gpus: int) -> Scenario:
    """Return the scenario with at least so many GPUs: its cluster repeated, machine by machine.

    Fewer are never left out here: policies are told of the slowest kind of the whole cluster, and a plan must
    fit the scenario that it was made from.
    """
    cluster = scenario.cluster
    if gpus <= cluster.size:
        return scenario
    if isinstance(cluster.gpus, int) and cluster.nodes is None:  # one machine, as far as anybody said
        larger = msgspec.structs.replace(cluster, gpus=gpus)
    else:
        larger = Cluster(gpus=tuple(_machines(cluster, gpus)))
    return msgspec.structs.replace(scenario, cluster=larger)


def _machines(cluster: Cluster, gpus: int) -> Iterator[GpuGroup]:
    yield from cluster.groups
    left = gpus - cluster.size
    while left > 0:
        for group in cluster.groups:
            most = -(-group.count // group.nodes)
            for _ in range(group.nodes):
                if left > 0:
                    yield msgspec.structs.replace(group, count=min(most, left), nodes=1)
                left -= most


def selections(problem: Problem, gpus: int, speeds: Speeds) -> list[Problem]:
    """Return the problem with so many of its GPUs; of unequal ones the first, fastest or largest."""

    work = {gpu.id: speeds.work(problem, gpu) for gpu in problem.gpus}
    orders: list[Callable[[PlacementGpu], tuple[float, ...]]] = [
        lambda gpu: (gpu.id,),
        lambda gpu: (work[gpu.id], -gpu.memory, gpu.id),
        lambda gpu: (-gpu.memory, work[gpu.id], gpu.id),
    ]
    by_kinds: dict[object, list[PlacementGpu]] = {}
    for order in orders:
        taken = sorted(problem.gpus, key=order)[:gpus]
        by_kinds.setdefault(sorted_kinds(taken), taken)
    return [
        msgspec.structs.replace(problem, gpus=tuple(sorted(taken, key=lambda gpu: gpu.id)))
        for taken in by_kinds.values()
    ]


def sorted_kinds(gpus: Sequence[PlacementGpu]) -> tuple[tuple[str, int], ...]:
    """Return kind and memory of GPUs: equal for two clusters between which no plan could tell."""
    return tuple(sorted((gpu.kind, gpu.memory) for gpu in gpus))


def fewest_possible(problem: Problem, target: float) -> int:
    """Return the fewest GPUs whose memory and time might do, with full batches throughout.

    Time sets no bound where it is known that models leave parts of a GPU unused, so that several may run at
    once, nor where GPUs are unequal: models' times are those of the slowest.
    """
    asked = [model for model in problem.models if model.rate > 0]
    largest = max(gpu.memory for gpu in problem.gpus)
    memory = sum(min((_bytes(form) for form in model.forms.values()), default=0) for model in asked)
    bound = math.ceil(memory / largest)
    equal = len({gpu.kind for gpu in problem.gpus}) == 1
    if equal and not any(model.demands or model.igniter for model in asked):
        work = math.fsum(
            model.rate * min(map(_seconds, model.forms.values()), default=0.0) for model in asked
        )
        bound = max(bound, math.ceil(work * target - 1e-9))
    return max(1, bound)


def _bytes(form: Form) -> int:
    return sum(form.memory(stage, 1) for stage in range(form.shape.stages)) * form.shape.operators


def _seconds(form: Form) -> float:
    """Return the GPU seconds of a request in a full batch."""
    width = form.shape.operators
    return min(
        math.fsum(times[batch] for times in form.stage_times) * width / batch / 1e9
        for batch in range(1, form.max_batch + 1)
    )


def check_possible(problem: Problem) -> None:
    """Check that each model fits in some form, however many GPUs there are."""
    memory = max(gpu.memory for gpu in problem.gpus)
    for model in problem.models:
        least = min((_largest_stage(form) for form in model.forms.values()), default=0)
        if model.rate > 0 and least > memory:
            expected = f"at most {write_bytes(memory)}, what the largest GPU has: no number of them is enough"
            raise InputError(f"models.{model.name}.memory", write_bytes(least), expected)


def _largest_stage(form: Form) -> int:
    return max(form.memory(stage, 1) for stage in range(form.shape.stages))
