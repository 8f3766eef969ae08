"""Clockwork queues work on the GPUs a little ahead of time, the most urgent candidate batch first.

Gujarati et al., "Serving DNNs like Clockwork: Performance Predictability from the Bottom Up", OSDI 2020,
as its public controller does it, with arbitrary batch sizes as in Symphony's comparison. Each GPU has a
timeline; whenever one ends within `ahead` of now, it is given another batch. For every batch size b a
model has a candidate as long as a request can still finish in a batch of b; its latest moment is that
request's deadline less l(b). The candidate with the earliest latest moment wins, and its model then runs
the largest batch that it can fill, sizes going up one by one. Nobody waits for a batch to fill.

Settled by us: older requests that the chosen batch leaves behind are dropped at once (the controller lets
them time out); a deadline is never put past the client's, however short the SLO; among equal timelines
the smallest id is taken. By default a batch behind one that overran its estimate runs as soon as it can;
the controller's workers refuse a batch that they cannot begin within 10 ms of its plan, which `window: 10ms`
does too (only where estimates are too short does it matter, and never while more than one batch waits).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from heapq import heappop, heappush
from typing import Annotated, Literal

import msgspec

from astrarium.core.policy import SetTimer
from astrarium.core.quantities import DURATION_FORM, FOREVER, Time, duration_in
from astrarium.serving import contract
from astrarium.serving.contract import Action, Event, ModelSpec, Network, RequestArrived, Setup
from astrarium.serving.policies import LengthsAside, NativeParameters, serving_policies
from astrarium.serving.policies import _entries as entries
from astrarium.serving.policies._entries import Queue
from astrarium.serving.policies._min_tree import MinTree
from astrarium.serving.state import Batch, Gpu, ServingState

_NO_WINDOW = "forever"


class ModelCandidates:
    """A model has one candidate batch for each batch size; they are kept as `look` last found them.

    Time only takes candidates away, so until a request arrives or `latest` has passed nothing changes.
    """

    def __init__(self, model: ModelSpec, network: Network, sizes: Sequence[int]) -> None:
        self.queue: Queue = []
        self.latency = model.latency
        self.costs = entries.batch_costs(model, network)
        self.delays = [network.delay(size) for size in range(len(model.latency))]
        self.sizes = sizes
        self.latest = FOREVER  # the earliest of the candidates' latest moments
        self.urgent = 0  # the batch size of the candidate that it belongs to
        self.size = 0  # the largest batch that can be filled; 0 if nothing waits
        self.first = 0  # where in the queue that batch begins
        self.version = 0  # tells this look from earlier ones
        self._looked: tuple[Time, Time] = (-1, -1)

    def look(self, now: Time, free: Time) -> None:
        """Find the candidates for a GPU that is free at *free*."""
        self.latest = FOREVER
        self.urgent = 0
        self.size = 0
        self.first = 0
        self.version += 1
        self._looked = (now, free)
        first = 0
        for size in self.sizes:
            ends = max(now + self.costs[size], free + self.latency[size])
            first = entries.due_before(self.queue, ends, first)
            if len(self.queue) - first < size:
                break
            self.size = size
            self.first = first
            latest = self.queue[first][0] - self.latency[size]
            if latest < self.latest:
                self.latest = latest
                self.urgent = size

    def outdated(self, now: Time, free: Time) -> bool:
        """Whether a request may have become too late for one of the batch sizes since the last look."""
        return self.latest < max(free, now + self.delays[self.size]) and self._looked != (now, free)


@serving_policies.register("clockwork")
class Clockwork:
    """Queue work on GPUs a little ahead, the batch that must start soonest first."""

    native = "clockwork"

    class Parameters(LengthsAside, frozen=True):
        ahead: Annotated[
            str, msgspec.Meta(description=f"how much work a GPU is given before it is free: {DURATION_FORM}")
        ] = "10ms"
        buffer: Annotated[
            str, msgspec.Meta(description=f"what is kept free of each SLO for surprises: {DURATION_FORM}")
        ] = "5ms"
        sizes: Annotated[
            Literal["all", "powers_of_two"],
            msgspec.Meta(description="the batch sizes to consider: all, or powers of two as in the paper"),
        ] = "all"
        window: Annotated[
            str,
            msgspec.Meta(
                description=f"how far behind its plan a batch may begin, or it is refused: {DURATION_FORM}, "
                f"or {_NO_WINDOW}"
            ),
        ] = _NO_WINDOW

    def __init__(self, setup: Setup, parameters: Parameters) -> None:
        self.setup = setup
        self.parameters = parameters
        self._network = setup.network
        self._ahead = duration_in("ahead", parameters.ahead)
        self._buffer = duration_in("buffer", parameters.buffer)
        self._models = [
            ModelCandidates(model, setup.network, _sizes(model, parameters.sizes)) for model in setup.models
        ]
        self._alone = [candidates.costs[1] for candidates in self._models]
        self._changed: set[int] = set()  # models with a new request or a batch gone since the last look
        self._urgent: list[tuple[Time, int, int, int]] = []  # heap: latest moment, batch size, model, version
        self._free = MinTree(len(setup.gpus), 0)  # the end of each GPU's timeline
        self._first = [-1] * len(setup.gpus)  # the batch that each runs now, or will run next
        self._window = (
            FOREVER if parameters.window == _NO_WINDOW else duration_in("window", parameters.window)
        )
        self._timer: Time = -1

    def native_parameters(self) -> NativeParameters:
        powers = int(self.parameters.sizes == "powers_of_two")
        integers = {"ahead": self._ahead, "buffer": self._buffer, "window": self._window}
        return NativeParameters({**integers, "powers_of_two": powers}, {}, {})

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        for event in events:
            if isinstance(event, RequestArrived):
                self._push(event)
            elif isinstance(event, contract.GpuEvent):
                yield from self._see_gpu(now, event.gpu, state)
        yield from self._dispatch(now, state)
        if self._free.least >= FOREVER:
            yield from self._hold(now)
        elif (self._changed or self._urgent) and self._free.least - self._ahead > now:
            yield from self._set_timer(self._free.least - self._ahead)

    def _push(self, event: RequestArrived) -> None:
        request = event.request
        due = request.deadline - self._network.response
        wanted = max(due - self._buffer, request.arrival + self._ahead + self._buffer)
        entries.insert(self._models[request.model].queue, (min(due, wanted), request.id))
        self._changed.add(request.model)

    def _see_gpu(self, now: Time, gpu: int, state: ServingState) -> Iterator[Action]:
        """Draw a GPU's timeline anew from its batches if the first of them is another than before."""
        gpu_state = state.gpus[gpu]
        first = gpu_state.batches[0].run if gpu_state.batches else -1
        if not gpu_state.present:
            self._free.set(gpu, FOREVER)
        elif self._too_late(now, gpu_state):
            self._free.set(gpu, FOREVER)  # until the GPU is heard of again
            yield from self._refuse(now, gpu_state.batches[0])
        elif first != self._first[gpu] or first < 0:
            free = now
            for batch in gpu_state.batches:
                free = max(free, batch.start) + self._models[batch.model].latency[len(batch.requests)]
            if free < self._free[gpu]:  # sooner than the candidates were told: look at all of them again
                self._changed.update(m for m, candidates in enumerate(self._models) if candidates.queue)
            self._free.set(gpu, free)
        self._first[gpu] = first

    def _too_late(self, now: Time, gpu_state: Gpu) -> bool:
        """Whether the batch that is about to begin has missed its window because the one before overran."""
        if len(gpu_state.batches) != 1 or gpu_state.batches[0].run == self._first[gpu_state.id]:
            return False
        return now - gpu_state.batches[0].start > self._window

    def _refuse(self, now: Time, batch: Batch) -> Iterator[Action]:
        yield contract.Preempt(batch.gpu)
        refused = [(request.deadline - self._network.response, request.id) for request in batch.requests]
        yield from entries.drops(refused, now + self._alone[batch.model])

    def _dispatch(self, now: Time, state: ServingState) -> Iterator[Action]:
        while (gpu := self._claim(now, state)) >= 0:
            free = self._free[gpu]
            for model in sorted(self._changed):
                yield from self._look(now, free, model)
            self._changed.clear()
            urgent = yield from self._most_urgent(now, free)
            if urgent < 0:
                return
            yield from self._send(now, gpu, urgent)
            self._first[gpu] = state.gpus[gpu].batches[0].run

    def _claim(self, now: Time, state: ServingState) -> int:
        """Return the GPU whose timeline ends first, if that is soon enough; else -1."""
        while (gpu := self._free.first_at_most(now)) >= 0:
            if state.gpus[gpu].idle:
                return gpu
            self._free.set(gpu, FOREVER)  # it overruns its estimate: wait for the news that it is free
        return self._free.argmin() if self._free.least <= now + self._ahead else -1

    def _look(self, now: Time, free: Time, model: int) -> Iterator[Action]:
        candidates = self._models[model]
        alone = max(now + candidates.costs[1], free + candidates.latency[1])
        expired = entries.cut(candidates.queue, entries.due_before(candidates.queue, alone))
        yield from entries.drops(expired, alone)
        candidates.look(now, free)
        if candidates.size:
            heappush(self._urgent, (candidates.latest, candidates.urgent, model, candidates.version))

    def _most_urgent(self, now: Time, free: Time) -> Generator[Action, None, int]:
        """Return the model whose turn it is, or -1; no key in the heap is later than the true one."""
        while self._urgent:
            model, version = self._urgent[0][2:]
            valid = version == self._models[model].version
            if valid and not self._models[model].outdated(now, free):
                return model
            heappop(self._urgent)
            if valid:
                yield from self._look(now, free, model)
        return -1

    def _send(self, now: Time, gpu: int, model: int) -> Iterator[Action]:
        candidates = self._models[model]
        size = candidates.size
        queue = candidates.queue
        yield from entries.drops(entries.cut(queue, candidates.first), 0)
        start = max(now + candidates.delays[size], self._free[gpu])
        self._free.set(gpu, start + candidates.latency[size])
        yield contract.Dispatch(gpu, entries.ids(entries.cut(queue, size)), start)
        candidates.version += 1
        if queue:
            self._changed.add(model)

    def _hold(self, now: Time) -> Iterator[Action]:
        """Hold requests while no GPU can be counted on: none is there, or each overruns its estimate."""
        queues = [candidates.queue for candidates in self._models]
        yield from entries.hold_without_gpu(now, queues, self._alone)
        self._changed.update(range(len(self._models)))

    def _set_timer(self, at: Time) -> Iterator[Action]:
        if at != self._timer:
            self._timer = at
            yield SetTimer(at, "timeline")


def _sizes(model: ModelSpec, which: str) -> Sequence[int]:
    if which == "all":
        return range(1, model.max_batch + 1)
    return [1 << power for power in range(model.max_batch.bit_length())]
