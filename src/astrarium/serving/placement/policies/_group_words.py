"""Why a model is on a group of GPUs, and what one that is on none would have taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from astrarium.core.quantities import rounded_duration
from astrarium.core.units import to_ms
from astrarium.serving.placement.groups import REJECTED, Group, Ints, Layout
from astrarium.serving.placement.policies._partition import capacities, largest_node
from astrarium.serving.placement.problem import Shape
from astrarium.serving.placement.simulation import serve
from astrarium.serving.placement.words import gib

if TYPE_CHECKING:
    from astrarium.serving.placement.policies._ground import Ground


class GroupWords:
    """With one more simulation, which tells whose requests each group answers."""

    def __init__(self, ground: Ground, groups: Sequence[Group]) -> None:
        self._ground, self._groups = ground, groups
        self._answered = _answered(ground, groups)  # [group, place of a model]

    def why(self, number: int, model: int) -> str:
        group, place = self._groups[number], self._ground.tables.place[model]
        took = rounded_duration(self._ground.tables.latency(group.shape, place), 4)
        within = f"{took} of {rounded_duration(self._ground.models[place].slo, 4)} if nobody waits"
        return f"group {number} of {_shaped(group)}: {self._use(number, place)}; {within}"

    def _use(self, number: int, place: int) -> str:
        asked = int(self._ground.workload.totals[place])
        here, all_ = int(self._answered[number, place]), int(self._answered[:, place].sum())
        if not asked:
            return "nobody asked for it yet"
        if not here:
            return f"to spare, none of its {asked} requests came here"
        replicas = sum(self._ground.models[place].index in group.models for group in self._groups)
        others = f", its {replicas} replicas {_part(all_, asked)}" if replicas > 1 else ""
        return f"answers {_part(here, asked)} of its requests{others}"

    def lacks(self, place: int) -> str:
        ground, model = self._ground, self._ground.models[place]
        if not model.forms:
            return "a form: none of it is known"
        fitting = [shape for shape in model.forms if ground.useful[ground.tables.kinds[shape], place]]
        if not fitting:
            fastest = to_ms(min(ground.tables.latency(shape, place) for shape in model.forms))
            slo = to_ms(model.slo)
            return f"an objective of {fastest:.1f} ms, which its fastest form takes: not {slo:.1f} ms"
        able = {shape for shape in fitting if self._could_hold(shape, place)}
        if able:
            return self._lacks_room(place, able)
        least = min(fitting, key=lambda shape: self._bytes(shape, place))
        most = gib(max(gpu.memory for gpu in ground.problem.gpus))
        there = f"{len(ground.problem.gpus)} are there, with {most} at most"
        return f"{self._memory(least, place)}: {there}"

    def _lacks_room(self, place: int, able: set[Shape]) -> str:
        made = able & {group.shape for group in self._groups}
        if not made:
            return f"groups that it can run on ({', '.join(map(str, sorted(able)))}): none was made"
        if self._has_room(place):
            return "more GPUs: where it has room, others would lose more than it gains"
        needed = self._memory(min(made, key=lambda shape: (shape.gpus, shape)), place)
        return f"{needed} beside the others, which have it; or fewer requests for them"

    def _memory(self, shape: Shape, place: int) -> str:
        return f"{gib(self._bytes(shape, place))} on {_each(shape)}"

    def _bytes(self, shape: Shape, place: int) -> int:
        ground = self._ground
        return int(ground.weights[ground.tables.kinds[shape], place, : shape.stages].max())

    def _could_hold(self, shape: Shape, place: int) -> bool:
        """Some node, with nobody else on it."""
        gpus = [gpu for gpu in self._ground.problem.gpus if gpu.memory >= self._bytes(shape, place)]
        return bool(gpus) and largest_node(gpus) >= shape.gpus

    def _has_room(self, place: int) -> bool:
        ground = self._ground
        free = capacities(self._groups, ground.problem.gpus, ground.weights.shape[2])
        for row, group in zip(free, self._groups, strict=True):
            kind = ground.tables.kinds[group.shape]
            row -= ground.weights[kind, [ground.tables.place[model] for model in group.models]].sum(0)
            if ground.useful[kind, place] and (ground.weights[kind, place] <= row).all():
                return True
        return False


def _answered(ground: Ground, groups: Sequence[Group]) -> Ints:
    counts = np.zeros((len(groups), len(ground.models)), np.int64)
    if groups and ground.workload.counted:
        served = serve(Layout.of(ground.tables, groups), ground.workload)
        counted = slice(ground.workload.first, ground.workload.last)
        good = served.finish[counted] != REJECTED
        np.add.at(counts, (served.group[counted][good], ground.workload.models[counted][good]), 1)
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
    """Never rounded up to all."""
    return "all" if some == of else f"{min(some / of, 0.9999):.4g}"
