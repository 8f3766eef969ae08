"""What became of the requests of an evaluated plan: attainment, percentiles, and where time went."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from astrarium.core.units import Time
from astrarium.serving.placement.problem import PlacedModel, Problem, Requests

NEVER: Time = -1


class Spread(msgspec.Struct, frozen=True):
    mean: float
    p50: Time
    p95: Time
    p99: Time

    @classmethod
    def of(cls, times: Sequence[Time]) -> Spread | None:
        if not times:
            return None
        ordered = sorted(times)
        ranks = (ordered[math.ceil(part * len(ordered) / 100) - 1] for part in (50, 95, 99))
        return cls(sum(ordered) / len(ordered), *ranks)


class ModelEvaluation(msgspec.Struct, frozen=True):
    """Of answered requests: *latency* is the sum of *gather* (until the batch was complete, or had waited
    enough), *queue* (until its replica was free) and *execution*. *slowdown* is how many times as long as
    alone the batches took, on average over requests."""

    model: int
    name: str
    requests: int
    in_time: int
    late: int
    dropped: int
    latency: Spread | None
    gather: Spread | None
    queue: Spread | None
    execution: Spread | None
    slowdown: float | None
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


class Times:
    """By request: when its batch was complete, when it started, when it was done; what it takes alone."""

    def __init__(self, requests: int) -> None:
        self.ready: list[Time] = [NEVER] * requests
        self.start: list[Time] = [NEVER] * requests
        self.done: list[Time] = [NEVER] * requests
        self.alone: list[Time] = [0] * requests
        self.batch: list[int] = [0] * requests

    def started(
        self, now: Time, due: Time, batch: Sequence[int], limit: int, alone: Time, requests: Requests
    ) -> None:
        complete = requests.times[batch[-1]] if len(batch) == limit else due
        for number in batch:
            self.ready[number] = min(now, max(complete, requests.times[number]))
            self.start[number], self.alone[number], self.batch[number] = now, alone, len(batch)


def summarized(problem: Problem, requests: Requests, times: Times, warmup: Time) -> Evaluation:
    counted: dict[int, list[int]] = {model.index: [] for model in problem.models}
    for number, (at, model) in enumerate(zip(requests.times, requests.models, strict=True)):
        if at >= warmup:
            counted[model].append(number)
    return Evaluation(
        tuple(_of_model(model, counted[model.index], requests.times, times) for model in problem.models)
    )


def _of_model(
    model: PlacedModel, numbers: Sequence[int], arrival: Sequence[Time], times: Times
) -> ModelEvaluation:
    answered = [number for number in numbers if times.done[number] != NEVER]
    latency = [times.done[number] - arrival[number] for number in answered]
    execution = [times.done[number] - times.start[number] for number in answered]
    in_time = sum(time <= model.slo for time in latency)
    slowdowns = [took / times.alone[n] for took, n in zip(execution, answered, strict=True) if times.alone[n]]
    return ModelEvaluation(
        model=model.index,
        name=model.name,
        requests=len(numbers),
        in_time=in_time,
        late=len(answered) - in_time,
        dropped=len(numbers) - len(answered),
        latency=Spread.of(latency),
        gather=Spread.of([times.ready[number] - arrival[number] for number in answered]),
        queue=Spread.of([times.start[number] - times.ready[number] for number in answered]),
        execution=Spread.of(execution),
        slowdown=_mean(slowdowns),
        mean_batch=_mean([times.batch[number] for number in answered]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
