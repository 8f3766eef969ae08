"""Models of iGniter's profile as placement problems, and what its model says of a finished plan."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.placement.igniter.model import WHOLE, GpuTraits, ModelTraits, Prediction, TenantLoad, predict
from astrarium.placement.plan import Plan, Replica
from astrarium.placement.policies import Search
from astrarium.placement.policies.igniter import Igniter
from astrarium.placement.problem import ALONE, Form, PlacedModel, PlacementGpu, PlacementRequests, Problem
from astrarium.serving.planning.colocation import v100

Ask = tuple[str, float, float]  # a model of the profile, its objective in ms, its rate
NOTES: tuple[Ask, ...] = (("alexnet", 15, 500), ("resnet50", 40, 400), ("vgg19", 60, 200))
NAMES = ["alexnet", "resnet50", "ssd", "vgg19"]
MEMORY = 16 * 2**30


def whole_gpu_times(gpu: GpuTraits, traits: ModelTraits, max_batch: int) -> tuple[Time, ...]:
    """Return the times of batches alone on a whole GPU, by iGniter's model, as a Form has them."""
    alone = (predict(gpu, [TenantLoad(traits, batch, WHOLE)])[0].latency for batch in range(1, max_batch + 1))
    return (0, *(round(latency * MILLISECOND) for latency in alone))


@cache
def form_of(traits: ModelTraits, gpu: GpuTraits, weights: int = 2**20, max_batch: int = 64) -> Form:
    return Form(ALONE, (whole_gpu_times(gpu, traits, max_batch),), (weights,))


def model_of(index: int, name: str, slo: float, rate: float, weights: int = 2**20) -> PlacedModel:
    traits = v100().models[name]
    form = form_of(traits, v100().gpu, weights)
    return PlacedModel(index, name, round(slo * MILLISECOND), rate, {ALONE: form}, igniter=traits)


def problem_of(asks: Iterable[Ask], gpus: int, memory: int = MEMORY) -> Problem:
    models = tuple(model_of(index, *ask) for index, ask in enumerate(asks))
    return Problem(models, tuple(PlacementGpu(id_, memory, igniter=v100().gpu) for id_ in range(gpus)))


def placed(problem: Problem, **parameters: object) -> Plan:
    return Igniter(Igniter.Parameters(**parameters)).place(problem, Search())  # type: ignore[arg-type]


def predictions(plan: Plan, problem: Problem) -> list[tuple[Replica, PlacedModel, Prediction]]:
    """By iGniter's model, from nothing but the plan."""
    models = {model.index: model for model in problem.models}
    predicted = []
    for gpu in problem.gpus:
        company = list(plan.on_gpu(gpu.id))
        traits = [models[replica.model].igniter for replica in company]
        assert all(trait is not None for trait in traits)
        loads = [
            TenantLoad(neighbour, replica.batch, replica.share * 100)
            for neighbour, replica in zip(traits, company, strict=True)
            if neighbour is not None
        ]
        expected = predict(gpu.igniter or GpuTraits(), loads)
        predicted += [(r, models[r.model], e) for r, e in zip(company, expected, strict=True)]
    return predicted


def uniform(problem: Problem, duration: Time) -> PlacementRequests:
    """Requests of each model at a constant gap."""
    arrivals = sorted(
        (round(number * SECOND / model.rate), model.index)
        for model in problem.models
        for number in range(int(model.rate * duration / SECOND))
    )
    return PlacementRequests(tuple(at for at, _ in arrivals), tuple(model for _, model in arrivals))
