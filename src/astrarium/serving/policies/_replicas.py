"""Replica schedulers bind a request to a GPU when it arrives; each GPU then serves its own queues.

A GPU keeps one queue for each model; models take turns, one batch each, in the order in which they began
to wait. It never waits for a batch to fill. Subclasses say where a request goes, and how many of a queue's
heads to give up and to run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from astrarium.core.quantities import Time
from astrarium.serving import contract
from astrarium.serving.contract import Action, Event, Setup
from astrarium.serving.policies import _entries as entries
from astrarium.serving.policies._entries import Entry, Queue
from astrarium.serving.state import Batch, ServingState


class GpuQueues:
    """One GPU has a queue for each model; `turns` holds the models with waiting requests, next one first."""

    def __init__(self) -> None:
        self.queues: dict[int, Queue] = {}
        self.turns: deque[int] = deque()

    def push(self, model: int, entry: Entry) -> None:
        queue = self.queues.setdefault(model, [])
        if not queue:
            self.turns.append(model)
        entries.insert(queue, entry)


class ReplicaScheduler:
    def __init__(self, setup: Setup, parameters: Any) -> None:
        self.setup = setup
        self.parameters = parameters
        self._network = setup.network
        self._costs = [entries.batch_costs(model, setup.network) for model in setup.models]
        self._present = [gpu.id for gpu in setup.gpus]
        self._gpu_queues = [GpuQueues() for _ in setup.gpus]
        self._stranded: list[Queue] = [[] for _ in setup.models]  # while there is no GPU at all

    def route(self, model: int, request: int) -> int:
        """Return the GPU, one of those present, that shall serve the request."""
        raise NotImplementedError

    def gather(self, now: Time, gpu: int, model: int, queue: Queue) -> tuple[int, int]:
        """Return how many heads to drop, and how many of the rest (at least one, if any) to run now."""
        raise NotImplementedError

    def regroup(self, now: Time, joined: Sequence[int]) -> None:
        """Adapt to GPUs that have joined or left."""
        raise NotImplementedError

    def sent(self, batch: Batch) -> None:
        """Hear that a batch was dispatched."""

    def finished(self, now: Time, event: contract.BatchFinished) -> None:
        """Hear that a batch has finished; the news may come more than once."""

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        touched: set[int] = set()
        if any(isinstance(event, contract.GpuJoined | contract.GpuLeft) for event in events):
            self._meet(now, state, touched)
        for event in events:
            if isinstance(event, contract.RequestArrived):
                request = event.request
                entry = (request.deadline - self._network.response, request.id)
                self._bind(request.model, entry, touched)
            elif isinstance(event, contract.GpuEvent):
                touched.add(event.gpu)
                if isinstance(event, contract.BatchFinished):
                    self.finished(now, event)
        for gpu in sorted(touched):
            if state.gpus[gpu].idle:
                yield from self._turn(now, gpu, state)
        if not self._present:
            yield from entries.hold_without_gpu(now, self._stranded, [costs[1] for costs in self._costs])

    def _bind(self, model: int, entry: Entry, touched: set[int]) -> None:
        if not self._present:
            entries.insert(self._stranded[model], entry)
            return
        gpu = self.route(model, entry[1])
        self._gpu_queues[gpu].push(model, entry)
        touched.add(gpu)

    def _meet(self, now: Time, state: ServingState, touched: set[int]) -> None:
        """Bind the requests of GPUs that have left, and those that had none, to the GPUs that are present."""
        before = self._present
        self._present = [gpu.id for gpu in state.gpus if gpu.present]
        if before == self._present:
            return
        if self._present:
            self.regroup(now, [gpu for gpu in self._present if gpu not in before])
        queues = list(enumerate(self._stranded))
        self._stranded = [[] for _ in self.setup.models]
        for gpu in before:
            if gpu not in self._present:
                queues += self._gpu_queues[gpu].queues.items()
                self._gpu_queues[gpu] = GpuQueues()
        homeless = sorted((entry, model) for model, queue in queues for entry in queue)
        for entry, model in homeless:
            self._bind(model, entry, touched)

    def _turn(self, now: Time, gpu: int, state: ServingState) -> Iterator[Action]:
        own = self._gpu_queues[gpu]
        while own.turns:
            model = own.turns.popleft()
            queue = own.queues[model]
            given_up, size = self.gather(now, gpu, model, queue)
            yield from entries.drops(entries.cut(queue, given_up), now + self._costs[model][1])
            batch = entries.cut(queue, size)
            if queue:
                own.turns.append(model)
            if batch:
                yield contract.Dispatch(gpu, entries.ids(batch), now + self._network.delay(size))
                self.sent(state.gpus[gpu].batches[-1])
                return
