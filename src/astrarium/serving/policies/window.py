"""The window scheduler is Symphony's Algorithm 1, with the delays of Figure 18, for any schedulable window.

Chen et al., "Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling".

Requests stand in queues, one for each model unless a subclass divides them otherwise. Each queue keeps one
candidate batch. It may leave from the moment its window opens until `latest`, the last start that keeps its
first deadline. While it may, it waits for a GPU; when `latest` passes, the candidate is gathered anew and
heads that cannot be saved are dropped. GPUs are taken smallest id first, which keeps the large ids idle at
low load. Subclasses say when the window opens:

- `deferred` at frontrun = d - l(b + 1): a request that arrives later could not be added without missing the
  first deadline d, so waiting longer gains nothing.
- `eager` at once: whatever waits leaves as soon as a GPU is idle, as in most serving systems (section 3.4).
- `timeout` at a + k, where a is the arrival of the oldest request and k the timeout (section 2.2, TensorFlow
  Serving's way). Settled by us: a batch that would be too late by then leaves at its latest moment instead of
  being given up.

Everything here is a moment at which to decide, that is, a start less the delay of the network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar, cast

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.policy import SetTimer
from astrarium.core.quantities import DURATION_FORM, FOREVER, Time, read_duration, split_quantity
from astrarium.serving import contract
from astrarium.serving.contract import Action, Event, Request, Setup
from astrarium.serving.policies import LengthsAside, NativeParameters, serving_policies
from astrarium.serving.policies._min_tree import MinTree
from astrarium.serving.policies._queue import ModelQueue
from astrarium.serving.state import ServingState

Gather = Annotated[
    Literal["window", "fcfs"],
    msgspec.Meta(
        description="how a batch is gathered: `window` drops heads to keep the staggered target size "
        "(what Symphony's authors run), `fcfs` takes from the head while the batch fits"
    ),
]


Queue = TypeVar("Queue", bound=ModelQueue)  # or one that gathers in its own way


class WindowScheduler(Generic[Queue]):
    native = ""  # the name of the window in the native twin, where there is one
    live_twin = "wake"  # where there is a twin, it can decide live too; the name of its timer

    def __init__(self, setup: Setup, parameters: Any) -> None:
        self.setup = setup
        self.parameters = parameters
        self._network = setup.network
        self._queues = self.make_queues()
        self._wake = MinTree(len(self._queues))  # when each queue must be looked at again
        self._latest = MinTree(len(self._queues))  # for the queues whose candidate may leave now
        self._delays = MinTree(len(self._queues))  # minus the delay of those, to find the longest
        self._free = MinTree(len(setup.gpus), 0)  # when each GPU is expected to be free
        self._planned = [deque[Time]() for _ in setup.gpus]  # what each batch that a GPU has is planned with
        self._open = 0  # how many queues have a candidate that may leave
        self._timer: Time = FOREVER

    def native_parameters(self) -> NativeParameters:
        return NativeParameters({"fcfs": int(self.parameters.gather == "fcfs")}, {}, {})

    def make_queues(self) -> list[Queue]:
        models = self.setup.models
        network = self.setup.network
        queues = [ModelQueue(model, network, self.parameters.gather) for model in models]
        return cast(list[Queue], queues)

    def index_of(self, request: Request) -> int:
        return request.model

    def opens(self, queue: Queue) -> Time:
        """Return the earliest start that the window allows for the queue's candidate."""
        raise NotImplementedError

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        changed = self._hear(now, events, state)
        while (index := self._wake.first_at_most(now)) >= 0:
            self._wake.set(index, FOREVER)
            changed.add(index)
        for index in sorted(changed):
            yield from self._update(now, index)
        # without a GPU for the one with the longest delay there is none for anybody
        if self._latest.least < FOREVER and self._free.least <= now - self._delays.least:
            yield from self._match(now, state)
        yield from self._set_timer(now)

    def _hear(self, now: Time, events: Sequence[Event], state: ServingState) -> set[int]:
        changed = set()
        for event in events:
            if type(event) is contract.RequestArrived:
                index = self.index_of(event.request)
                self._queues[index].push(now, event.request)
                changed.add(index)
            elif isinstance(event, contract.GpuEvent):
                ended = event.ended if type(event) is contract.BatchFinished else 0
                self._see_gpu(now, event.gpu, ended or now, state)
        return changed

    def _see_gpu(self, now: Time, gpu: int, ended: Time, state: ServingState) -> None:
        planned = self._planned[gpu]
        gpu_state = state.gpus[gpu]
        while len(planned) > len(gpu_state.batches):
            planned.popleft()
        if gpu_state.idle:
            self._free.set(gpu, now)
        elif not gpu_state.present:
            self._free.set(gpu, FOREVER)
        else:
            self._start_late(ended, gpu)

    def _start_late(self, began: Time, gpu: int) -> None:
        """Move the GPU's expected end when the first of the batches that were sent ahead began only then.

        The time by which the batch before it overran must not add up from batch to batch.
        """
        end = began + sum(self._planned[gpu])
        free = self._free[gpu]
        if free < end or free >= FOREVER:
            self._free.set(gpu, end)

    def _update(self, now: Time, index: int, gpu_free: Time = 0) -> Iterator[Action]:
        """Gather the candidate anew; drop what it gives up; set when to look again."""
        queue = self._queues[index]
        if given_up := queue.gather(now, gpu_free):
            yield from self._give_up(now, queue, given_up)
        if not queue.size:
            self._forget(index)
            return
        delay = self._network.delay(queue.size)
        opens = self.opens(queue) - delay
        if opens > now:
            self._hide(index)
            self._wake.set(index, opens)
        else:
            latest = queue.latest()
            self._open += self._latest[index] >= FOREVER
            self._latest.set(index, latest)
            self._delays.set(index, -delay)
            self._wake.set(index, latest - delay + 1)

    def _give_up(self, now: Time, queue: Queue, requests: Sequence[Request]) -> Iterator[Action]:
        for request in requests:
            reason = contract.SACRIFICED if queue.saveable(request, now) else contract.EXPIRED
            yield contract.Drop(request.id, reason)

    def _forget(self, index: int) -> None:
        self._hide(index)
        self._wake.set(index, FOREVER)

    def _hide(self, index: int) -> None:
        """Keep the queue's candidate from leaving."""
        if self._latest[index] < FOREVER:
            self._open -= 1
            self._latest.set(index, FOREVER)
            self._delays.set(index, FOREVER)

    def _match(self, now: Time, state: ServingState) -> Iterator[Action]:
        """Give GPUs to the candidates that may leave, the most urgent first."""
        too_late: dict[int, Time] = {}
        while (index := self._latest.argmin()) >= 0:
            gpu = self._claim(now, index, state)
            if gpu < 0:
                break
            if self._free[gpu] > self._latest[index]:
                too_late[index] = self._latest[index]
                self._latest.set(index, FOREVER)
            else:
                yield from self._grant(now, index, gpu)
        for index, latest in too_late.items():
            self._latest.set(index, latest)

    def _claim(self, now: Time, index: int, state: ServingState) -> int:
        """Return the smallest GPU that is free when the queue's batch could start; -1 if there is none.

        Else it is the GPU that is free next, if the longest delay of a waiting candidate says that it must be
        claimed now.
        """
        while True:
            gpu = self._free.first_at_most(now - self._delays[index])
            if gpu < 0 and self._free.least <= now - self._delays.least:
                gpu = self._free.argmin()
            if gpu < 0 or self._free[gpu] > now or state.gpus[gpu].idle:
                return gpu
            self._free.set(gpu, FOREVER)  # it overruns its estimate: wait for the news that it is free

    def _grant(self, now: Time, index: int, gpu: int) -> Iterator[Action]:
        queue = self._queues[index]
        free = self._free[gpu]
        yield from self._settle(now, index, gpu)
        if not queue.size:
            return
        start = max(now + self._network.delay(queue.size), free)
        self._planned[gpu].append(queue.planned())
        self._free.set(gpu, start + queue.planned())
        changed = self._changed_by(index)
        yield contract.Dispatch(gpu, tuple([request.id for request in queue.pop_batch()]), start)
        for other in changed:
            yield from self._update(now, other)

    def _changed_by(self, index: int) -> list[int]:
        """Return the queues that the batch of a queue takes requests from."""
        return [index]

    def _settle(self, now: Time, index: int, gpu: int) -> Iterator[Action]:
        """Gather a batch again for the GPU that it was given: one that starts later may be smaller."""
        if self._free[gpu] > now:
            yield from self._update(now, index, self._free[gpu])

    def _set_timer(self, now: Time) -> Iterator[Action]:
        at = self._wake.least
        if self._latest.least < FOREVER and self._delays.least < 0:
            at = min(at, max(now + 1, self._free.least + self._delays.least))
        if at != self._timer:
            self._timer = at
            yield SetTimer(at, "wake")


@serving_policies.register("deferred")
class Deferred(WindowScheduler[ModelQueue]):
    """Symphony: hold a batch back until no later request could join it."""

    native = "deferred"

    class Parameters(LengthsAside, frozen=True):
        gather: Gather = "window"

    def opens(self, queue: ModelQueue) -> Time:
        return queue.frontrun()


@serving_policies.register("eager")
class Eager(WindowScheduler[ModelQueue]):
    """Send whatever waits as soon as a GPU is idle."""

    native = "eager"
    Parameters = Deferred.Parameters

    def opens(self, queue: ModelQueue) -> Time:
        return -FOREVER


_FORM = f"{DURATION_FORM}, or a share of each model's SLO such as 10%"


@serving_policies.register("timeout")
class Timeout(WindowScheduler[ModelQueue]):
    """Send a batch once its oldest request has waited for a fixed time."""

    native = "timeout"

    class Parameters(LengthsAside, frozen=True):
        timeout: Annotated[str, msgspec.Meta(description=f"how long the oldest request waits: {_FORM}")] = (
            "12.5%"
        )
        gather: Gather = "window"

    def __init__(self, setup: Setup, parameters: Parameters) -> None:
        super().__init__(setup, parameters)
        self.timeouts = [timeout_for(parameters.timeout, model.slo) for model in setup.models]

    def native_parameters(self) -> NativeParameters:
        return super().native_parameters()._replace(lists={"timeouts": self.timeouts})

    def opens(self, queue: ModelQueue) -> Time:
        waited = queue.requests[0].arrival + self.timeouts[queue.model.index]
        return min(waited + self._network.delay(queue.size), queue.latest())


def timeout_for(text: str, slo: Time) -> Time:
    try:
        number, unit = split_quantity(text)
        return round(slo * number / 100) if unit == "%" and number >= 0 else read_duration(text)
    except ValueError:
        raise InputError("timeout", text, _FORM) from None
