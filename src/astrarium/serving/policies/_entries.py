"""Queues of (deadline, id) pairs, sorted: the policies that Symphony is compared with keep requests so.

The deadline is the one for the end of execution, that is, the client's less the response delay.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence

from astrarium.core.policy import SetTimer
from astrarium.core.quantities import Time
from astrarium.serving.contract import EXPIRED, SACRIFICED, Action, Drop, ModelSpec, Network

Entry = tuple[Time, int]
Queue = list[Entry]


def insert(queue: Queue, entry: Entry) -> None:
    if not queue or entry > queue[-1]:  # nearly always: deadlines come in the order of arrivals
        queue.append(entry)
    else:
        insort(queue, entry)


def due_before(queue: Queue, moment: Time, first: int = 0) -> int:
    """Return how many heads have a deadline before *moment*, known to be at least *first*."""
    return bisect_left(queue, (moment, -1), first)


def cut(queue: Queue, size: int) -> list[Entry]:
    """Take the first *size* entries off the queue."""
    heads = queue[:size]
    del queue[:size]
    return heads


def ids(entries: Sequence[Entry]) -> tuple[int, ...]:
    return tuple([id_ for _, id_ in entries])


def drops(entries: Sequence[Entry], saveable_from: Time) -> Iterator[Action]:
    """Give requests up; those due at *saveable_from* or later could still have run alone."""
    for deadline, id_ in entries:
        yield Drop(id_, SACRIFICED if deadline >= saveable_from else EXPIRED)


def batch_costs(model: ModelSpec, network: Network, stall: Time = 0) -> list[Time]:
    """Return the times from a decision to the end of execution, for batches of 0, 1, ... requests.

    The GPU is free, or will be once it has recovered from a preemption for *stall*.
    """
    return [max(network.delay(size), stall) + latency for size, latency in enumerate(model.latency)]


def largest_within(costs: Sequence[Time], budget: Time) -> int:
    """Return the largest batch whose cost fits in the budget; 0 if not even one request does."""
    return max(0, bisect_right(costs, budget) - 1)


def hold_without_gpu(now: Time, queues: Sequence[Queue], alone: Sequence[Time]) -> Iterator[Action]:
    """Let requests wait, while there is no GPU, for as long as an idle one could still serve them in time."""
    moments = []
    for queue, cost in zip(queues, alone, strict=True):
        yield from drops(cut(queue, due_before(queue, now + cost)), now + cost)
        if queue:
            moments.append(queue[0][0] - cost + 1)
    if moments:
        yield SetTimer(min(moments), "hopeless")
