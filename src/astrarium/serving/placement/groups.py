"""Groups of GPUs that share their models' stages: AlpaServe's runtime (section 4.3), simulated.

A group has a shape, and every model on it runs in that shape. A request goes to one of the groups that
have its model; each stage serves in order of arrival, so that the clocks of the stages tell when the
request would be answered. If that is too late it is rejected at once. This file is the meaning;
`native/src/placement` is its twin, request by request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from astrarium.core.errors import InputError
from astrarium.core.units import MILLISECOND, SECOND, Time
from astrarium.serving.placement.plan import Plan
from astrarium.serving.placement.problem import PlacedModel, Requests, Shape

Ints = npt.NDArray[np.int64]
Clocks = npt.NDArray[Any]  # int64 nanoseconds or float64 seconds
SmallInts = npt.NDArray[np.int32]
Hosts = npt.NDArray[np.uint8]
REJECTED = -1


class Group(msgspec.Struct, frozen=True):
    """*models* are indices, as in a problem."""

    gpus: tuple[int, ...]
    shape: Shape
    models: tuple[int, ...] = ()


def groups_of(plan: Plan) -> tuple[Group, ...]:
    """The groups that a plan's replicas make up: those on the same GPUs in the same shape."""
    members: dict[tuple[tuple[int, ...], Shape], list[int]] = {}
    for replica in plan.replicas:
        members.setdefault((replica.gpus, replica.shape), []).append(replica.model)
    return tuple(Group(gpus, shape, tuple(models)) for (gpus, shape), models in members.items())


class Runtime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How groups serve. As it stands: what the authors' fast simulator does, in whole nanoseconds.

    *dispatch*: to the group whose last stage is free first, or to the shortest queue (what the paper says).
    *another*: where one group would be late, the next is tried before the request is rejected.
    *order* and *max_batch*: requests wait, and the next batch is made when the first stage is free.
    *stage_overhead*: each stage takes longer by this share for every stage there is. *fixed_overhead* comes
    with every answer. Both are the authors' constants for what their system adds to its kernels.
    *clock*: whole nanoseconds, or seconds in double precision as the authors count. It matters: in their
    bursts many requests come within a nanosecond, and the order of the clocks decides which group is next.
    """

    dispatch: Literal["clock", "queue"] = "clock"
    another: bool = False
    order: Literal["arrival", "deadline"] = "arrival"
    max_batch: int = 1
    stage_overhead: float = 0.009
    fixed_overhead: Time = 11 * MILLISECOND
    clock: Literal["ns", "seconds"] = "ns"

    def __post_init__(self) -> None:
        if self.max_batch < 1:
            raise InputError("max_batch", self.max_batch, "at least 1")
        if self.waits and self.dispatch != "queue":
            raise InputError("dispatch", self.dispatch, "queue, where requests wait (deadlines or batches)")
        if self.waits and self.clock != "ns":
            raise InputError("clock", self.clock, "ns, where requests wait (deadlines or batches)")
        if self.stage_overhead < 0 or self.fixed_overhead < 0:
            raise InputError("overhead", (self.stage_overhead, self.fixed_overhead), "none below zero")

    @property
    def waits(self) -> bool:
        return self.order == "deadline" or self.max_batch > 1

    @property
    def unit(self) -> float:
        """Nanoseconds in one unit of the clock."""
        return 1 if self.clock == "ns" else SECOND

    @property
    def fixed(self) -> float:
        """The fixed overhead, as the clock counts."""
        return self.fixed_overhead if self.clock == "ns" else self.fixed_overhead / SECOND


AS_PUBLISHED = Runtime(clock="seconds")
IMPROVED = Runtime(dispatch="queue", another=True)
DEFAULT = Runtime()
WITHOUT_OVERHEADS = Runtime(stage_overhead=0.0, fixed_overhead=0)


@dataclass(frozen=True)
class Tables:
    """What simulations of one set of models share: `times[kind, model, batch - 1, stage]` with the overheads.

    Models go by their place in the problem. A kind is a shape; where a model lacks it, its row is zero.
    """

    kinds: dict[Shape, int]
    times: Clocks
    slo: Clocks
    place: dict[int, int]  # of a model's index
    runtime: Runtime

    @classmethod
    def of(cls, models: Sequence[PlacedModel], runtime: Runtime = DEFAULT) -> Tables:
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
        """Of a batch that finds all stages free, to its answer; *model* is a place."""
        stages = float(self.times[self.kinds[shape], model, batch - 1].sum())
        return round(stages * self.runtime.unit) + self.runtime.fixed_overhead

    def columns(self, requests: Requests) -> tuple[Clocks, SmallInts]:
        """Arrivals and places of models."""
        models = np.array(requests.models, np.int64)
        if any(index != place for index, place in self.place.items()):
            models = np.array([self.place[index] for index in requests.models], np.int64)
        times = np.array(requests.times, np.int64)
        return times if self.runtime.clock == "ns" else times / SECOND, models.astype(np.int32)


def _with_overhead(stage_times: Sequence[Sequence[Time]], shape: Shape, runtime: Runtime) -> Clocks:
    """[batch - 1, stage]; batches larger than the form knows are as slow as they would be one after
    another."""
    known = np.array(stage_times, np.float64)[:, 1:]
    batches = np.arange(1, runtime.max_batch + 1)
    inside = np.minimum(batches, known.shape[1])
    times = known[:, inside - 1] * np.ceil(batches / inside) * (1 + runtime.stage_overhead * shape.stages)
    return np.rint(times).astype(np.int64).T if runtime.clock == "ns" else times.T / SECOND


@dataclass(frozen=True)
class Layout:
    """Groups as the kernels see them."""

    tables: Tables
    kind: SmallInts
    stages: SmallInts
    hosts: Hosts  # [group, place of a model]

    @classmethod
    def of(cls, tables: Tables, groups: Sequence[Group]) -> Layout:
        kind = np.array([tables.kinds[group.shape] for group in groups], np.int32)
        stages = np.array([group.shape.stages for group in groups], np.int32)
        hosts = np.zeros((len(groups), len(tables.slo)), np.uint8)
        for row, group in zip(hosts, groups, strict=True):
            row[[tables.place[model] for model in group.models]] = 1
        impossible = hosts.astype(bool) & ~tables.times[kind, :, 0, 0].astype(bool)
        if impossible.any():
            number, place = (int(found[0]) for found in np.nonzero(impossible))
            raise InputError(f"groups[{number}].models", place, f"models with a form {groups[number].shape}")
        return cls(tables, kind, stages, hosts)

    def clocks(self) -> Clocks:
        """Every stage is free."""
        return np.zeros((len(self.kind), self.tables.times.shape[3]), self.tables.times.dtype)


@dataclass
class Served:
    """What became of each request: when it was answered (-1: rejected), by which group; each group's work."""

    finish: Clocks
    group: SmallInts
    work: Clocks

    @classmethod
    def empty(cls, requests: int, layout: Layout) -> Served:
        number = layout.tables.times.dtype
        finish, group = np.empty(requests, number), np.empty(requests, np.int32)
        return cls(finish, group, np.zeros(len(layout.kind), number))


class FirstCome:
    """In order of arrival: accepted or rejected at once. *clocks* are brought up to date at the end."""

    def __init__(self, layout: Layout, clocks: Clocks) -> None:
        self.layout, self.runtime, self.final = layout, layout.tables.runtime, clocks
        self.slo = layout.tables.slo.tolist()
        self.times = layout.tables.times[layout.kind][:, :, 0].tolist()  # [group][model][stage]
        self.hosts = [np.flatnonzero(column).tolist() for column in layout.hosts.T]
        pairs = zip(clocks.tolist(), layout.stages.tolist(), strict=True)
        self.clocks: list[list[float]] = [row[:stages] for row, stages in pairs]
        self.unfinished: list[deque[float]] = [deque() for _ in self.clocks]
        self.work = [0.0 if self.runtime.clock == "seconds" else 0] * len(self.clocks)

    def run(self, arrivals: Clocks, models: SmallInts) -> Served:
        served = Served.empty(len(arrivals), self.layout)
        for number, (arrival, model) in enumerate(zip(arrivals.tolist(), models.tolist(), strict=True)):
            finish, served.group[number] = self.serve(arrival, model)
            served.finish[number] = finish if finish == REJECTED else finish + self.runtime.fixed
        served.work[:] = self.work
        for row, clocks in zip(self.final, self.clocks, strict=True):
            row[: len(clocks)] = clocks
        return served

    def serve(self, arrival: float, model: int) -> tuple[float, int]:
        """When its last stage ends, and where. A rejected one names the last group that was tried."""
        tried = -1
        for tried in self._candidates(arrival, model):
            ends = self._through(tried, arrival, model)
            if ends[-1] + self.runtime.fixed - arrival <= self.slo[model]:
                self._accept(tried, model, ends)
                return ends[-1], tried
        return REJECTED, tried

    def _candidates(self, arrival: float, model: int) -> list[int]:
        ranked = sorted(self.hosts[model], key=lambda group: (self._load(group, arrival), group))
        return ranked if self.runtime.another else ranked[:1]

    def _load(self, group: int, now: float) -> float:
        if self.runtime.dispatch == "clock":
            return self.clocks[group][-1]
        queue = self.unfinished[group]
        while queue and queue[0] <= now:
            queue.popleft()
        return len(queue)

    def _through(self, group: int, arrival: float, model: int) -> list[float]:
        ends, now = [], arrival
        for clock, took in zip(self.clocks[group], self.times[group][model], strict=False):
            now = max(now, clock) + took
            ends.append(now)
        return ends

    def _accept(self, group: int, model: int, ends: list[float]) -> None:
        self.clocks[group] = ends
        self.unfinished[group].append(ends[-1])
        self.work[group] += max(self.times[group][model])
