"""Requests of unequal length stand in queues of alike times, and who leaves together is chosen by length.

A run takes as long as if all its members were as long as the longest. Where it is short, that costs nothing:
a launch takes its time whatever it launches. Where it is long, every member pays for the longest. So requests
of other lengths join a batch if it then grows by no more than they would cost in batches of their own queue:
with those who wait there, and who will have come by their deadline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from astrarium.core.quantities import FOREVER, Time
from astrarium.serving.contract import Lengths, ModelSpec, Network, Request
from astrarium.serving.policies.astrarium import pressure
from astrarium.serving.policies.astrarium.groups import SAFE, Group, Groups
from astrarium.serving.policies.astrarium.queues import RequestQueue

HARDLY_MORE = 1.01  # times the least that a request takes of the GPU


class Buckets(Groups):
    """Buckets of lengths are grouped by what batches take whose members come at their rates.

    Where only equal requests share a run, every bucket stands apart.
    """

    def __init__(self, lengths: Lengths, slo: Time, grouping: str) -> None:
        grouping = grouping if lengths.together == "padded" else "application"
        super().__init__(len(lengths.longest), slo, grouping, apart=True)
        self.lengths = lengths
        self.most = tuple(map(well_used, lengths.latency))  # by bucket: larger batches are no gain
        self._rates = [0.0] * (len(lengths.longest) + 1)  # of all shorter buckets, by bucket

    def arrived(self, now: Time, bucket: int) -> None:
        self.meters[bucket].roll(now)
        self.meters[bucket].count()

    def regroup(self, now: Time) -> bool:
        for meter in self.meters:
            meter.roll(now)
        self._rates = list(accumulate((meter.rate() for meter in self.meters), initial=0.0))
        return super().regroup(now)

    def ranked(self) -> Sequence[int]:
        return range(len(self.meters))

    def time(self, group: Group, size: int) -> Time:
        return self.lengths.latency[self._longest(group, size)][size]

    def largest(self, group: Group) -> int:
        return self.most[group[-1]]

    def table(self, group: Group) -> Sequence[Time]:
        times: list[Time] = [0]
        while len(times) <= self.most[self._longest(group, len(times))]:
            times.append(max(times[-1], self.time(group, len(times))))
        return [*times, FOREVER]

    def _longest(self, group: Group, size: int) -> int:
        """Return the bucket that no member of a batch exceeds, with a chance."""
        before = self._rates[group[0]]
        share = (self._rates[group[-1] + 1] - before) * SAFE ** (1 / size)
        if share <= 0.0:
            return group[-1]
        return next((bucket for bucket in group if self._rates[bucket + 1] - before >= share), group[-1])


def well_used(latency: Sequence[Time]) -> int:
    """Return the largest batch in which a request takes hardly more of the GPU than in any.

    Where a GPU is full before the batch is, two smaller batches take less time than a large one.
    """
    sizes = range(1, len(latency) - 1)
    least = min(latency[size] / size for size in sizes)
    return max(size for size in sizes if latency[size] / size <= HARDLY_MORE * least)


class Crew:
    """A crew is the members of a batch that is being put together: requests join one by one.

    It leaves at *now*, for a GPU that is *free*.
    """

    def __init__(self, queue: LengthQueue) -> None:
        self._first = queue.requests[0]
        self._most = queue.most
        self._lengths = queue.lengths
        self._network = queue.network
        self._due = queue.deadlines[0]  # the earliest deadline
        self._bucket = self._first.bucket
        self.size = 1
        self.takes = self._lengths.latency[self._bucket][1]

    def admits(self, queue: LengthQueue, place: int, now: Time, free: Time) -> bool:
        """Let a request join if all are still in time, and if that costs no more than its share elsewhere."""
        request = queue.requests[place]
        due = queue.deadlines[place]
        bucket = max(self._bucket, request.bucket)
        if not self._can_share(request) or self.size >= self._most[bucket]:
            return False
        takes = self._lengths.latency[bucket][self.size + 1]
        start = max(now + self._network.delay(self.size + 1), free)
        if start + takes > min(due, self._due):
            return False
        if request.bucket != self._bucket and takes - self.takes > queue.share(request, now, due):
            return False
        self._due = min(due, self._due)
        self._bucket = bucket
        self.takes = takes
        self.size += 1
        return True

    def _can_share(self, request: Request) -> bool:
        if self._lengths.together == "padded":
            return True
        if self._lengths.together == "bucket":
            return request.bucket == self._first.bucket
        return request.length == self._first.length


class Guests(NamedTuple):
    """Guests of a batch come from another queue."""

    queue: LengthQueue
    places: list[int]


class LengthQueue(RequestQueue):
    """A queue holds the requests of some buckets; its batches may have guests from other queues."""

    def __init__(self, model: ModelSpec, buckets: Buckets, network: Network, parameters: Any) -> None:
        super().__init__(model, network, parameters)
        self.lengths = buckets.lengths
        self.most = buckets.most
        self.network = network
        self._exact = self.lengths.together == "length"
        self._counts: Counter[int] = Counter()  # of each length, where only equal ones share a run
        self._rate = 0.0  # at which requests come, by nanosecond
        self._members: list[int] = []  # places of those who leave; none: the first ones
        self._guests: list[Guests] = []
        self._takes: Time = 0  # what those are planned with

    def demand(self, now: Time) -> pressure.Demand:
        demand = super().demand(now)
        self._rate = demand.rate
        return demand

    def insert(self, request: Request) -> None:
        super().insert(request)
        if self._exact:
            self._counts[request.length] += 1

    def share(self, request: Request, now: Time, due: Time) -> float:
        """Return what a request would cost in a batch of its queue, in the end.

        Those who have yet to come count as well: who joins longer ones because few of its like wait now pays
        for their length, and leaves its like with a smaller batch.
        """
        waiting = self._counts[request.length] if self._exact else len(self.requests)
        alike = min(waiting + int(self._rate * (due - now)), self.backlog.largest)
        return self.latency[alike] / alike

    def choose(self, now: Time, free: Time, others: Sequence[LengthQueue]) -> list[Request]:
        """Choose the members of the batch: the first request, and all that may join, here and in *others*.

        Return those that are lost, since they are longer than the batch was planned for.
        """
        lost = self._cut(self._late(now, free))
        self.size = 0
        if not self.requests:
            return lost
        crew = Crew(self)
        self._members = [0, *self._joining(crew, now, free, 1)]
        guests = [Guests(other, list(other._joining(crew, now, free))) for other in others]
        self._guests = [some for some in guests if some.places]
        self.size = crew.size
        self._takes = crew.takes
        return lost

    def _late(self, now: Time, free: Time) -> int:
        """Return how many of the first requests would be late even alone."""
        start = max(now + self.network.delay(1), free)
        for place, request in enumerate(self.requests):
            if start + self.lengths.latency[request.bucket][1] <= self.deadlines[place]:
                return place
        return len(self.requests)

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
            kind = request.length if self._exact else request.bucket
            if kind in refused:
                continue
            if crew.admits(self, place, now, free):
                yield place
            else:
                refused.add(kind)

    def _take(self, places: Sequence[int]) -> list[Request]:
        taken = [self.requests[place] for place in places]
        for place in reversed(places):
            del self.requests[place], self.deadlines[place]
        self._forget(taken)
        return taken

    def _cut(self, size: int) -> list[Request]:
        heads = super()._cut(size)
        self._forget(heads)
        return heads

    def _forget(self, gone: Sequence[Request]) -> None:
        if self._exact:
            self._counts.subtract(request.length for request in gone)
