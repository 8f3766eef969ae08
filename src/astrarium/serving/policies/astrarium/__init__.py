"""Astrarium's own policy uses Symphony's window over Orloj's distributions; waiting and drops adapt to load.

- Requests stand in queues of alike times: one for each static model, one for each group of alike lengths, or
  of alike applications of a dynamic model, whose batch times are learnt; who waits decides on the batch.
- A candidate waits for others as long as the GPU time that this saves is worth it, by a price that is zero
  while GPUs are plenty, and at most a part of the way to Symphony's frontrun.
- No request is given up before a GPU is at hand; then the next grants are simulated, and the number of heads
  with the fewest losses is dropped.
docs/astrarium.md says why, and what each part brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.quantities import FOREVER, MILLISECOND, SECOND, Duration, Time, write_duration
from astrarium.serving import contract
from astrarium.serving.contract import Action, Event, ModelSpec, Request, Setup
from astrarium.serving.policies import NativeParameters, serving_policies
from astrarium.serving.policies._rates import RateMeter
from astrarium.serving.policies._times import LearntTimes
from astrarium.serving.policies.astrarium import pressure
from astrarium.serving.policies.astrarium.applications import Applications
from astrarium.serving.policies.astrarium.groups import Groups
from astrarium.serving.policies.astrarium.lengths import Buckets, LengthQueue
from astrarium.serving.policies.astrarium.queues import DynamicQueue, RequestQueue
from astrarium.serving.policies.window import WindowScheduler
from astrarium.serving.state import Batch, ServingState

PLAN_EVERY: Time = 50 * MILLISECOND
AHEAD = 2  # grants to simulate: a third changes next to nothing
GROUPINGS = ("grouped", "application", "model")
# of learnt times, as in `orloj`
BINS = 32
REFRESH = SECOND


@serving_policies.register("astrarium")
class Astrarium(WindowScheduler[RequestQueue]):
    """Wait as long as waiting pays, and give up only what the next GPUs could not make good."""

    native = "astrarium"
    listens_to_profiler = True

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        prefer: Annotated[
            Literal["latency", "few-gpus"],
            msgspec.Meta(
                description="what idle GPUs are for: `latency` lets requests leave at once while GPUs are "
                "plenty, `few-gpus` lets them wait for company, so that GPUs can be released"
            ),
        ] = "latency"
        patience: Annotated[
            Annotated[float, msgspec.Meta(ge=0, le=1)] | None,
            msgspec.Meta(description="share of the way to frontrun that a batch waits; none: as it pays"),
        ] = None
        lookahead: Annotated[
            bool,
            msgspec.Meta(description="decide whom to give up by the next grants, not by a target at once"),
        ] = True
        lines: Annotated[
            Literal["grouped", "application", "model"],
            msgspec.Meta(description="which applications, or buckets of lengths, share a queue"),
        ] = "grouped"
        memory: Annotated[Duration, msgspec.Meta(description="how long a measured time is remembered")] = (
            Duration(10 * SECOND)
        )

        def __post_init__(self) -> None:
            if self.memory < 1:
                raise InputError("memory", write_duration(self.memory), "a duration above 0")

    def __init__(self, setup: Setup, parameters: Parameters) -> None:
        super().__init__(setup, parameters)
        self._plan_at: Time = 0
        self._group_at: Time = 0  # when buckets of lengths are grouped next
        self._began: Time = 0
        self._lost = RateMeter()
        self._running: dict[int, Batch] = {}  # by their runs, where there are dynamic models

    def native_parameters(self) -> NativeParameters:
        parameters = self.parameters
        integers = {
            "lookahead": int(parameters.lookahead),
            "few_gpus": int(parameters.prefer == "few-gpus"),
            "lines": GROUPINGS.index(parameters.lines),
            "memory": parameters.memory,
        }
        patience = -1.0 if parameters.patience is None else parameters.patience
        return NativeParameters(integers, {"patience": patience}, {})

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        return self._watched(now, events, state) if self._crowds else super().decide(now, events, state)

    def make_queues(self) -> list[RequestQueue]:
        """Make a queue for each model whose requests are alike, for each bucket of lengths, and for each
        application of a dynamic model; of these, as many are in use as there are groups of them.
        """
        self._places: list[list[int]] = []  # by model, and application or bucket: its queue
        self._crowds: dict[int, Applications] = {}
        self._buckets: dict[int, Buckets] = {}
        queues: list[RequestQueue] = []
        for model in self.setup.models:
            own = self._queues_of(model)
            self._places.append([len(queues) + place for place in range(len(own))])
            queues += own
        self._queues = queues
        for model_index, groups in (*self._crowds.items(), *self._buckets.items()):
            self._form(model_index, groups)
        return queues

    def _queues_of(self, model: ModelSpec) -> Sequence[RequestQueue]:
        arguments = (model, self.setup.network, self.parameters)
        if model.dynamic:
            times = LearntTimes(model, BINS, self.parameters.memory, REFRESH)
            self._crowds[model.index] = Applications(model, times, self.parameters.lines)
            return [DynamicQueue(*arguments, times) for _ in model.dynamic.history]
        if model.lengths:
            buckets = Buckets(model.lengths, model.slo, self.parameters.lines)
            self._buckets[model.index] = buckets
            return [self._length_queue(model, buckets, row) for row in model.lengths.latency]
        return [RequestQueue(*arguments)]

    def _length_queue(self, model: ModelSpec, buckets: Buckets, latency: tuple[Time, ...]) -> LengthQueue:
        alike = msgspec.structs.replace(model, latency=latency)
        return LengthQueue(alike, buckets, self.setup.network, self.parameters)

    def index_of(self, request: Request) -> int:
        places = self._places[request.model]
        if len(places) == 1:
            return places[0]
        is_dynamic = request.model in self._crowds
        return places[request.application if is_dynamic else request.bucket]

    def _form(self, model: int, groups: Groups) -> Sequence[int]:
        """Give each group of the model's applications or buckets a queue of its own; return its queues."""
        first = min(self._places[model])
        last = first + len(self._places[model])
        waiting = [request for index in range(first, last) for request in self._queues[index].clear()]
        for index in range(first, last):
            self._queues[index].meter = RateMeter()
        for index, group in enumerate(groups.groups, first):
            for kind in group:
                self._places[model][kind] = index
            self._queues[index].meter = RateMeter.sum([groups.meters[kind] for kind in group])
            self._queues[index].plan_with(groups.table(group))
        for request in waiting:
            self._queues[self.index_of(request)].insert(request)
        return range(first, last)

    def _regroup(self, now: Time, model: int, groups: Groups) -> Sequence[int]:
        """Plan with the times that are known now; return the queues that must be looked at again."""
        if groups.regroup(now):
            return self._form(model, groups)
        indices = [self._places[model][group[0]] for group in groups.groups]
        for index, group in zip(indices, groups.groups, strict=True):
            self._queues[index].plan_with(groups.table(group))
        return indices

    def opens(self, queue: RequestQueue) -> Time:
        return queue.opens()

    def _hear(self, now: Time, events: Sequence[Event], state: ServingState) -> set[int]:
        changed = super()._hear(now, events, state)
        if self._crowds:
            changed.update(self._study(now, events))
        if self._buckets:
            self._measure(now, events)
        if now >= self._plan_at:
            changed.update(self._group_lengths(now))
            self._plan(now, state)
        return changed

    def _watched(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        """Decide, and remember which requests run together: a batch's time tells about its members."""
        for action in super().decide(now, events, state):
            yield action
            if type(action) is contract.Dispatch:
                batch = state.gpus[action.gpu].batches[-1]
                self._running[batch.run] = batch

    def _study(self, now: Time, events: Sequence[Event]) -> Iterator[int]:
        """Learn from arrivals, from batches, and from what the profiler measured."""
        touched = {model for event in events if (model := self._hear_of(now, event)) in self._crowds}
        for model in sorted(touched):
            if self._crowds[model].times.refreshed(now):
                yield from self._regroup(now, model, self._crowds[model])

    def _measure(self, now: Time, events: Sequence[Event]) -> None:
        """Count what comes of each bucket of lengths."""
        for event in events:
            if type(event) is contract.RequestArrived and event.request.model in self._buckets:
                self._buckets[event.request.model].arrived(now, event.request.bucket)

    def _group_lengths(self, now: Time) -> Iterator[int]:
        """Group buckets by the rates until now: often at first, when these are new."""
        if now < self._group_at:
            return
        if self._group_at == 0:
            self._began = now
        self._group_at = now + min(REFRESH, max(PLAN_EVERY, now - self._began))
        for model, buckets in self._buckets.items():
            yield from self._regroup(now, model, buckets)

    def _hear_of(self, now: Time, event: Event) -> int:
        """Learn from an event; return the model that it tells something of, or -1."""
        if type(event) is contract.RequestProfiled:
            self._crowds[event.model].times.measured(now, event.application, event.time)
            return event.model
        if type(event) is contract.RequestArrived and event.request.model in self._crowds:
            self._crowds[event.request.model].arrived(now, event.request.application)
            return event.request.model
        if type(event) is contract.BatchFinished and event.run in self._running:
            batch = self._running.pop(event.run)
            if batch.model in self._crowds:
                took = (event.ended or now) - event.started
                self._crowds[batch.model].finished(now, batch.requests, took)
            return batch.model
        if isinstance(event, contract.BatchFailed | contract.GpuLeft):
            self._running = {run: batch for run, batch in self._running.items() if batch.gpu != event.gpu}
        return -1

    def _plan(self, now: Time, state: ServingState) -> None:
        """Let every queue adapt its stance to the measured rates."""
        self._plan_at = now + PLAN_EVERY
        demands = [queue.demand(now) for queue in self._queues]
        self._lost.roll(now)
        came = sum(queue.meter.window()[0] for queue in self._queues)
        lost = self._lost.window()[0] / came if came else 0.0
        climate = pressure.climate(demands, sum(gpu.present for gpu in state.gpus), lost)
        for queue, demand in zip(self._queues, demands, strict=True):
            queue.adapt(demand, climate)

    def _give_up(self, now: Time, queue: RequestQueue, requests: Sequence[Request]) -> Iterator[Action]:
        if requests:
            self._lost.roll(now)
            self._lost.count(len(requests))
        return super()._give_up(now, queue, requests)

    def _settle(self, now: Time, index: int, gpu: int) -> Iterator[Action]:
        queue = self._queues[index]
        free = self._free[gpu]
        if not self.parameters.lookahead:
            yield from super()._settle(now, index, gpu)
        elif not queue.settled(now, free):
            yield from self._give_up(now, queue, queue.settle(now, free, self._grants(now, index, gpu)))
            if not queue.size:
                self._forget(index)
        if queue.size and isinstance(queue, DynamicQueue):
            queue.choose(now, free)
        if queue.size and isinstance(queue, LengthQueue):
            yield from self._give_up(now, queue, queue.choose(now, free, self._others(queue)))
            if not queue.size:
                self._forget(index)

    def _others(self, queue: LengthQueue) -> list[LengthQueue]:
        """Return the other queues of a model that hold requests, the most urgent first."""
        queues = [self._queues[place] for place in sorted({*self._places[queue.model.index]})]
        others = [one for one in queues if isinstance(one, LengthQueue) and one.requests and one is not queue]
        return sorted(others, key=lambda one: one.deadlines[0])

    def _changed_by(self, index: int) -> list[int]:
        queue = self._queues[index]
        if not isinstance(queue, LengthQueue):
            return [index]
        hosts = queue.hosts()
        places = sorted({*self._places[queue.model.index]})
        return [index, *(place for place in places if self._queues[place] in hosts)]

    def _grants(self, now: Time, index: int, gpu: int) -> Callable[[int], Sequence[Time]]:
        """Return when the queue may expect GPUs again, by the size of the batch that leaves now."""
        queue = self._queues[index]
        free = self._free[gpu]
        others: list[Time] = []

        def grants(size: int) -> Sequence[Time]:
            """Return the next grants of the queue; every other open candidate gets a GPU first."""
            if not others:
                others.extend(self._next_free(now, gpu))
            end = max(now + self._network.delay(size), free) + queue.latency[size]
            turn = max(1, self._open)
            return sorted([*others, end])[turn - 1 : AHEAD * turn : turn]

        return grants

    def _next_free(self, now: Time, gpu: int) -> Iterator[Time]:
        """Return when other GPUs are free, as far as the next grants may need them."""
        kept = [(gpu, self._free[gpu])]
        self._free.set(gpu, FOREVER)
        while len(kept) <= AHEAD * max(1, self._open) and self._free.least < FOREVER:
            next_gpu = self._free.argmin()
            kept.append((next_gpu, self._free[next_gpu]))
            self._free.set(next_gpu, FOREVER)
        for taken, at in reversed(kept):
            self._free.set(taken, at)
        return (max(now, at) for _, at in kept[1:])
