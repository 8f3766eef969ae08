"""How GPUs may be divided: into buckets for models of similar size, and into groups of one shape.

AlpaServe's Algorithm 2 without its loops. As there, all groups of a bucket have the same shape but for
what is left over, which makes up pipelines of powers of two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import numpy as np

from astrarium.core.units import Time
from astrarium.placement.groups import Group, Ints
from astrarium.placement.problem import PlacedModel, PlacementGpu, Shape


def shapes(models: Sequence[PlacedModel], largest: int, max_stages: int, max_operators: int) -> list[Shape]:
    """Of groups worth trying: powers of two, and some model can run so."""
    known = {shape for model in models for shape in model.forms}
    return sorted(
        shape
        for shape in known
        if shape.stages <= max_stages
        and shape.operators <= max_operators
        and shape.gpus <= largest
        and shape.gpus & (shape.gpus - 1) == 0
    )


def grouped(gpus: Sequence[PlacementGpu], shape: Shape) -> tuple[Group, ...]:
    """Groups do not cross nodes. GPUs with more memory come first: a group has what its smallest has."""
    nodes: dict[int, list[int]] = {}
    for gpu in sorted(gpus, key=lambda gpu: -gpu.memory):
        nodes.setdefault(gpu.node, []).append(gpu.id)
    return tuple(group for ids in nodes.values() for group in _of_node(ids, shape))


def _of_node(ids: list[int], shape: Shape) -> Iterator[Group]:
    size = shape.gpus
    whole = len(ids) - len(ids) % size
    for first in range(0, whole, size):
        yield Group(tuple(ids[first : first + size]), shape)
    while whole < len(ids):
        part = 1 << ((len(ids) - whole).bit_length() - 1)
        yield Group(tuple(ids[whole : whole + part]), Shape(stages=part))
        whole += part


def largest_node(gpus: Sequence[PlacementGpu]) -> int:
    nodes = [gpu.node for gpu in gpus]
    return max(nodes.count(node) for node in set(nodes))


def size(model: PlacedModel) -> Time:
    """On one GPU, or the shortest there is."""
    forms = [model.alone] if model.alone else list(model.forms.values())
    return min((form.latency(1) for form in forms), default=0)


def model_buckets(models: Sequence[PlacedModel], threshold: float) -> list[list[list[int]]]:
    """Places of models: all together; and cut wherever the next larger one is larger by more than
    *threshold*."""
    order = sorted(range(len(models)), key=lambda place: (size(models[place]), place))
    buckets: list[list[int]] = [[order[0]]] if order else [[]]
    for smaller, larger in pairwise(order):
        if size(models[larger]) > (1 + threshold) * size(models[smaller]):
            buckets.append([])
        buckets[-1].append(larger)
    together = [sorted(order)]
    return [together] if len(buckets) == 1 else [together, [sorted(bucket) for bucket in buckets]]


def device_buckets(demands: Sequence[float], gpus: int, imbalance: float, most: int) -> list[tuple[int, ...]]:
    """Numbers of GPUs for each bucket, the most even first: what a GPU must do differs by *imbalance* at
    most."""
    found: list[tuple[float, tuple[int, ...]]] = []
    for cuts in combinations(range(1, gpus), len(demands) - 1):
        counts = tuple(b - a for a, b in zip((0, *cuts), (*cuts, gpus), strict=True))
        loads = [max(demand, 1e-12) / count for demand, count in zip(demands, counts, strict=True)]
        uneven = max(loads) / min(loads)
        if uneven <= imbalance:
            found.append((uneven, counts))
    return [counts for _, counts in sorted(found)[:most]]


def capacities(groups: Sequence[Group], gpus: Sequence[PlacementGpu], width: int) -> Ints:
    """[group, stage]: what the smallest GPU of a stage has. Stages that a group lacks hold anything."""
    memory = {gpu.id: gpu.memory for gpu in gpus}
    found = np.full((len(groups), width), np.iinfo(np.int64).max, np.int64)
    for row, group in zip(found, groups, strict=True):
        for stage in range(group.shape.stages):
            of_stage = group.gpus[stage * group.shape.operators : (stage + 1) * group.shape.operators]
            row[stage] = min(memory[gpu] for gpu in of_stage)
    return found
