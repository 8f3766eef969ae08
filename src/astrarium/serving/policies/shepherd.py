"""Shepherd runs the largest batch first, which may cancel a running one that is a third of its size.

Zhang et al., "SHEPHERD: Serving DNNs in the Wild", NSDI 2023, its Flex algorithm as Symphony's authors
built it for their comparison (Shepherd's planner, which groups GPUs over hours, is not part of that).
Each model offers one candidate: from the head of its queue, as many as still meet the earliest deadline.
A GPU that becomes free runs the largest candidate of all. When a request arrives, every busy GPU is asked
whether its batch would be replaced by one at least `preemption` times as large, of the new request's model
or of its own; a candidate of its own model contains the batch that is running. What was cancelled starts
again from nothing; the time it ran and the GPU's recovery are lost.

Settled by us: idle GPUs are served before running batches are looked at; of equally large candidates the
one with the earliest deadline wins; requests that can no longer be met are purged at the head of the queue
(the authors' code looks at its tail, and a model whose head has expired then stays blocked until its last
request has too: `purge: tail`); a GPU is not preempted while it recovers; the recovery is allowed for when a
candidate is formed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec

from astrarium.core.policy import SetTimer
from astrarium.core.quantities import FOREVER, Time
from astrarium.serving import contract
from astrarium.serving.contract import Action, Event, Request, RequestArrived, Setup
from astrarium.serving.policies import LengthsAside, NativeParameters, serving_policies
from astrarium.serving.policies import _entries as entries
from astrarium.serving.policies._entries import Entry, Queue
from astrarium.serving.policies._min_tree import MinTree
from astrarium.serving.state import ServingState


class Pick(NamedTuple):
    """The batch that a GPU would get: the first *size* requests of a model, none at all for 0."""

    model: int
    size: int


_SAFE = FOREVER  # the size of a batch that nothing can replace: there is none, or the GPU recovers


@serving_policies.register("shepherd")
class Shepherd:
    """Run the largest batch first; one that is much larger cancels a running one."""

    native = "shepherd"

    class Parameters(LengthsAside, frozen=True):
        preemption: Annotated[
            float, msgspec.Meta(gt=1, description="a batch this many times as large cancels a running one")
        ] = 3.0
        preempt: Annotated[bool, msgspec.Meta(description="whether running batches may be cancelled")] = True
        purge: Annotated[
            Literal["head", "tail"],
            msgspec.Meta(
                description="where a queue is searched for requests that can no longer be met; `tail` is the "
                "fault in the code of Symphony's authors, there to compare with their numbers"
            ),
        ] = "head"

    def __init__(self, setup: Setup, parameters: Parameters) -> None:
        self.setup = setup
        self.parameters = parameters
        self._network = setup.network
        self._purges_tail = parameters.purge == "tail"
        self._queues: list[Queue] = [[] for _ in setup.models]
        self._waiting: set[int] = set()  # models whose queue may hold something
        self._costs = [entries.batch_costs(model, setup.network) for model in setup.models]
        self._stalled_costs = [
            entries.batch_costs(model, setup.network, setup.preemption_cost) for model in setup.models
        ]
        self._alone = [costs[1] for costs in self._costs]
        self._idle = MinTree(len(setup.gpus), 0)  # 0 for an idle GPU, FOREVER for any other
        self._sizes = [_SAFE] * len(setup.gpus)  # how many requests each GPU's batch holds
        self._running = [-1] * len(setup.gpus)  # and of which model
        self._due = [FOREVER] * len(setup.gpus)  # and its earliest deadline
        self._sent = [-1] * len(setup.gpus)  # and since when it has been there

    def native_parameters(self) -> NativeParameters:
        integers = {"preempt": int(self.parameters.preempt), "purge_tail": int(self._purges_tail)}
        return NativeParameters(integers, {"preemption": self.parameters.preemption}, {})

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        arrived: list[int] = []
        for event in events:
            if isinstance(event, RequestArrived):
                self._enqueue(event.request.model, self._entry(event.request))
                arrived.append(event.request.model)
            elif isinstance(event, contract.GpuEvent):
                self._see_gpu(event.gpu, state)
        yield from self._serve_idle(now)
        if self.parameters.preempt:
            yield from self._challenge(now, arrived, state)
        if not any(gpu.present for gpu in state.gpus):
            yield from entries.hold_without_gpu(now, self._queues, self._alone)
        elif self._purges_tail and self._idle.least == 0:
            yield from self._await_tails()

    def _entry(self, request: Request) -> Entry:
        return request.deadline - self._network.response, request.id

    def _enqueue(self, model: int, entry: Entry) -> None:
        entries.insert(self._queues[model], entry)
        self._waiting.add(model)

    def _see_gpu(self, gpu: int, state: ServingState) -> None:
        gpu_state = state.gpus[gpu]
        self._idle.set(gpu, 0 if gpu_state.idle else FOREVER)
        self._sizes[gpu] = _SAFE
        if not gpu_state.batches or gpu_state.recovering >= 0:
            return
        batch = gpu_state.batches[0]
        self._running[gpu], self._sizes[gpu] = batch.model, len(batch.requests)
        self._due[gpu] = min([self._entry(request)[0] for request in batch.requests])

    def _serve_idle(self, now: Time) -> Iterator[Action]:
        while self._waiting and (gpu := self._idle.first_at_most(0)) >= 0:
            best = Pick(-1, 0)
            for model in sorted(self._waiting):
                yield from self._purge(now, model)
                best = self._larger(now, best, model)
            if best.size:
                yield from self._send(now, gpu, best.model, entries.cut(self._queues[best.model], best.size))
            self._waiting = {model for model in self._waiting if self._queues[model]}
            if not best.size:
                return  # whoever still waits is blocked by its head

    def _purge(self, now: Time, model: int) -> Iterator[Action]:
        queue = self._queues[model]
        alone = now + self._alone[model]
        if queue and queue[-1 if self._purges_tail else 0][0] < alone:
            yield from entries.drops(entries.cut(queue, entries.due_before(queue, alone)), alone)

    def _await_tails(self) -> Iterator[Action]:
        """Look at models that are blocked by their heads again when their last request is lost too."""
        blocked = [model for model in self._waiting if self._queues[model]]
        lost = [self._queues[model][-1][0] - self._alone[model] + 1 for model in blocked]
        if lost:
            yield SetTimer(min(lost), "tails")

    def _larger(self, now: Time, best: Pick, other: int) -> Pick:
        """Return the better one of the best candidate so far and the other model's."""
        queue = self._queues[other]
        if not queue:
            return best
        size = min(len(queue), entries.largest_within(self._costs[other], queue[0][0] - now))
        tie = size == best.size and size > 0 and queue[0] < self._queues[best.model][0]
        return Pick(other, size) if size > best.size or tie else best

    def _send(self, now: Time, gpu: int, model: int, batch: list[Entry], stall: Time = 0) -> Iterator[Action]:
        self._idle.set(gpu, FOREVER)
        self._sent[gpu] = now
        self._running[gpu], self._sizes[gpu], self._due[gpu] = model, len(batch), min(batch)[0]
        yield contract.Dispatch(gpu, entries.ids(batch), now + max(self._network.delay(len(batch)), stall))

    def _challenge(self, now: Time, arrived: Sequence[int], state: ServingState) -> Iterator[Action]:
        """Let models with new requests, and then those whose batches were cancelled, try each busy GPU."""
        todo = list(dict.fromkeys(arrived))
        while todo:
            model = todo.pop(0)
            gpu = self._next_rival(now, model, 0)
            while gpu >= 0:
                cancelled = self._running[gpu]
                pick = yield from self._challenger(now, gpu, model)
                if pick.size >= self.parameters.preemption * self._sizes[gpu]:
                    yield from self._replace(now, gpu, pick, state)
                    if cancelled != model:
                        todo.append(cancelled)
                gpu = self._next_rival(now, model, gpu + 1)

    def _next_rival(self, now: Time, model: int, first: int) -> int:
        """Return the next GPU whose batch is small enough to be cancelled, whatever the deadlines; else -1.

        So many times as many requests must wait, or wait and run together if the model is the same. A batch
        that was sent at this very instant is left alone.
        """
        waiting = len(self._queues[model])
        apart = waiting / self.parameters.preemption
        joined = waiting / (self.parameters.preemption - 1)
        for gpu in range(first, len(self._sizes)) if joined >= 1 else ():
            size = self._sizes[gpu]
            if size <= joined and (size <= apart or self._running[gpu] == model) and self._sent[gpu] < now:
                return gpu
        return -1

    def _challenger(self, now: Time, gpu: int, model: int) -> Generator[Action, None, Pick]:
        """Return the larger one of the model's own candidate and the one that continues the running batch."""
        running = self._running[gpu]
        best = (-1, 0, FOREVER)
        for one in dict.fromkeys((model, running)):
            yield from self._purge(now, one)
            queue = self._queues[one]
            own = one == running
            due = min(queue[0][0] if queue else FOREVER, self._due[gpu] if own else FOREVER)
            most = len(queue) + (self._sizes[gpu] if own else 0)
            size = min(most, entries.largest_within(self._stalled_costs[one], due - now))
            if (size, -due) > (best[1], -best[2]):
                best = (one, size, due)
        return Pick(*best[:2])

    def _replace(self, now: Time, gpu: int, pick: Pick, state: ServingState) -> Iterator[Action]:
        model, size = pick
        running = self._running[gpu]
        cancelled = [self._entry(request) for request in state.gpus[gpu].batches[0].requests]
        yield contract.Preempt(gpu)
        if model == running:
            batch = cancelled + entries.cut(self._queues[model], size - len(cancelled))
        else:
            batch = entries.cut(self._queues[model], size)
            for entry in cancelled:
                self._enqueue(running, entry)
        yield from self._send(now, gpu, model, batch, self.setup.preemption_cost)
        self._sizes[gpu] = _SAFE  # until it has recovered
