"""The search context holds what searches over groups of GPUs share, and makes plans of what they find."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from astrarium.core.errors import InputError
from astrarium.core.quantities import FOREVER, SECOND, Time, gib, rounded_duration, to_ms
from astrarium.placement.groups.layout import REJECTED, Group, GroupLayout, Ints, Tables
from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.groups.simulation import SimulatedRequests, simulate_groups
from astrarium.placement.plan import Plan, Replica
from astrarium.placement.problem import PlacedModel, PlacementGpu, PlacementRequests, Problem, Shape


def grouped(gpus: Sequence[PlacementGpu], shape: Shape) -> tuple[Group, ...]:
    """Divide GPUs into groups of a shape, which do not cross nodes.

    GPUs with more memory come first: a group has what its smallest GPU has.
    """
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


def capacities(groups: Sequence[Group], gpus: Sequence[PlacementGpu], width: int) -> Ints:
    """Return the memory of each [group, stage]'s smallest GPU; stages that a group lacks hold anything."""
    memory = {gpu.id: gpu.memory for gpu in gpus}
    smallest = np.full((len(groups), width), np.iinfo(np.int64).max, np.int64)
    for row, group in zip(smallest, groups, strict=True):
        for stage in range(group.shape.stages):
            of_stage = group.gpus[stage * group.shape.operators : (stage + 1) * group.shape.operators]
            row[stage] = min(memory[gpu] for gpu in of_stage)
    return smallest


class GroupExplainer:
    """A group explainer says why a model is on a group, and what a model on none would have taken.

    It takes one more simulation, which tells whose requests each group answers.
    """

    def __init__(self, context: SearchContext, groups: Sequence[Group]) -> None:
        self._context = context
        self._groups = groups
        self._answered = _answered(context, groups)  # [group, place of a model]

    def why(self, number: int, model: int) -> str:
        group = self._groups[number]
        place = self._context.tables.place[model]
        took = rounded_duration(self._context.tables.latency(group.shape, place), 4)
        within = f"{took} of {rounded_duration(self._context.models[place].slo, 4)} if nobody waits"
        return f"group {number} of {_shaped(group)}: {self._use(number, place)}; {within}"

    def _use(self, number: int, place: int) -> str:
        asked = int(self._context.workload.totals[place])
        here = int(self._answered[number, place])
        all_ = int(self._answered[:, place].sum())
        if not asked:
            return "nobody asked for it yet"
        if not here:
            return f"to spare, none of its {asked} requests came here"
        replicas = sum(self._context.models[place].index in group.models for group in self._groups)
        others = f", its {replicas} replicas {_part(all_, asked)}" if replicas > 1 else ""
        return f"answers {_part(here, asked)} of its requests{others}"

    def lacks(self, place: int) -> str:
        context = self._context
        model = self._context.models[place]
        if not model.forms:
            return "a form: none of it is known"
        fitting = [shape for shape in model.forms if context.useful[context.tables.kinds[shape], place]]
        if not fitting:
            fastest = to_ms(min(context.tables.latency(shape, place) for shape in model.forms))
            slo = to_ms(model.slo)
            return f"an objective of {fastest:.1f} ms, which its fastest form takes: not {slo:.1f} ms"
        able = {shape for shape in fitting if self._could_hold(shape, place)}
        if able:
            return self._lacks_room(place, able)
        least = min(fitting, key=lambda shape: self._bytes(shape, place))
        most = gib(max(gpu.memory for gpu in context.problem.gpus))
        there = f"{len(context.problem.gpus)} are there, with {most} at most"
        return f"{self._memory(least, place)}: {there}"

    def _lacks_room(self, place: int, able: set[Shape]) -> str:
        usable = able & {group.shape for group in self._groups}
        if not usable:
            return f"groups that it can run on ({', '.join(map(str, sorted(able)))}): none was made"
        if self._has_room(place):
            return "more GPUs: where it has room, others would lose more than it gains"
        needed = self._memory(min(usable, key=lambda shape: (shape.gpus, shape)), place)
        return f"{needed} beside the others, which have it; or fewer requests for them"

    def _memory(self, shape: Shape, place: int) -> str:
        return f"{gib(self._bytes(shape, place))} on {_each(shape)}"

    def _bytes(self, shape: Shape, place: int) -> int:
        context = self._context
        return int(context.weights[context.tables.kinds[shape], place, : shape.stages].max())

    def _could_hold(self, shape: Shape, place: int) -> bool:
        """Whether some node could hold the model if it were empty."""
        gpus = [gpu for gpu in self._context.problem.gpus if gpu.memory >= self._bytes(shape, place)]
        return bool(gpus) and largest_node(gpus) >= shape.gpus

    def _has_room(self, place: int) -> bool:
        context = self._context
        free = capacities(self._groups, context.problem.gpus, context.weights.shape[2])
        for row, group in zip(free, self._groups, strict=True):
            kind = context.tables.kinds[group.shape]
            row -= context.weights[kind, [context.tables.place[model] for model in group.models]].sum(0)
            if context.useful[kind, place] and (context.weights[kind, place] <= row).all():
                return True
        return False


def _answered(context: SearchContext, groups: Sequence[Group]) -> Ints:
    counts = np.zeros((len(groups), len(context.models)), np.int64)
    if groups and len(context.workload):
        served = simulate_groups(GroupLayout.of(context.tables, groups), context.workload)
        good = served.finish != REJECTED
        np.add.at(counts, (served.group[good], context.workload.models[good]), 1)
    return counts


def _shaped(group: Group) -> str:
    gpus = "1 GPU" if group.shape.gpus == 1 else f"{group.shape.gpus} GPUs"
    others = len(group.models) - 1
    company = f"shared with {others} model{'s' * (others > 1)}" if others else "for it alone"
    return f"{gpus}{_cut(group.shape)}, {company}"


def _cut(shape: Shape) -> str:
    if shape.stages == 1:
        return ", each with a part of every layer" if shape.operators > 1 else ""
    return f" in {shape.stages} stages" + (f" of {shape.operators} GPUs" if shape.operators > 1 else "")


def _each(shape: Shape) -> str:
    return "a GPU" if shape.gpus == 1 else f"each of {shape.gpus} GPUs of a node ({shape})"


def _part(some: int, of: int) -> str:
    """Return a part of requests as text, never rounded up to all."""
    return "all" if some == of else f"{min(some / of, 0.9999):.4g}"


Bools = npt.NDArray[np.bool_]
Counting = Literal["stage", "worst-stage"]
STEADY = 60 * SECOND  # how long requests are made up for, where a problem brings none
MOST = 500_000  # of them


@dataclass(frozen=True)
class SearchContext:
    """A search context is a placement problem as arrays, for searches over groups.

    *weights* are bytes on each GPU of a stage: [kind, model, stage]. *useful*: [kind, model] where a lone
    request is answered in time.
    """

    problem: Problem
    tables: Tables
    workload: SimulatedRequests
    weights: Ints
    useful: Bools

    @classmethod
    def of(cls, problem: Problem, runtime: GroupRuntime, counting: Counting = "stage") -> SearchContext:
        if not problem.gpus:
            raise InputError("gpus", 0, "at least one GPU to place models on")
        tables = Tables.of(problem.models, runtime)
        requests = problem.requests if problem.requests.times else steady_requests(problem.models)
        workload = SimulatedRequests.of(tables, requests)
        return cls(problem, tables, workload, _weights(problem, tables, counting), _useful(problem, tables))

    @property
    def models(self) -> tuple[PlacedModel, ...]:
        return self.problem.models

    def batch(self, shape: Shape, model: int) -> int:
        """Return the largest batch that is ever run: larger ones are late, or their times are not known."""
        place = self.tables.place[model]
        return largest_batch(self.tables, self.models[place], shape, place)


def largest_batch(tables: Tables, model: PlacedModel, shape: Shape, place: int) -> int:
    """Return the largest batch that keeps the model's objective; 1 where even that is late."""
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


def steady_requests(models: Sequence[PlacedModel], over: Time = STEADY) -> PlacementRequests:
    """Return evenly spaced requests, each model's beginning at another part of its gap."""
    arrivals: list[tuple[Time, int]] = []
    total = sum(model.rate for model in models)
    over = min(over, round(MOST * SECOND / total)) if total else over
    for place, model in enumerate(models):
        gap = SECOND / model.rate if model.rate > 0 else FOREVER
        first = gap * (place + 1) / (len(models) + 1)
        count = max(0, int((over - first) / gap) + 1) if first < over else 0
        arrivals += [(round(first + number * gap), model.index) for number in range(count)]
    arrivals.sort()
    return PlacementRequests(tuple(time for time, _ in arrivals), tuple(model for _, model in arrivals))


def plan_of(name: str, context: SearchContext, groups: Iterable[Group], served: int | None) -> Plan:
    """Return the plan of groups with their models; *served* of the requests were answered in time."""
    groups = tuple(groups)
    explainer = GroupExplainer(context, groups)
    replicas = tuple(
        Replica(
            model,
            group.gpus,
            group.shape,
            context.batch(group.shape, model),
            why=explainer.why(number, model),
        )
        for number, group in enumerate(groups)
        for model in group.models
    )
    placed = {replica.model for replica in replicas}
    missing = {
        model.index: explainer.lacks(place)
        for place, model in enumerate(context.models)
        if model.index not in placed
    }
    asked = len(context.workload)
    attainment = None if served is None else (served / asked if asked else 1.0)
    return Plan(name, replicas, missing, attainment)
