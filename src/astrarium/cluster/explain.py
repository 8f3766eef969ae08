"""A view of the books at an instant, simulated or live, says who has what, who waits, and what to expect.

It holds what is known at that instant. What comes after it is taken from a run that has gone on
(`report.history`): whoever tells it says so.

A policy may have a method `standing(now, state)` that names those who want GPUs in the order in which it
would serve them, each with a few words (`policies.RankingAllocator`). Of others, the order is the one in
which they were served later. It may also say itself when apps can expect GPUs, with a method
`expects(now, state)` (`policies.ForecastingAllocator`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from heapq import heapify, heappush
from typing import Any, NamedTuple

from astrarium.cluster.demand import most_usable, soonest, wanted
from astrarium.cluster.policies import ForecastingAllocator, RankingAllocator
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.cluster.work_left import time_left, work_left
from astrarium.core.quantities import Time


def expected(now: Time, state: ClusterState, allocator: Any, queue: Sequence[int]) -> dict[int, Time]:
    """Return when each app in *queue* can expect GPUs; an app that cannot expect any has no entry. It goes by
    what is known now: who holds what until when, how long owners say that jobs take, and who comes before it.
    It knows no app that comes later, and no job that ends sooner than its owner says."""
    if isinstance(allocator, ForecastingAllocator):
        return dict(allocator.expects(now, state))
    frees = [(float(now), len(state.free))]
    for row in state.apps.values():
        frees += _given_back(now, row, state)
    heapify(frees)
    expectations: dict[int, Time] = {}
    for app in queue:
        row = state.apps[app]
        at = soonest(frees, _gang(row))
        if at is not None:
            expectations[app] = round(at)
            takes = work_left(now, row, state) / max(1, most_usable(row))
            heappush(frees, (at + takes, _gang(row)))
    return expectations


def _given_back(now: Time, row: AppRow, state: ClusterState) -> list[tuple[float, int]]:
    """Return when an app gives its GPUs back, lease by lease."""
    if not row.leases:
        return []
    ends = now + time_left(now, row, tuple(row.leases), state)
    return [(min(ends, float(until)), 1) for until in row.leases.values()]


def _gang(row: AppRow) -> int:
    """Return the fewest GPUs with which more of an app would run."""
    return min((job.job.least for job in row.unfinished() if not job.gpus), default=1)


class AppView(NamedTuple):
    """What an app holds and wants at an instant. *needs*: the fewest GPUs with which more of it would run; 0:
    it could use none. *service*: GPU time."""

    app: int
    name: str
    holds: tuple[int, ...]
    until: Time  # when the first of its leases ends
    wants: int
    needs: int
    service: Time
    phase: int
    running: int
    jobs: int


class ClusterView(NamedTuple):
    """The cluster at an instant, with each app that is there. *standing*: those who want GPUs, as the policy
    has them; none where it does not say. *expected*: when they can expect some, from what is known at that
    instant."""

    at: Time
    gpus: int
    free: int
    apps: dict[int, AppView]
    standing: tuple[tuple[int, str], ...] | None
    expected: Mapping[int, Time]


def view(now: Time, state: ClusterState, allocator: Any) -> ClusterView:
    """Return the cluster as it is now; a copy of the policy is asked, so that nothing changes."""
    apps = {app: _app_view(now, row, state) for app, row in state.apps.items()}
    asked = deepcopy(allocator)
    standing = tuple(asked.standing(now, state)) if isinstance(asked, RankingAllocator) else None
    queue = [app for app, _ in standing or ()]
    return ClusterView(
        now, state.floor.size, len(state.free), apps, standing, expected(now, state, asked, queue)
    )


def _app_view(now: Time, row: AppRow, state: ClusterState) -> AppView:
    jobs = row.unfinished()
    idle = [job.job.least for job in jobs if not job.gpus]
    wants = wanted(row)
    return AppView(
        app=row.app.id,
        name=row.app.name,
        holds=tuple(sorted(row.leases)),
        until=min(row.leases.values(), default=-1),
        wants=wants,
        needs=min(idle, default=1) if wants else 0,
        service=state.service(now, row),
        phase=row.phase,
        running=len(jobs) - len(idle),
        jobs=len(jobs),
    )
