"""The window scheduler is Symphony's Algorithm 1, with the delays of Figure 18, for any schedulable window.

Requests stand in lines, one for each model unless a subclass divides them otherwise. Each line keeps one
candidate batch. It may leave from the moment its window opens until `latest`, the last start that keeps its
first deadline. While it may, it waits for a GPU; when `latest` passes, the candidate is gathered anew and
heads that cannot be saved are dropped. GPUs are taken smallest id first, which keeps the large ids idle at
low load. Subclasses say when the window opens.

Everything here is a moment at which to decide, that is, a start less the delay of the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar, cast

import msgspec

from astrarium.core.policy import SetTimer
from astrarium.core.units import FOREVER, Time
from astrarium.serving.contract import (
    EXPIRED,
    SACRIFICED,
    Action,
    BatchFailed,
    BatchFinished,
    BatchPreempted,
    Dispatch,
    Drop,
    Event,
    GpuJoined,
    GpuLeft,
    Request,
    RequestArrived,
    Setup,
)
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


# What the native twin is told: whole numbers, real numbers, and lists of whole numbers, by name.
NativeParameters = tuple[dict[str, int], dict[str, float], dict[str, list[int]]]


Queue = TypeVar("Queue", bound=ModelQueue)  # or one that gathers in its own way


class WindowScheduler(Generic[Queue]):
    native = ""  # the name of the window in the native twin, where there is one
    preempts = False
    live_twin = True  # where there is a twin, it can decide live too

    def __init__(self, setup: Setup, parameters: Any) -> None:
        self.setup, self.parameters = setup, parameters
        self._network = setup.network
        self._queues = self.lines()
        self._wake = MinTree(len(self._queues))  # when each line must be looked at again
        self._latest = MinTree(len(self._queues))  # for the lines whose candidate may leave now
        self._delays = MinTree(len(self._queues))  # minus the delay of those, to find the longest
        self._free = MinTree(len(setup.gpus), 0)  # when each GPU is expected to be free
        self._last = [0] * len(setup.gpus)  # what the batch sent to each GPU last is planned with
        self._open = 0  # how many lines have a candidate that may leave
        self._timer: Time = FOREVER

    def native_parameters(self) -> NativeParameters:
        return {"fcfs": int(self.parameters.gather == "fcfs")}, {}, {}

    def lines(self) -> list[Queue]:
        models, network = self.setup.models, self.setup.network
        made = [ModelQueue(model, network, self.parameters.gather) for model in models]
        return cast(list[Queue], made)

    def line_of(self, request: Request) -> int:
        return request.model

    def opens(self, queue: Queue) -> Time:
        """Return the earliest start that the window allows for the queue's candidate."""
        raise NotImplementedError

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        changed = self._hear(now, events, state)
        while (line := self._wake.first_at_most(now)) >= 0:
            self._wake.set(line, FOREVER)
            changed.add(line)
        for line in sorted(changed):
            yield from self._update(now, line)
        # without a GPU for the one with the longest delay there is none for anybody
        if self._latest.least < FOREVER and self._free.least <= now - self._delays.least:
            yield from self._match(now, state)
        yield from self._set_timer(now)

    def _hear(self, now: Time, events: Sequence[Event], state: ServingState) -> set[int]:
        changed = set()
        for event in events:
            if type(event) is RequestArrived:
                line = self.line_of(event.request)
                self._queues[line].push(now, event.request)
                changed.add(line)
            elif isinstance(event, BatchFinished | BatchFailed | BatchPreempted | GpuJoined | GpuLeft):
                self._see_gpu(now, event.gpu, state)
        return changed

    def _see_gpu(self, now: Time, gpu: int, state: ServingState) -> None:
        if state.gpus[gpu].idle:
            self._free.set(gpu, now)
        elif not state.gpus[gpu].present:
            self._free.set(gpu, FOREVER)
        elif len(state.gpus[gpu].batches) == 1:
            self._start_late(now, gpu)

    def _start_late(self, now: Time, gpu: int) -> None:
        """Move the GPU's expected end when a batch that was sent ahead starts only now.

        The time by which the batch before it overran must not add up from batch to batch.
        """
        end, free = now + self._last[gpu], self._free[gpu]
        if free < end or free >= FOREVER:
            self._free.set(gpu, end)

    def _update(self, now: Time, line: int, gpu_free: Time = 0) -> Iterator[Action]:
        """Gather the candidate anew; drop what it gives up; set when to look again."""
        queue = self._queues[line]
        if given_up := queue.gather(now, gpu_free):
            yield from self._give_up(now, queue, given_up)
        if not queue.size:
            self._forget(line)
            return
        delay = self._network.delay(queue.size)
        opens = self.opens(queue) - delay
        if opens > now:
            self._hide(line)
            self._wake.set(line, opens)
        else:
            latest = queue.latest()
            self._open += self._latest[line] >= FOREVER
            self._latest.set(line, latest)
            self._delays.set(line, -delay)
            self._wake.set(line, latest - delay + 1)

    def _give_up(self, now: Time, queue: Queue, requests: Sequence[Request]) -> Iterator[Action]:
        for request in requests:
            yield Drop(request.id, SACRIFICED if queue.saveable(request, now) else EXPIRED)

    def _forget(self, line: int) -> None:
        self._hide(line)
        self._wake.set(line, FOREVER)

    def _hide(self, line: int) -> None:
        """Keep the line's candidate from leaving."""
        if self._latest[line] < FOREVER:
            self._open -= 1
            self._latest.set(line, FOREVER)
            self._delays.set(line, FOREVER)

    def _match(self, now: Time, state: ServingState) -> Iterator[Action]:
        """Give GPUs to the candidates that may leave, the most urgent first."""
        too_late: dict[int, Time] = {}
        while (line := self._latest.argmin()) >= 0:
            gpu = self._claim(now, line, state)
            if gpu < 0:
                break
            if self._free[gpu] > self._latest[line]:
                too_late[line] = self._latest[line]
                self._latest.set(line, FOREVER)
            else:
                yield from self._grant(now, line, gpu)
        for line, latest in too_late.items():
            self._latest.set(line, latest)

    def _claim(self, now: Time, line: int, state: ServingState) -> int:
        """Return the smallest GPU that is free when the line's batch could start; -1 if there is none.

        Else it is the GPU that is free next, if the longest delay of a waiting candidate says that it must be
        claimed now.
        """
        while True:
            gpu = self._free.first_at_most(now - self._delays[line])
            if gpu < 0 and self._free.least <= now - self._delays.least:
                gpu = self._free.argmin()
            if gpu < 0 or self._free[gpu] > now or state.gpus[gpu].idle:
                return gpu
            self._free.set(gpu, FOREVER)  # it overruns its estimate: wait for the news that it is free

    def _grant(self, now: Time, line: int, gpu: int) -> Iterator[Action]:
        queue, free = self._queues[line], self._free[gpu]
        yield from self._settle(now, line, gpu)
        if not queue.size:
            return
        start = max(now + self._network.delay(queue.size), free)
        planned = self._last[gpu] = queue.planned()
        self._free.set(gpu, start + planned)
        yield Dispatch(gpu, tuple([request.id for request in queue.pop_batch()]), start)
        yield from self._update(now, line)

    def _settle(self, now: Time, line: int, gpu: int) -> Iterator[Action]:
        """Gather a batch again for the GPU that it was given: one that starts later may be smaller."""
        if self._free[gpu] > now:
            yield from self._update(now, line, self._free[gpu])

    def _set_timer(self, now: Time) -> Iterator[Action]:
        at = self._wake.least
        if self._latest.least < FOREVER and self._delays.least < 0:
            at = min(at, max(now + 1, self._free.least + self._delays.least))
        if at != self._timer:
            self._timer = at
            yield SetTimer(at, "wake")
