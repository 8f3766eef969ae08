"""The placement problems of Elvinger's thesis, plans in a form one can read, and problems drawn at random."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from astrarium.core.quantities import MILLISECOND
from astrarium.placement.plan import Plan
from astrarium.placement.problem import GpuDemand, PlacedModel, PlacementGpu, Problem
from astrarium_papers.elvinger import _v100 as v100
from astrarium_papers.elvinger._measured import Measurement, measured_model

VISION = ("alexnet", "densenet121", "efficientnet_b7", "resnet50", "vgg19")  # 6.2.1
MIXED = ("resnet50", "mobilenet_v2", "bert", "gpt2")  # 6.2.2


def vision(gpus: int, rate: float = 500, slo_ms: int = 200) -> Problem:
    return v100.problem(VISION, rate, slo_ms * MILLISECOND, gpus)


def mixed(gpus: int) -> Problem:
    return v100.problem(MIXED, 300, 300 * MILLISECOND, gpus)


def stands(plan: Plan, problem: Problem) -> list[list[tuple[str, int]]]:
    """Names and batch sizes, by GPU."""
    names = {model.index: model.name for model in problem.models}
    return [
        sorted((names[replica.model], replica.batch) for replica in plan.on_gpu(gpu.id))
        for gpu in problem.gpus
    ]


def batches(plan: Plan, problem: Problem) -> dict[str, list[int]]:
    """The batch sizes of a model's replicas, by name."""
    by_model = {
        model.name: [replica.batch for replica in plan.of_model(model.index)] for model in problem.models
    }
    return {name: sizes for name, sizes in by_model.items() if sizes}


def goodput(plan: Plan, problem: Problem) -> float:
    """What throughput alone would allow."""
    return sum(
        min(model.rate, sum(_throughput(model, replica.batch) for replica in plan.of_model(model.index)))
        for model in problem.models
    )


def use(plan: Plan, problem: Problem, gpu: int, metric: str) -> float:
    models = {model.index: model for model in problem.models}
    shares = [getattr(models[replica.model].demands[replica.batch], metric) for replica in plan.on_gpu(gpu)]
    return float(sum(shares))


def with_sizes(problem: Problem, sizes: dict[str, Sequence[int]]) -> Problem:
    """The same, where some models can choose among these batch sizes only."""
    models = tuple(
        msgspec.structs.replace(
            model,
            demands={b: d for b, d in model.demands.items() if b in sizes.get(model.name, model.demands)},
        )
        for model in problem.models
    )
    return Problem(models, problem.gpus)


def _throughput(model: PlacedModel, batch: int) -> float:
    assert model.alone is not None
    return batch * 1e9 / model.alone.interval(batch)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to five models and four GPUs of one or two kinds; some loads or models are beyond them."""
    models = tuple(draw(_models(index)) for index in range(draw(st.integers(1, 5))))
    sizes = draw(st.lists(st.sampled_from([1_000_000_000, 1_500_000_000]), min_size=1, max_size=4))
    return Problem(models, tuple(PlacementGpu(10 + at, memory) for at, memory in enumerate(sizes)))


@st.composite
def _models(draw: st.DrawFn, index: int) -> PlacedModel:
    time = 0
    memory = draw(st.integers(1, 900))
    rows = []
    for batch in draw(st.sampled_from([(1,), (4, 8), (2, 4, 16)])):
        time += draw(st.integers(1, 60)) * MILLISECOND
        memory += draw(st.integers(0, 400))
        occupancy, weighted, sm = (draw(st.none() | st.integers(1, 100)) for _ in range(3))
        shares = (None if percent is None else percent / 100 for percent in (occupancy, weighted, sm))
        rows.append(Measurement(batch, time, memory * 1_000_000, GpuDemand(*shares)))
    slo = draw(st.integers(20, 200)) * MILLISECOND
    return measured_model(index, f"model{index}", slo, draw(st.integers(1, 400)), rows)
