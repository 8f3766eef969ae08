"""What searches over groups share: memory as arrays, requests as columns, and whether to go on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from astrarium.core.errors import InputError
from astrarium.core.units import FOREVER, SECOND, Time
from astrarium.serving.placement.groups import Group, Ints, Runtime, Tables
from astrarium.serving.placement.plan import Plan, Replica
from astrarium.serving.placement.policies._group_words import GroupWords
from astrarium.serving.placement.problem import PlacedModel, Problem, Requests, Shape
from astrarium.serving.placement.registry import Search
from astrarium.serving.placement.simulation import Workload

Bools = npt.NDArray[np.bool_]
Counting = Literal["stage", "worst-stage"]
STEADY = 60 * SECOND  # how long requests are made up for, where a problem brings none
MOST = 500_000  # of them


@dataclass(frozen=True)
class Ground:
    """*weights* are bytes on each GPU of a stage: [kind, model, stage]. *useful*: [kind, model] where a lone
    request is answered in time."""

    problem: Problem
    tables: Tables
    workload: Workload
    weights: Ints
    useful: Bools

    @classmethod
    def of(cls, problem: Problem, runtime: Runtime, counting: Counting = "stage") -> Ground:
        if not problem.gpus:
            raise InputError("gpus", 0, "at least one GPU to place models on")
        tables = Tables.of(problem.models, runtime)
        requests = problem.requests if problem.requests.times else steady_requests(problem.models)
        workload = Workload.of(tables, requests)
        return cls(problem, tables, workload, _weights(problem, tables, counting), _useful(problem, tables))

    @property
    def models(self) -> tuple[PlacedModel, ...]:
        return self.problem.models

    def batch(self, shape: Shape, model: int) -> int:
        """The largest that is ever run: larger ones are late, or nobody knows their times."""
        place = self.tables.place[model]
        return largest_batch(self.tables, self.models[place], shape, place)


def largest_batch(tables: Tables, model: PlacedModel, shape: Shape, place: int) -> int:
    """1 where even that is late."""
    sizes = range(1, min(tables.runtime.max_batch, model.forms[shape].max_batch) + 1)
    return max((size for size in sizes if tables.latency(shape, place, size) <= model.slo), default=1)


def _weights(problem: Problem, tables: Tables, counting: Counting) -> Ints:
    kinds, models, _, width = tables.times.shape
    weights = np.zeros((kinds, models, width), np.int64)
    for place, model in enumerate(problem.models):
        for shape, form in model.forms.items():
            batch = largest_batch(tables, model, shape, place)
            sizes = [form.memory(stage, batch) for stage in range(shape.stages)]
            counted = sizes if counting == "stage" else [max(sizes)] * shape.stages
            weights[tables.kinds[shape], place, : shape.stages] = counted
    return weights


def _useful(problem: Problem, tables: Tables) -> Bools:
    useful = np.zeros(tables.times.shape[:2], bool)
    for place, model in enumerate(problem.models):
        for shape in model.forms:
            useful[tables.kinds[shape], place] = tables.latency(shape, place) <= model.slo
    return useful


def steady_requests(models: Sequence[PlacedModel], over: Time = STEADY) -> Requests:
    """Evenly spaced, each model beginning at another part of its gap; none of a model without a load."""
    arrivals: list[tuple[Time, int]] = []
    total = sum(model.rate for model in models)
    over = min(over, round(MOST * SECOND / total)) if total else over
    for place, model in enumerate(models):
        gap = SECOND / model.rate if model.rate > 0 else FOREVER
        first = gap * (place + 1) / (len(models) + 1)
        count = max(0, int((over - first) / gap) + 1) if first < over else 0
        arrivals += [(round(first + number * gap), model.index) for number in range(count)]
    arrivals.sort()
    return Requests(tuple(time for time, _ in arrivals), tuple(model for _, model in arrivals))


class Going:
    """Counts what was tried, and asks after each whether to go on."""

    def __init__(self, search: Search) -> None:
        self.search, self.count, self.on = search, 0, True

    def tried(self, count: int = 1) -> bool:
        self.count += count
        self.on = self.on and self.search.tried(self.count)
        return self.on

    def improved(self, plan: Plan) -> None:
        self.search.improved(plan, self.count)


def plan_of(name: str, ground: Ground, groups: Iterable[Group], served: int | None) -> Plan:
    """*served*: requests that were answered in time, of those that the plan was made with."""
    groups = tuple(groups)
    words = GroupWords(ground, groups)
    replicas = tuple(
        Replica(
            model, group.gpus, group.shape, ground.batch(group.shape, model), why=words.why(number, model)
        )
        for number, group in enumerate(groups)
        for model in group.models
    )
    placed = {replica.model for replica in replicas}
    missing = {
        model.index: words.lacks(place)
        for place, model in enumerate(ground.models)
        if model.index not in placed
    }
    counted = ground.workload.counted
    attainment = None if served is None else (served / counted if counted else 1.0)
    return Plan(name, replicas, missing, attainment)
