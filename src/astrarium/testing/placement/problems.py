"""Placement problems for the conformance suite: drawn by Hypothesis, or made for a question."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from astrarium.core.quantities import GIB, MILLISECOND, Time
from astrarium.placement.problem import ALONE, Form, GpuDemand, PlacedModel, PlacementGpu, Problem, Shape

MIB = 2**20

PROFILED = (1, 2, 4, 8)  # batch sizes with demands
SPREAD = (Shape(2, 1), Shape(1, 2))


def form(shape: Shape, alone: Time, each: Time, weights: int, activations: int, sizes: int = 8) -> Form:
    """Work and weights divided evenly, with a tenth more for what the GPUs tell each other."""
    gpus = shape.gpus
    overhead = 1.0 if gpus == 1 else 1.1
    times = tuple(round((alone + each * size) * overhead / gpus) if size else 0 for size in range(sizes + 1))
    stages = shape.stages
    return Form(shape, (times,) * stages, (weights // gpus,) * stages, (activations // gpus,) * stages)


def demands(small: float) -> dict[int, GpuDemand]:
    """What it uses of a GPU grows with the batch, up to nine tenths."""
    shares = {size: round(min(0.9, small * (1 + size / 8)), 3) for size in PROFILED}
    return {size: GpuDemand(share, share, share, round(share / 2, 3)) for size, share in shares.items()}


def model(
    index: int,
    alone: Time = 8 * MILLISECOND,
    each: Time = 2 * MILLISECOND,
    slo: Time = 100 * MILLISECOND,
    rate: float = 5.0,
    weights: int = GIB,
    activations: int = MIB,
    shapes: Sequence[Shape] = (ALONE, *SPREAD),
    use: float = 0.3,
) -> PlacedModel:
    forms = {shape: form(shape, alone, each, weights, activations) for shape in shapes}
    return PlacedModel(index, f"model{index}", slo, rate, forms, demands(use))


def gpus(count: int, memory: int = 16 * GIB, first: int = 0) -> tuple[PlacementGpu, ...]:
    return tuple(PlacementGpu(first + place, memory) for place in range(count))


@st.composite
def models(draw: st.DrawFn, index: int) -> PlacedModel:
    """From easy to hopeless: objectives of 0.9 to 6 times what a lone request takes, sizes up to a GPU's."""
    alone, each = (draw(st.integers(2, 40)) * MILLISECOND for _ in range(2))
    slo = (alone + each) * draw(st.sampled_from([9, 12, 20, 35, 60])) // 10
    rate = draw(st.sampled_from([0.0, 0.5, 3.0, 10.0, 25.0]))
    weights = draw(st.integers(1, 220)) * 50 * MIB
    activations = draw(st.integers(0, 4)) * 25 * MIB
    shapes = draw(st.sampled_from([(ALONE,), (ALONE, *SPREAD), SPREAD[:1]]))
    use = draw(st.sampled_from([0.05, 0.2, 0.45]))
    return model(index, alone, each, slo, rate, weights, activations, shapes, use)


@st.composite
def problems(draw: st.DrawFn, max_models: int = 4, max_gpus: int = 4) -> Problem:
    """GPUs of up to two sizes on up to two nodes; their numbers need not start at 0."""
    drawn = tuple(draw(models(index)) for index in range(draw(st.integers(1, max_models))))
    first = draw(st.sampled_from([0, 3]))
    sizes = st.sampled_from([8 * GIB, 12 * GIB])
    count = draw(st.integers(1, max_gpus))
    nodes = draw(st.integers(1, 2))
    cluster = (PlacementGpu(first + at, draw(sizes), at * nodes // count) for at in range(count))
    return Problem(drawn, tuple(cluster))
