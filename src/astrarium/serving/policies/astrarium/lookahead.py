"""Lookahead decides which heads to give up for a batch that has its GPU, by the losses at the next grants.

Serving every request that can still be saved may leave a small batch, and those behind it too late for the
next GPU. So every number of heads to give up is tried, the next grants are simulated with evenly spaced
arrivals, and the choice that loses the fewest requests is taken. A small batch also wastes GPU time that
other lines may need: that time has a price, in requests, while GPUs are scarce.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from astrarium.core.units import Time
from astrarium.serving.policies._queue import Backlog

MOST_GIVEN_UP = 24  # heads at once


class LineProspect(NamedTuple):
    """A line expects *rate* requests per nanosecond; a batch of *enough* needs nobody given up.

    *price* is that of wasted GPU time, in requests.
    """

    rate: float
    enough: int
    target: int  # the batch size at which GPU time is well used
    price: float
    slo: Time


def give_up(
    backlog: Backlog,
    prospect: LineProspect,
    now: Time,
    free: Time,
    hopeless: int,
    grants: Callable[[int], Sequence[Time]],
) -> tuple[int, int]:
    """Return (heads to drop, batch size) of a backlog: its first *hopeless* are lost, at least one is not.

    *grants(size)* tells when the line may expect a GPU again if a batch of that size leaves now.
    """
    waiting = len(backlog.deadlines)
    wanted = min(prospect.enough, waiting - hopeless)
    best, least = (hopeless, backlog.fitting(hopeless, now, free)), -1.0
    if best[1] >= wanted:
        return best
    for head in range(hopeless, min(hopeless + MOST_GIVEN_UP + 1, waiting)):
        size = backlog.fitting(head, now, free)
        lost = losses(backlog, prospect, now, head + size, grants(size))
        cost = head - hopeless + prospect.price * waste(backlog, prospect.target, size) + lost
        if least < 0 or cost < least - 1e-9:
            best, least = (head, size), cost
        if size >= wanted or head + size >= waiting:
            break
    return best


def waste(backlog: Backlog, target: int, size: int) -> float:
    """Return the GPU time that a batch takes beyond its requests' time at the target size, in requests."""
    return backlog.latency[size] * target / backlog.latency[target] - size


def losses(backlog: Backlog, prospect: LineProspect, now: Time, first: int, grants: Sequence[Time]) -> int:
    """Return the requests lost over the next grants if each drops those in the way of an ample batch."""
    left = len(backlog.deadlines) - first
    lost = taken = 0
    for then in grants:
        present = left + int(prospect.rate * (then - now))
        head = taken
        while head < present:
            size = min(prospect.enough, present - head, backlog.largest)
            if backlog.finish(size, now, then) <= due(backlog, prospect, now, first, left, head):
                break
            head += 1
        lost += max(0, head - taken)
        if head >= present:
            taken = max(taken, present)
            continue
        deadline = due(backlog, prospect, now, first, left, head)
        taken = head + backlog.grown(1, deadline, present - head, now, then)
    return lost


def due(backlog: Backlog, prospect: LineProspect, now: Time, first: int, left: int, place: int) -> Time:
    """Return the deadline of a request that waits, or of one that will have come by then."""
    if place < left:
        return backlog.deadlines[first + place]
    return now + int((place - left + 1) / prospect.rate) + prospect.slo
