"""AlpaServe's runtime (section 4.3), simulated: groups of GPUs share the stages of their models.

A group has a shape, and every model on it runs in that shape. A request goes to one of the groups that
have its model; each stage serves in order of arrival, so that the clocks of the stages tell when the
request would be answered. If that is too late it is rejected at once. This file is the meaning;
`native/placement` is its twin, request by request.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from astrarium.core.errors import InputError
from astrarium.core.optional import extension
from astrarium.core.quantities import FOREVER, MILLISECOND, SECOND, Time
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


class GroupRuntime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A runtime says how groups serve; by default as the authors' fast simulator, in whole nanoseconds.

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
        """Return the nanoseconds in one unit of the clock."""
        return 1 if self.clock == "ns" else SECOND

    @property
    def fixed(self) -> float:
        """Return the fixed overhead in units of the clock."""
        return self.fixed_overhead if self.clock == "ns" else self.fixed_overhead / SECOND


DEFAULT = GroupRuntime()


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
            number, place = (int(found[0]) for found in np.nonzero(impossible))
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


class FirstCome:
    """First come, first served: requests are accepted or rejected at once; *clocks* are updated."""

    def __init__(self, layout: GroupLayout, clocks: Clocks) -> None:
        self.layout = layout
        self.runtime = layout.tables.runtime
        self.final = clocks
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
        """Return when a request's last stage ends, and its group; if rejected, the last group tried."""
        tried = -1
        for tried in self._candidates(arrival, model):
            ends = through(self.clocks[tried], arrival, self.times[tried][model])
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

    def _accept(self, group: int, model: int, ends: list[float]) -> None:
        self.clocks[group] = ends
        self.unfinished[group].append(ends[-1])
        self.work[group] += max(self.times[group][model])


# Groups that let requests wait: the next batch is made when the first stage is free.


Entry = tuple[Time, int]  # deadline or arrival, and the request


@dataclass
class GroupQueue:
    """A group queue holds when a group's stages are free, what waits, and when running requests end."""

    clocks: list[Time]
    queues: dict[int, list[Entry]]
    running: list[Time] = field(default_factory=list)
    waiting: int = 0
    ready: Time = 0  # when the first of those that wait came

    def length(self, now: Time) -> int:
        while self.running and self.running[0] <= now:
            heapq.heappop(self.running)
        return self.waiting + len(self.running)

    def pop(self, model: int) -> None:
        heapq.heappop(self.queues[model])
        self.waiting -= 1


class Waiting:
    """Requests wait in queues, and the next batch is made when a group's first stage is free."""

    def __init__(self, layout: GroupLayout, arrivals: Clocks, models: SmallInts) -> None:
        tables = layout.tables
        self.runtime = tables.runtime
        self.slo = tables.slo.tolist()
        self.times = tables.times[layout.kind].tolist()  # [group][model][batch - 1][stage]
        self.arrivals = arrivals.tolist()
        self.models = models.tolist()
        self.hosts = [np.flatnonzero(column).tolist() for column in layout.hosts.T]
        self.rooms = [
            GroupQueue([0] * int(stages), {int(model): [] for model in np.flatnonzero(row)})
            for stages, row in zip(layout.stages, layout.hosts, strict=True)
        ]
        self.served = Served.empty(len(arrivals), layout)
        self.served.finish[:] = REJECTED

    def run(self) -> Served:
        for request in range(len(self.arrivals)):
            self._arrive(request)
        for group in range(len(self.rooms)):
            self._advance(group, FOREVER)
        answered = self.served.finish != REJECTED
        self.served.finish[answered] += self.runtime.fixed_overhead
        return self.served

    def _deadline(self, request: int) -> Time:
        slo: Time = self.slo[self.models[request]]
        arrival: Time = self.arrivals[request]
        return arrival + slo - self.runtime.fixed_overhead

    def _arrive(self, request: int) -> None:
        now = self.arrivals[request]
        model = self.models[request]
        for group in self.hosts[model]:
            self._advance(group, now)
        able = [
            group for group in self.hosts[model] if self._alone(group, now, model) <= self._deadline(request)
        ]
        asked = able if self.runtime.another else self.hosts[model]
        best = min(asked, key=lambda group: (self.rooms[group].length(now), group), default=-1)
        self.served.group[request] = best
        if best in able:
            self._wait(best, request, now, model)

    def _wait(self, group: int, request: int, now: Time, model: int) -> None:
        room = self.rooms[group]
        if room.waiting == 0:
            room.ready = now
        room.waiting += 1
        key = self._deadline(request) if self.runtime.order == "deadline" else now
        heapq.heappush(room.queues[model], (key, request))

    def _advance(self, group: int, until: Time) -> None:
        """Send off all batches that start before *until*."""
        room = self.rooms[group]
        while room.waiting and max(room.clocks[0], room.ready) < until:
            self._send(group, room, max(room.clocks[0], room.ready))

    def _send(self, group: int, room: GroupQueue, start: Time) -> None:
        model = min((queue[0], model) for model, queue in room.queues.items() if queue)[1]
        batch: list[int] = []
        earliest = FOREVER
        queue = room.queues[model]
        while queue and len(batch) < self.runtime.max_batch:
            request = queue[0][1]
            due = self._deadline(request)
            if self._alone(group, start, model) > due:
                room.pop(model)
                continue
            if self._through(group, start, model, len(batch) + 1)[-1] > min(earliest, due):
                break
            earliest = min(earliest, due)
            batch.append(request)
            room.pop(model)
        if batch:
            self._commit(group, room, start, model, batch)

    def _commit(self, group: int, room: GroupQueue, start: Time, model: int, batch: list[int]) -> None:
        room.clocks = self._through(group, start, model, len(batch))
        self.served.work[group] += max(self.times[group][model][len(batch) - 1])
        for request in batch:
            self.served.finish[request] = room.clocks[-1]
            heapq.heappush(room.running, room.clocks[-1])

    def _alone(self, group: int, start: Time, model: int) -> Time:
        return self._through(group, start, model, 1)[-1]

    def _through(self, group: int, start: Time, model: int, batch: int) -> list[Time]:
        return through(self.rooms[group].clocks, start, self.times[group][model][batch - 1])


# The simulation runs groups on requests, natively where that was built, and counts answers in time.


Engine = Literal["native", "python"]


@dataclass(frozen=True)
class SimulatedRequests:
    """Simulated requests are columns; *totals* counts them by place of a model."""

    arrivals: Clocks
    models: SmallInts
    totals: Ints

    @classmethod
    def of(cls, tables: Tables, requests: PlacementRequests) -> SimulatedRequests:
        return cls.from_columns(*tables.columns(requests), len(tables.slo))

    @classmethod
    def from_columns(cls, arrivals: Clocks, models: SmallInts, count: int) -> SimulatedRequests:
        return SimulatedRequests(arrivals, models, np.bincount(models, minlength=count))

    def __len__(self) -> int:
        return len(self.arrivals)

    def of_models(self, places: Bools) -> SimulatedRequests:
        """Return only the requests of some models."""
        kept = places[self.models]
        return SimulatedRequests(self.arrivals[kept], self.models[kept], self.totals * places)

    def beginning(self, share: float) -> SimulatedRequests:
        """Return the first part of the requests: enough to tell bad placements from good ones."""
        end = int(len(self) * share)
        return self.from_columns(self.arrivals[:end], self.models[:end], len(self.totals))


@dataclass(frozen=True)
class Score:
    """A score counts requests in time by place of a model, and the work of each group's slowest stage."""

    good: Ints
    work: Clocks

    @property
    def served(self) -> int:
        return int(self.good.sum())


def score(layout: GroupLayout, workload: SimulatedRequests, engine: Engine = "native") -> Score:
    """Simulate groups and return what a search needs: requests in time, and work."""
    native = extension("_placement") if engine == "native" else None
    if native is None or layout.tables.runtime.waits:
        served = serve(layout, workload, engine=engine)
        return Score(in_time(served, workload), served.work)
    good = np.zeros(len(workload.totals), np.int64)
    work = np.zeros(len(layout.kind), layout.tables.times.dtype)
    runtime = layout.tables.runtime
    native.attainment(
        *_columns(layout, workload),
        runtime.fixed,
        runtime.dispatch == "queue",
        runtime.another,
        0,
        len(workload),
        good,
        work,
    )
    return Score(good, work)


def serve(
    layout: GroupLayout, workload: SimulatedRequests, clocks: Clocks | None = None, engine: Engine = "native"
) -> Served:
    """Simulate groups and return the fate of every request; *clocks* of the stages are read and updated."""
    native = extension("_placement") if engine == "native" else None
    if native is None:
        return _reference(layout, workload, clocks)
    served = Served.empty(len(workload.arrivals), layout)
    runtime = layout.tables.runtime
    columns = _columns(layout, workload)
    if runtime.waits:
        by_deadline = runtime.order == "deadline"
        rules = (runtime.fixed, by_deadline, runtime.another)
        native.waiting(*columns, *rules, served.finish, served.group, served.work)
        return served
    rules = (runtime.fixed, runtime.dispatch == "queue", runtime.another)
    kept = layout.clocks() if clocks is None else clocks
    native.outcomes(*columns, *rules, kept, clocks is not None, served.finish, served.group, served.work)
    return served


def _columns(layout: GroupLayout, workload: SimulatedRequests) -> tuple[Any, ...]:
    tables = layout.tables
    groups = (tables.times, layout.kind, layout.stages, layout.hosts)
    return (*groups, workload.arrivals, workload.models, tables.slo)


def _reference(layout: GroupLayout, workload: SimulatedRequests, clocks: Clocks | None) -> Served:
    if layout.tables.runtime.waits:
        return Waiting(layout, workload.arrivals, workload.models).run()
    runtime = FirstCome(layout, layout.clocks() if clocks is None else clocks)
    return runtime.run(workload.arrivals, workload.models)


def in_time(served: Served, workload: SimulatedRequests) -> Ints:
    """Count requests in time by place of a model: all that are answered are."""
    good = served.finish != REJECTED
    return np.bincount(workload.models[good], minlength=len(workload.totals))
