"""What searches over groups share: memory as arrays, requests as columns, and whether to go on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from astrarium.core.errors import InputError
from astrarium.core.units import SECOND, Time, to_ms
from astrarium.serving.placement.groups import Group, Ints, Runtime, Tables
from astrarium.serving.placement.plan import Plan, Replica
from astrarium.serving.placement.problem import PlacedModel, PlacementGpu, Problem, Requests, Shape
from astrarium.serving.placement.registry import Search
from astrarium.serving.placement.simulation import Workload

Bools = npt.NDArray[np.bool_]
Counting = Literal["stage", "worst-stage"]
STEADY = 60 * SECOND  # how long requests are made up for, where a problem brings none
GIB = 2**30


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


def _weights(problem: Problem, tables: Tables, counting: Counting) -> Ints:
    kinds, models, _, width = tables.times.shape
    weights = np.zeros((kinds, models, width), np.int64)
    for place, model in enumerate(problem.models):
        for shape, form in model.forms.items():
            sizes = [form.memory(stage, tables.runtime.max_batch) for stage in range(shape.stages)]
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
    """Evenly spaced, each model beginning at another part of its gap."""
    arrivals: list[tuple[Time, int]] = []
    for place, model in enumerate(models):
        gap = SECOND / model.rate if model.rate > 0 else 2 * over
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
    replicas = tuple(
        Replica(model, group.gpus, group.shape, ground.tables.runtime.max_batch, why=_why(number, group))
        for number, group in enumerate(groups)
        for model in group.models
    )
    placed = {replica.model for replica in replicas}
    missing = {
        model.index: _lacks(ground, place)
        for place, model in enumerate(ground.models)
        if model.index not in placed
    }
    counted = ground.workload.counted
    attainment = None if served is None else (served / counted if counted else 1.0)
    return Plan(name, replicas, missing, attainment)


def _why(number: int, group: Group) -> str:
    shared = len(group.models) - 1
    return f"group {number}, {group.shape}, shared with {shared} other model{'' if shared == 1 else 's'}"


def _lacks(ground: Ground, place: int) -> str:
    model = ground.models[place]
    if not model.forms:
        return "no form of it is known"
    kinds = ground.tables.kinds
    fitting = [shape for shape in model.forms if ground.useful[kinds[shape], place]]
    if not fitting:
        fastest = min(ground.tables.latency(shape, place) for shape in model.forms)
        return f"its fastest form takes {to_ms(fastest):.1f} ms, the objective is {to_ms(model.slo):.1f} ms"
    smallest = min(fitting, key=lambda shape: (max(_bytes(ground, shape, place)), shape))
    need = max(_bytes(ground, smallest, place)) / GIB
    return (
        f"{need:.2f} GiB more on each of {smallest.gpus} GPUs ({smallest}), or fewer requests for the others"
    )


def _bytes(ground: Ground, shape: Shape, place: int) -> list[int]:
    found: list[int] = ground.weights[ground.tables.kinds[shape], place, : shape.stages].tolist()
    return found


def capacities(groups: Sequence[Group], gpus: Sequence[PlacementGpu], width: int) -> Ints:
    """[group, stage]: what the smallest GPU of a stage has. Stages that a group lacks hold anything."""
    memory = {gpu.id: gpu.memory for gpu in gpus}
    found = np.full((len(groups), width), np.iinfo(np.int64).max, np.int64)
    for row, group in zip(found, groups, strict=True):
        for stage in range(group.shape.stages):
            of_stage = group.gpus[stage * group.shape.operators : (stage + 1) * group.shape.operators]
            row[stage] = min(memory[gpu] for gpu in of_stage)
    return found
