"""How GPUs may be divided: into buckets for models of similar size, and into groups of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

from astrarium.core.quantities import Time
from astrarium.placement.problem import PlacedModel, Shape


def shapes(models: Sequence[PlacedModel], largest: int, max_stages: int, max_operators: int) -> list[Shape]:
    """Return the shapes of groups worth trying: powers of two in which some model can run."""
    known = {shape for model in models for shape in model.forms}
    return sorted(
        shape
        for shape in known
        if shape.stages <= max_stages
        and shape.operators <= max_operators
        and shape.gpus <= largest
        and shape.gpus & (shape.gpus - 1) == 0
    )


def size(model: PlacedModel) -> Time:
    """Return a model's latency on one GPU, or the shortest there is."""
    forms = [model.alone] if model.alone else list(model.forms.values())
    return min((form.latency(1) for form in forms), default=0)


def model_buckets(models: Sequence[PlacedModel], threshold: float) -> list[list[list[int]]]:
    """Return ways to divide models (by their places) into buckets of similar size.

    One way is all together; the other cuts wherever the next model is larger by more than *threshold*.
    """
    order = sorted(range(len(models)), key=lambda place: (size(models[place]), place))
    buckets: list[list[int]] = [[order[0]]] if order else [[]]
    for smaller, larger in pairwise(order):
        if size(models[larger]) > (1 + threshold) * size(models[smaller]):
            buckets.append([])
        buckets[-1].append(larger)
    together = [sorted(order)]
    return [together] if len(buckets) == 1 else [together, [sorted(bucket) for bucket in buckets]]


def device_buckets(demands: Sequence[float], gpus: int, imbalance: float, most: int) -> list[tuple[int, ...]]:
    """Return ways to divide GPUs among buckets, the most even first; loads differ by *imbalance* at most."""
    divisions: list[tuple[float, tuple[int, ...]]] = []
    for cuts in combinations(range(1, gpus), len(demands) - 1):
        counts = tuple(b - a for a, b in zip((0, *cuts), (*cuts, gpus), strict=True))
        loads = [max(demand, 1e-12) / count for demand, count in zip(demands, counts, strict=True)]
        uneven = max(loads) / min(loads)
        if uneven <= imbalance:
            divisions.append((uneven, counts))
    return [counts for _, counts in sorted(divisions)[:most]]
