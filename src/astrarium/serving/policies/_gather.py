"""Two ways of gathering a batch from a queue that is sorted by deadline.

`fcfs` starts at the head and takes requests while the batch still meets the head's deadline.
`window` would rather give up heads than let the batch shrink under a target: it finds the largest
suffix of the queue that can run together, and drops every head that stands in the way of
min(target, suffix) requests; then it takes more for as long as that costs nothing.
What the authors of Symphony run is `window`; the names of the steps are theirs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from astrarium.core.units import Time


def finish(size: int, ready: Sequence[Time], latency: Sequence[Time], now: Time, gpu_free: Time) -> Time:
    """When a batch of *size* ends if it leaves now: its inputs must arrive and the GPU be free."""
    return max(now + ready[size], gpu_free + latency[size])


def gather_fcfs(
    deadlines: list[Time], target: int, ready: Sequence[Time], latency: Sequence[Time], now: Time, free: Time
) -> tuple[int, int]:
    """(heads to drop, batch size); *ready[b]* is network delay plus execution of a batch of b."""
    dropped = bisect_left(deadlines, finish(1, ready, latency, now, free))
    if dropped == len(deadlines):
        return dropped, 0
    return dropped, _grow(1, dropped, deadlines, ready, latency, now, free)


def gather_window(
    deadlines: list[Time], target: int, ready: Sequence[Time], latency: Sequence[Time], now: Time, free: Time
) -> tuple[int, int]:
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
