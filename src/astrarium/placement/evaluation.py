"""Evaluation simulates a plan event by event: requests go through queues and replicas that share GPUs.

A request goes to a replica of its model and waits there until it can be part of a batch (`worker_queues`);
or, where a `path` is given, to a router that makes the batches, and over a network (`path`). Replicas run
their batches stage by stage, and slow each other where they share a GPU (`interference`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from astrarium.core.errors import InputError
from astrarium.core.quantities import Time
from astrarium.placement.interference import Interference, NoInterference
from astrarium.placement.path import NEVER, Instants, Journeys, Path
from astrarium.placement.plan import Plan, check
from astrarium.placement.problem import PlacedModel, PlacementRequests, Problem
from astrarium.placement.worker_queues import Batching, PlanSimulation


class TimeSpread(msgspec.Struct, frozen=True):
    mean: float
    p50: Time
    p95: Time
    p99: Time

    @classmethod
    def of(cls, times: Sequence[Time] | Instants) -> TimeSpread | None:
        if not len(times):
            return None
        ordered = np.sort(np.asarray(times, dtype=np.int64))
        ranks = (int(ordered[math.ceil(part * len(ordered) / 100) - 1]) for part in (50, 95, 99))
        return cls(int(ordered.sum()) / len(ordered), *ranks)


class ModelEvaluation(msgspec.Struct, frozen=True):
    """A model's evaluation says how its answered requests fared.

    *latency* is the sum of its *stages*: gather (until the batch was complete, or had waited enough), queue
    (until its replica was free) and execution; on a path also client (to the router), transfer (to the node),
    node (to the queue of the replica) and reply. The execution of a pipeline has the waits between its stages
    in it.
    """

    model: int
    name: str
    requests: int
    in_time: int
    late: int
    dropped: int
    latency: TimeSpread | None
    stages: dict[str, TimeSpread]  # in the order of the way; none where nobody was answered
    mean_batch: float | None

    @property
    def attainment(self) -> float | None:
        return self.in_time / self.requests if self.requests else None


class Evaluation(msgspec.Struct, frozen=True):
    models: tuple[ModelEvaluation, ...]

    @property
    def attainment(self) -> float | None:
        total = sum(model.requests for model in self.models)
        return sum(model.in_time for model in self.models) / total if total else None

    def of(self, name: str) -> ModelEvaluation:
        return next(model for model in self.models if model.name == name)


class StageLine(msgspec.Struct, frozen=True):
    """A stage line is a line of the stage report; *part* is of the model's mean latency."""

    model: str
    stage: str
    part: float
    p50: Time
    p95: Time
    p99: Time


def stage_report(evaluation: Evaluation) -> list[StageLine]:
    """Report where the time of each model went; percentiles are of each stage alone and do not add up."""
    return [
        StageLine(model.name, stage, spread.mean / total, spread.p50, spread.p95, spread.p99)
        for model in evaluation.models
        if model.latency is not None
        for total in [model.latency.mean or 1.0]
        for stage, spread in model.stages.items()
    ]


def summarized(problem: Problem, journeys: Journeys, warmup: Time, on_path: bool) -> Evaluation:
    """Summarize journeys by model; *on_path* with the stages before and behind the queues too."""
    counted = journeys.asked >= warmup
    return Evaluation(
        tuple(
            _of_model(model, journeys, np.flatnonzero(counted & (journeys.model == model.index)), on_path)
            for model in problem.models
        )
    )


def _of_model(model: PlacedModel, journeys: Journeys, numbers: Instants, on_path: bool) -> ModelEvaluation:
    answered = numbers[journeys.answered[numbers] != NEVER]
    latency = journeys.latency[answered]
    sizes = journeys.batch[answered].tolist()
    times = {name: TimeSpread.of(durations[answered]) for name, durations in journeys.stages(on_path).items()}
    in_time = int(np.count_nonzero(latency <= model.slo))
    return ModelEvaluation(
        model=model.index,
        name=model.name,
        requests=len(numbers),
        in_time=in_time,
        late=len(answered) - in_time,
        dropped=len(numbers) - len(answered),
        latency=TimeSpread.of(latency),
        stages={name: spread for name, spread in times.items() if spread is not None},
        mean_batch=sum(sizes) / len(sizes) if sizes else None,
    )


def evaluate(
    problem: Problem,
    plan: Plan,
    requests: PlacementRequests,
    interference: Interference | None = None,
    batching: Batching | None = None,
    warmup: Time = 0,
    path: Path | None = None,
) -> Evaluation:
    """Simulate a plan and return how its models fare; requests before *warmup* are not counted."""
    journeys = walked(problem, plan, requests, interference, batching, path)
    return summarized(problem, journeys, warmup, on_path=path is not None)


def walked(
    problem: Problem,
    plan: Plan,
    requests: PlacementRequests,
    interference: Interference | None = None,
    batching: Batching | None = None,
    path: Path | None = None,
) -> Journeys:
    """Simulate a plan and return the journey of every request, for more than a summary."""
    check(plan, problem)
    if np.any(np.diff(np.array(requests.times, dtype=np.int64)) < 0):
        raise InputError("requests", None, "instants in rising order")
    simulation = PlanSimulation(problem, plan, interference or NoInterference(), batching or Batching())
    return simulation.run(requests, path)
