"""Requests of unequal length stand in a queue for each bucket, and who leaves together is chosen by length.

A run takes as long as if all its members were as long as the longest. Where it is short, that costs nothing:
a launch takes its time whatever it launches. Where it is long, every member pays for the longest. So requests
of other buckets are guests of a batch if it then grows by no more than they would cost among their like:
those of their length who wait, and who will have come by their deadline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from astrarium.core.quantities import Time
from astrarium.serving.contract import Lengths, ModelSpec, Network, Request
from astrarium.serving.policies.astrarium import pressure
from astrarium.serving.policies.astrarium.queues import RequestQueue


class WaitingLengths:
    """The requests of a model that wait, in all its queues, are counted by those who can share a run."""

    def __init__(self, lengths: Lengths) -> None:
        self.lengths = lengths
        self._exact = lengths.together == "length"
        self._counts: Counter[int] = Counter()
        self.rates = [0.0] * len(lengths.longest)  # at which the requests of each bucket come, by nanosecond

    def kind(self, request: Request) -> int:
        """Return what requests have in common that are alike."""
        return request.length if self._exact else request.bucket

    def count(self, requests: Sequence[Request], change: int) -> None:
        for request in requests:
            self._counts[self.kind(request)] += change

    def alike(self, request: Request, now: Time, due: Time) -> int:
        """Return how many alike requests could run together in the end, this one among them.

        Those who have yet to come count as well: who joins longer ones because few of its like wait now pays
        for their length, and leaves its like with a smaller batch.
        """
        coming = int(self.rates[request.bucket] * (due - now))
        return min(self._counts[self.kind(request)] + coming, self.lengths.max_batch(request.bucket))


class Crew:
    """A crew is the members of a batch that is being put together: requests join one by one.

    It leaves at *now*, for a GPU that is *free*.
    """

    def __init__(self, first: Request, due: Time, waiting: WaitingLengths, network: Network) -> None:
        self._first = first
        self._waiting = waiting
        self._lengths = waiting.lengths
        self._network = network
        self._due = due  # the earliest deadline
        self._bucket = first.bucket
        self.size = 1
        self.takes = self._lengths.latency[first.bucket][1]

    def admits(self, request: Request, due: Time, now: Time, free: Time) -> bool:
        """Let a request join if all are still in time, and if that costs no more than its share elsewhere."""
        bucket = max(self._bucket, request.bucket)
        if not self._can_share(request) or self.size >= self._lengths.max_batch(bucket):
            return False
        takes = self._lengths.latency[bucket][self.size + 1]
        start = max(now + self._network.delay(self.size + 1), free)
        if start + takes > min(due, self._due):
            return False
        if request.bucket != self._bucket and not self._pays(request, takes, now, due):
            return False
        self._due, self._bucket, self.takes = min(due, self._due), bucket, takes
        self.size += 1
        return True

    def _pays(self, request: Request, takes: Time, now: Time, due: Time) -> bool:
        """Whether the batch grows by no more than the request would cost among its like."""
        alike = self._waiting.alike(request, now, due)
        return (takes - self.takes) * alike <= self._lengths.latency[request.bucket][alike]

    def _can_share(self, request: Request) -> bool:
        if self._lengths.together == "padded":
            return True
        return self._waiting.kind(request) == self._waiting.kind(self._first)


class Guests(NamedTuple):
    """Guests of a batch come from another queue."""

    queue: LengthQueue
    places: list[int]


class LengthQueue(RequestQueue):
    """A queue holds the requests of one bucket; its batches may have guests from the model's other queues."""

    def __init__(
        self, model: ModelSpec, network: Network, parameters: Any, waiting: WaitingLengths, bucket: int
    ) -> None:
        super().__init__(model, network, parameters)
        self._waiting = waiting
        self._bucket = bucket
        self._members: list[int] = []  # places of those who leave; none: the first ones
        self._guests: list[Guests] = []
        self._takes: Time = 0  # what those are planned with

    def demand(self, now: Time) -> pressure.Demand:
        demand = super().demand(now)
        self._waiting.rates[self._bucket] = demand.rate
        return demand

    def insert(self, request: Request) -> None:
        super().insert(request)
        self._waiting.count([request], 1)

    def choose(self, now: Time, free: Time, others: Sequence[LengthQueue]) -> None:
        """Choose the members of the batch: the first request, and all that may join, here and in *others*."""
        crew = Crew(self.requests[0], self.deadlines[0], self._waiting, self._network)
        self._members = [0, *self._joining(crew, now, free, 1)]
        guests = [Guests(other, list(other._joining(crew, now, free))) for other in others]
        self._guests = [some for some in guests if some.places]
        self.size = crew.size
        self._takes = crew.takes

    def hosts(self) -> list[LengthQueue]:
        """Return the other queues that the batch takes requests from."""
        return [guests.queue for guests in self._guests]

    def planned(self) -> Time:
        return self._takes if self._members else super().planned()

    def pop_batch(self) -> list[Request]:
        if not self._members:
            return super().pop_batch()
        batch = self._take(self._members)
        for guests in self._guests:
            batch += guests.queue._take(guests.places)
        self._members = []
        self._guests = []
        return batch

    def _joining(self, crew: Crew, now: Time, free: Time, first: int = 0) -> Iterator[int]:
        """Yield the places of the requests that join; one who may not speaks for its like."""
        refused: set[int] = set()
        for place in range(first, len(self.requests)):
            request = self.requests[place]
            kind = self._waiting.kind(request)
            if kind in refused:
                continue
            if crew.admits(request, self.deadlines[place], now, free):
                yield place
            else:
                refused.add(kind)

    def _take(self, places: Sequence[int]) -> list[Request]:
        taken = [self.requests[place] for place in places]
        for place in reversed(places):
            del self.requests[place], self.deadlines[place]
        self._waiting.count(taken, -1)
        return taken

    def _cut(self, size: int) -> list[Request]:
        heads = super()._cut(size)
        self._waiting.count(heads, -1)
        return heads
