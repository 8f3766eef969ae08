"""Groups and the times of their models are arrays, for the simulation and its native twin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND, Time
from astrarium.placement.groups.runtime import DEFAULT, GroupRuntime
from astrarium.placement.problem import PlacedModel, PlacementRequests, Shape

Ints = npt.NDArray[np.int64]
Clocks = npt.NDArray[Any]  # int64 nanoseconds or float64 seconds
SmallInts = npt.NDArray[np.int32]
Hosts = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
REJECTED = -1


class Group(msgspec.Struct, frozen=True):
    """A group is GPUs in a shape with models on them, by their indices in the problem."""

    gpus: tuple[int, ...]
    shape: Shape
    models: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tables:
    """Tables are shared by simulations of the same models: `times[kind, model, batch - 1, stage]`.

    Overheads are in the times. Models go by their place in the problem. A kind is a shape; where a model
    lacks it, its row is zero.
    """

    kinds: dict[Shape, int]
    times: Clocks
    slo: Clocks
    place: dict[int, int]  # of a model's index
    runtime: GroupRuntime

    @classmethod
    def of(cls, models: Sequence[PlacedModel], runtime: GroupRuntime = DEFAULT) -> Tables:
        shapes = sorted({shape for model in models for shape in model.forms})
        width = max((shape.stages for shape in shapes), default=1)
        number = np.int64 if runtime.clock == "ns" else np.float64
        times = np.zeros((max(1, len(shapes)), len(models), runtime.max_batch, width), number)
        kinds = {shape: kind for kind, shape in enumerate(shapes)}
        for place, model in enumerate(models):
            for shape, form in model.forms.items():
                times[kinds[shape], place, :, : shape.stages] = _with_overhead(
                    form.stage_times, shape, runtime
                )
        slo = np.array([model.slo for model in models], np.int64)
        if runtime.clock == "seconds":
            slo = (slo / SECOND).astype(np.float32).astype(np.float64)
        return cls(kinds, times, slo, {model.index: place for place, model in enumerate(models)}, runtime)

    def latency(self, shape: Shape, model: int, batch: int = 1) -> Time:
        """Return the latency of a batch that finds all stages free; *model* is a place."""
        stages = float(self.times[self.kinds[shape], model, batch - 1].sum())
        return round(stages * self.runtime.unit) + self.runtime.fixed_overhead

    def columns(self, requests: PlacementRequests) -> tuple[Clocks, SmallInts]:
        """Return arrivals and places of models as columns."""
        models = np.array(requests.models, np.int64)
        if any(index != place for index, place in self.place.items()):
            models = np.array([self.place[index] for index in requests.models], np.int64)
        times = np.array(requests.times, np.int64)
        return times if self.runtime.clock == "ns" else times / SECOND, models.astype(np.int32)


def _with_overhead(stage_times: Sequence[Sequence[Time]], shape: Shape, runtime: GroupRuntime) -> Clocks:
    """Return the times [batch - 1, stage] with overheads.

    Batches larger than the form knows are as slow as they would be one after another.
    """
    known = np.array(stage_times, np.float64)[:, 1:]
    batches = np.arange(1, runtime.max_batch + 1)
    inside = np.minimum(batches, known.shape[1])
    times = known[:, inside - 1] * np.ceil(batches / inside) * (1 + runtime.stage_overhead * shape.stages)
    return np.rint(times).astype(np.int64).T if runtime.clock == "ns" else times.T / SECOND


@dataclass(frozen=True)
class GroupLayout:
    """A layout is groups as arrays, for the simulation's native code."""

    tables: Tables
    kind: SmallInts
    stages: SmallInts
    hosts: Hosts  # [group, place of a model]

    @classmethod
    def of(cls, tables: Tables, groups: Sequence[Group]) -> GroupLayout:
        kind = np.array([tables.kinds[group.shape] for group in groups], np.int32)
        stages = np.array([group.shape.stages for group in groups], np.int32)
        hosts = np.zeros((len(groups), len(tables.slo)), np.uint8)
        for row, group in zip(hosts, groups, strict=True):
            row[[tables.place[model] for model in group.models]] = 1
        impossible = hosts.astype(bool) & ~tables.times[kind, :, 0, 0].astype(bool)
        if impossible.any():
            number, place = (int(indices[0]) for indices in np.nonzero(impossible))
            raise InputError(f"groups[{number}].models", place, f"models with a form {groups[number].shape}")
        return cls(tables, kind, stages, hosts)

    def clocks(self) -> Clocks:
        """Return clocks by which every stage is free."""
        return np.zeros((len(self.kind), self.tables.times.shape[3]), self.tables.times.dtype)


@dataclass
class Served:
    """The fates of requests: when each was answered (-1: rejected), by which group; and each group's work."""

    finish: Clocks
    group: SmallInts
    work: Clocks

    @classmethod
    def empty(cls, requests: int, layout: GroupLayout) -> Served:
        number = layout.tables.times.dtype
        finish = np.empty(requests, number)
        group = np.empty(requests, np.int32)
        return cls(finish, group, np.zeros(len(layout.kind), number))


def through(clocks: Sequence[float], start: float, times: Sequence[float]) -> list[Any]:
    """Return when each stage ends, for work that comes at *start*; *clocks* say when each is free."""
    ends = []
    now = start
    for clock, took in zip(clocks, times, strict=False):
        now = max(now, clock) + took
        ends.append(now)
    return ends
