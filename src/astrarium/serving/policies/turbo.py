"""TurboTransformers cuts the queue, sorted by length, into the batches that together take the least time.

Fang et al., "TurboTransformers: An Efficient GPU Serving System For Transformer Models", PPoPP 2021, section
5. A table has measured times by length and batch size. When it is time to schedule, all waiting requests are
sorted by length, and a dynamic program finds which consecutive ones to run together so that the sum of the
times of all batches is least. Deadlines play no part. It is time as soon as the GPU is idle (`hungry`), or
once the oldest request has waited for a timeout or the queue is full (`lazy`).

Settled by us: on several GPUs the batches of one cut go to whichever is idle, that of the oldest request
first, and the queue is cut anew once all of them have left; of equal sums the one with the larger last batch
is taken; requests that are too late even alone are dropped when the queue is cut (otherwise nothing is in
time once a queue has built up), all others are run even if they will be late; a model without lengths has a
table of one length; where unequal requests cannot share a run, those that can are cut apart from the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Literal

import msgspec

from astrarium.core.policy import SetTimer
from astrarium.core.quantities import FOREVER, Time
from astrarium.serving.contract import (
    EXPIRED,
    Action,
    Dispatch,
    Drop,
    Event,
    Lengths,
    ModelSpec,
    Request,
    RequestArrived,
    Setup,
)
from astrarium.serving.policies import NativeParameters, serving_policies
from astrarium.serving.policies.window import timeout_for
from astrarium.serving.state import ServingState


def cut(requests: Sequence[Request], lengths: Lengths) -> list[list[Request]]:
    """Cut requests that rise by length into batches of consecutive ones that take the least time together."""
    least: list[Time] = [0]  # of the first so many requests
    sizes = [0]  # of the last batch of those
    for end, longest in enumerate(requests, 1):
        table = lengths.latency[longest.bucket]
        most = min(end, lengths.max_batch(longest.bucket))
        total, size = min((least[end - size] + table[size], -size) for size in range(1, most + 1))
        least.append(total)
        sizes.append(-size)
    batches = []
    end = len(requests)
    while end:
        batches.append(list(requests[end - sizes[end] : end]))
        end -= sizes[end]
    return batches[::-1]


class Queue:
    """A queue holds the requests of one model that wait; when it is cut, all leave it in batches."""

    def __init__(self, model: ModelSpec, timeout: Time) -> None:
        self.requests: list[Request] = []
        self.timeout = timeout
        self.full = model.max_batch
        self.lengths = model.lengths or Lengths((0,), (model.latency,))

    def due(self) -> Time:
        """Return when the oldest request has waited long enough."""
        return min(request.arrival for request in self.requests) + self.timeout if self.requests else FOREVER

    def is_ready(self, now: Time) -> bool:
        return self.due() <= now or len(self.requests) >= self.full

    def alone(self, request: Request) -> Time:
        return self.lengths.latency[request.bucket][1]

    def emptied(self) -> Iterator[list[Request]]:
        """Empty the queue; yield its batches."""
        ordered = sorted(self.requests, key=lambda request: (request.length, request.deadline, request.id))
        self.requests = []
        for _, together in groupby(ordered, self._kind):
            yield from cut(list(together), self.lengths)

    def _kind(self, request: Request) -> int:
        """Return what requests have in common that can share a run."""
        return {"padded": 0, "bucket": request.bucket, "length": request.length}[self.lengths.together]


@serving_policies.register("turbo")
class Turbo:
    """Cut the queue, sorted by length, into the batches that take the least time; no deadlines."""

    native = "turbo"

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        trigger: Annotated[
            Literal["hungry", "lazy"],
            msgspec.Meta(
                description="when the queue is cut: `hungry` as soon as a GPU is idle, `lazy` once the "
                "oldest request has waited for `timeout`, or as many wait as the largest batch holds"
            ),
        ] = "hungry"
        timeout: Annotated[
            str, msgspec.Meta(description="how long `lazy` waits: a duration, or a share of each model's SLO")
        ] = "12.5%"

    def __init__(self, setup: Setup, parameters: Parameters) -> None:
        self._network = setup.network
        hungry = parameters.trigger == "hungry"
        timeouts = [timeout_for(parameters.timeout, model.slo) for model in setup.models]
        self._queues = [
            Queue(model, 0 if hungry else timeout)
            for model, timeout in zip(setup.models, timeouts, strict=True)
        ]
        self._batches: deque[list[Request]] = deque()  # of the last cut, those that have not left
        self._timer: Time = FOREVER

    def native_parameters(self) -> NativeParameters:
        return NativeParameters({}, {}, {"timeouts": [queue.timeout for queue in self._queues]})

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        for event in events:
            if isinstance(event, RequestArrived):
                self._queues[event.request.model].requests.append(event.request)
        for gpu in state.gpus:
            if gpu.idle:
                if not self._batches:
                    yield from self._cut(now)
                if not self._batches:
                    break
                yield Dispatch(gpu.id, tuple(request.id for request in self._batches.popleft()))
        yield from self._set_timer(now)

    def _cut(self, now: Time) -> Iterator[Action]:
        """Drop what is too late, and cut the queues whose time has come."""
        batches = list[list[Request]]()
        for queue in self._queues:
            if queue.is_ready(now):
                yield from self._drop(now, queue)
                batches += queue.emptied()
        batches.sort(key=lambda batch: min((request.arrival, request.id) for request in batch))
        self._batches.extend(batches)

    def _drop(self, now: Time, queue: Queue) -> Iterator[Action]:
        earliest = now + self._network.delay(1) + self._network.response
        late = {one.id for one in queue.requests if earliest + queue.alone(one) > one.deadline}
        queue.requests = [one for one in queue.requests if one.id not in late]
        for request in sorted(late):
            yield Drop(request, EXPIRED)

    def _set_timer(self, now: Time) -> Iterator[Action]:
        """Look again when a queue's time comes; what is due already waits for a GPU to be idle."""
        due = (queue.due() for queue in self._queues)
        at = min((moment for moment in due if moment > now), default=FOREVER)
        if at != self._timer:
            self._timer = at
            yield SetTimer(at, "cut")
