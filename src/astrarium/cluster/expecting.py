"""When somebody who waits can expect GPUs, from what is known now: who holds what until when, how long owners
say that jobs take, and who is before it in line. It knows nobody who comes later, and no job that ends sooner
than its owner says.

A policy may answer itself, with a method `expects(now, state)`. For others, GPUs are taken to change hands
when their leases end, or their holders do, or after `turns`, if the policy has such a time; and those in line
to take them in order, each its smallest gang, for as long as a lease was now.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Protocol, runtime_checkable

from astrarium.cluster.ledger import AppRow
from astrarium.cluster.remaining import time_left, work_left
from astrarium.cluster.state import ClusterState
from astrarium.core.units import FOREVER, Time


@runtime_checkable
class Expects(Protocol):
    def expects(self, now: Time, state: ClusterState) -> dict[int, Time]: ...


@runtime_checkable
class TakesTurns(Protocol):
    @property
    def turns(self) -> Time: ...


def expected(now: Time, state: ClusterState, allocator: object, line: Sequence[int]) -> dict[int, Time]:
    """Of those in *line*; who cannot expect any has no entry."""
    if isinstance(allocator, Expects):
        return allocator.expects(now, state)
    turn = allocator.turns if isinstance(allocator, TakesTurns) else FOREVER
    frees = [(float(now), len(state.free))]
    for row in state.apps.values():
        frees += _given_back(now, row, turn, state)
    heapify(frees)
    found: dict[int, Time] = {}
    for app in line:
        row = state.apps[app]
        at = _served(frees, _gang(row))
        if at is not None:
            found[app] = round(at)
            heappush(frees, (at + min(turn, _span(now, row, state)), _gang(row)))
    return found


def _given_back(now: Time, row: AppRow, turn: Time, state: ClusterState) -> list[tuple[float, int]]:
    """Its GPUs, lease by lease."""
    if not row.leases:
        return []
    ends = now + min(time_left(now, row, tuple(row.leases), state), float(turn))
    return [(min(ends, float(until)), 1) for until in row.leases.values()]


def _gang(row: AppRow) -> int:
    """The fewest GPUs with which more of it would run."""
    return min((job.job.least for job in row.unfinished() if not job.gpus), default=1)


def _span(now: Time, row: AppRow, state: ClusterState) -> float:
    return work_left(now, row, state) / max(1, sum(job.job.most for job in row.unfinished()))


def _served(frees: list[tuple[float, int]], count: int) -> float | None:
    """When so many are free; they are taken. None: there are never so many."""
    taken, at = list[tuple[float, int]](), 0.0
    while count > 0 and frees:
        at, there = heappop(frees)
        taken.append((at, there))
        count -= there
    if count > 0 or at == inf:
        for each in taken:
            heappush(frees, each)
        return None
    if count < 0:
        heappush(frees, (at, -count))
    return at
