"""A model's queue holds its requests, earliest deadline first, and the batch that it would send now."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from astrarium.core.units import MILLISECOND, Time
from astrarium.serving.contract import ModelSpec, Network, Request
from astrarium.serving.policies._rates import RateMeter

# Two ways of gathering a batch from a queue that is sorted by deadline.


def finish(size: int, ready: Sequence[Time], latency: Sequence[Time], now: Time, gpu_free: Time) -> Time:
    """Return when a batch of *size* ends if it leaves now: its inputs must arrive and the GPU be free."""
    return max(now + ready[size], gpu_free + latency[size])


def gather_fcfs(
    deadlines: list[Time], target: int, ready: Sequence[Time], latency: Sequence[Time], now: Time, free: Time
) -> tuple[int, int]:
    """Return how many heads to drop, and the size of the batch taken from the head while it fits.

    *ready[b]* is network delay plus execution of a batch of b.
    """
    dropped = bisect_left(deadlines, finish(1, ready, latency, now, free))
    if dropped == len(deadlines):
        return dropped, 0
    return dropped, _grow(1, dropped, deadlines, ready, latency, now, free)


def gather_window(
    deadlines: list[Time], target: int, ready: Sequence[Time], latency: Sequence[Time], now: Time, free: Time
) -> tuple[int, int]:
    """Return how many heads to drop so that a batch of the *target* size fits, and the batch's size."""
    waiting, largest = len(deadlines), len(latency) - 2
    suffix = min(waiting, largest)
    first = 0
    while first < waiting and deadlines[first] < finish(suffix, ready, latency, now, free):
        first += 1
        suffix = min(waiting - first, largest)
    size = max(1, min(target, suffix))
    dropped = bisect_left(deadlines, finish(size, ready, latency, now, free))
    if dropped == waiting:
        return dropped, 0
    return dropped, _grow(size, dropped, deadlines, ready, latency, now, free)


def _grow(
    size: int,
    head: int,
    deadlines: list[Time],
    ready: Sequence[Time],
    latency: Sequence[Time],
    now: Time,
    free: Time,
) -> int:
    """Take more requests while the head still meets its deadline."""
    limit = min(len(deadlines) - head, len(latency) - 2)
    deadline = deadlines[head]
    while size < limit and finish(size + 1, ready, latency, now, free) <= deadline:
        size += 1
    return size


GATHER = {"fcfs": gather_fcfs, "window": gather_window}


class ModelQueue:
    """A model queue is sorted by the deadlines for the end of execution: the client's less the response."""

    def __init__(self, model: ModelSpec, network: Network, gather: str) -> None:
        self.model = model
        self.deadlines: list[Time] = []
        self.requests: list[Request] = []
        self.size = 0  # of the candidate batch; 0 when nothing waits
        self.meter = RateMeter()
        self._network, self._gather = network, GATHER[gather]
        self.estimate(model.latency)
        self._target = max(1, model.largest_batch_within(model.slo // 2 - 2 * MILLISECOND))

    def push(self, now: Time, request: Request) -> None:
        self.roll(now)
        self.meter.count()
        self.insert(request)

    def insert(self, request: Request) -> None:
        deadline = request.deadline - self._network.response
        if not self.deadlines or deadline >= self.deadlines[-1]:
            self.deadlines.append(deadline)
            self.requests.append(request)
        else:
            place = bisect_right(self.deadlines, deadline)
            self.deadlines.insert(place, deadline)
            self.requests.insert(place, request)

    def estimate(self, latency: Sequence[Time]) -> None:
        """Plan with these times for batches of 0, 1, 2, ... requests."""
        self.latency = latency
        self._ready = [self._network.delay(size) + time for size, time in enumerate(latency)]

    def roll(self, now: Time) -> None:
        """Bring the measured rate, and the target that follows from it, up to *now*."""
        if self.meter.roll(now):
            self._target = self._staggered_target()

    def gather(self, now: Time, gpu_free: Time) -> list[Request]:
        """Choose the batch that would leave now; return the heads that had to be given up."""
        dropped, self.size = self._gather(
            self.deadlines, self._target, self._ready, self.latency, now, gpu_free
        )
        return self._cut(dropped) if dropped else []

    def pop_batch(self) -> list[Request]:
        return self._cut(self.size)

    def planned(self) -> Time:
        """Return the time that the batch that leaves is expected to take."""
        return self.latency[self.size]

    def saveable(self, request: Request, now: Time) -> bool:
        """Whether a request could still be in time if it ran alone at once."""
        return now + self._ready[1] + self._network.response <= request.deadline

    def latest(self) -> Time:
        """Return the last moment at which the candidate may start."""
        return self.deadlines[0] - self.latency[self.size]

    def frontrun(self) -> Time:
        """Return the start from which on no request that has yet to arrive could join the candidate.

        One more request also takes its input's time to fetch; Figure 18 leaves that term out.
        """
        return self.deadlines[0] - self.latency[self.size + 1] - self._network.data

    def _staggered_target(self) -> int:
        """Return the largest b with l(b) + b / rate <= SLO less delays.

        Symphony's (1 + 1/n) l(b) <= SLO with n = rate l(b) / b GPUs is the same condition, and so is its
        special case for n <= 1: gathering b requests and running them must fit in the objective.
        """
        count, window = self.meter.window()
        budget = (self.model.slo - self._network.control - self._network.response) * count
        low, high = 1, self.model.max_batch
        while low < high:
            middle = (low + high + 1) // 2
            cost = (self.latency[middle] + self._network.data * middle) * count + middle * window
            low, high = (middle, high) if cost <= budget else (low, middle - 1)
        return low

    def clear(self) -> list[Request]:
        """Remove all requests and return them in the order of their deadlines."""
        return self._cut(len(self.requests))

    def _cut(self, size: int) -> list[Request]:
        heads = self.requests[:size]
        del self.requests[:size], self.deadlines[:size]
        return heads
