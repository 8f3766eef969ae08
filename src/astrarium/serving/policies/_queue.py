"""A model's queue holds its requests, earliest deadline first, and the batch that it would send now."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from astrarium.core.quantities import MILLISECOND, Time
from astrarium.serving.contract import ModelSpec, Network, Request
from astrarium.serving.policies._rates import RateMeter


class Backlog(NamedTuple):
    """A backlog holds the deadlines of waiting requests, earliest first, and the time of each batch size.

    *ready[b]* is network delay plus execution of a batch of b, and *latency[b]* its execution.
    """

    deadlines: Sequence[Time]
    ready: Sequence[Time]
    latency: Sequence[Time]

    @property
    def largest(self) -> int:
        return len(self.latency) - 2

    def finish(self, size: int, now: Time, free: Time) -> Time:
        """Return when a batch of *size* ends if it leaves now: its inputs must arrive and the GPU be free."""
        _, ready, latency = self
        return max(now + ready[size], free + latency[size])

    def hopeless(self, now: Time, free: Time, size: int = 1) -> int:
        """Return how many heads a batch of *size* that leaves now could not serve in time."""
        return bisect_left(self.deadlines, self.finish(size, now, free))

    def grown(self, size: int, deadline: Time, present: int, now: Time, free: Time) -> int:
        """Take more of the requests that are *present* while the first still meets its deadline."""
        _, ready, latency = self
        limit = min(present, len(latency) - 2)
        while size < limit and max(now + ready[size + 1], free + latency[size + 1]) <= deadline:  # `finish`
            size += 1
        return size

    def fitting(self, head: int, now: Time, free: Time) -> int:
        """Return the largest batch that starts with *head* and keeps its deadline; at least one."""
        return self.grown(1, self.deadlines[head], len(self.deadlines) - head, now, free)

    def gather_fcfs(self, target: int, now: Time, free: Time) -> tuple[int, int]:
        """Return how many heads to drop, and the size of the batch taken from the head while it fits."""
        dropped = self.hopeless(now, free)
        return dropped, self.fitting(dropped, now, free) if dropped < len(self.deadlines) else 0

    def gather_window(self, target: int, now: Time, free: Time) -> tuple[int, int]:
        """Return how many heads to drop so that a batch of the *target* size fits, and the batch's size."""
        deadlines, _, latency = self
        waiting = len(deadlines)
        largest = len(latency) - 2
        first = 0
        suffix = min(waiting, largest)
        while first < waiting and deadlines[first] < self.finish(suffix, now, free):
            first += 1
            suffix = min(waiting - first, largest)
        size = max(1, min(target, suffix))
        dropped = self.hopeless(now, free, size)
        if dropped == waiting:
            return dropped, 0
        return dropped, self.grown(size, deadlines[dropped], waiting - dropped, now, free)


GATHER = {"fcfs": Backlog.gather_fcfs, "window": Backlog.gather_window}


class ModelQueue:
    """A model queue is sorted by the deadlines for the end of execution: the client's less the response."""

    def __init__(self, model: ModelSpec, network: Network, gather: str) -> None:
        self.model = model
        self.deadlines: list[Time] = []
        self.requests: list[Request] = []
        self.size = 0  # of the candidate batch; 0 when nothing waits
        self.meter = RateMeter()
        self._network = network
        self._gather = GATHER[gather]
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
        ready = [self._network.delay(size) + time for size, time in enumerate(latency)]
        self.backlog = Backlog(self.deadlines, ready, latency)

    def roll(self, now: Time) -> None:
        """Bring the measured rate, and the target that follows from it, up to *now*."""
        if self.meter.roll(now):
            self._target = self._staggered_target()

    def gather(self, now: Time, gpu_free: Time) -> list[Request]:
        """Choose the batch that would leave now; return the heads that had to be given up."""
        dropped, self.size = self._gather(self.backlog, self._target, now, gpu_free)
        return self._cut(dropped) if dropped else []

    def pop_batch(self) -> list[Request]:
        return self._cut(self.size)

    def planned(self) -> Time:
        """Return the time that the batch that leaves is expected to take."""
        return self.latency[self.size]

    def saveable(self, request: Request, now: Time) -> bool:
        """Whether a request could still be in time if it ran alone at once."""
        return now + self.backlog.ready[1] + self._network.response <= request.deadline

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
        low = 1
        high = self.backlog.largest
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
