"""What all policies that lease do with leases: they end together, and what is of no use is given back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from astrarium.cluster import contract
from astrarium.cluster.demand import spare
from astrarium.cluster.state import ClusterState
from astrarium.core.quantities import Time

SPARE = "it has no use for them any more"


def lease_end(now: Time, lease: Time, grid: int) -> Time:
    """Return the instant of the grid that is nearest to a whole lease from now."""
    if not grid:
        return now + lease
    step = max(1, lease // grid)
    return -(-(now + lease - step // 2) // step) * step


def spared(apps: Iterable[int], state: ClusterState) -> Iterator[contract.Revoke]:
    """Take back what apps have a lease for and no use any more."""
    for app in apps:
        gpus = spare(state.apps[app]) if app in state.apps else ()
        if gpus:
            yield contract.Revoke(app, gpus, SPARE)


def stood_on(event: contract.LeaseExpired, state: ClusterState) -> bool:
    """Return whether jobs of the app still stand on all GPUs of a lease that has just ended."""
    row = state.apps.get(event.app)
    if row is None or not state.free.issuperset(event.gpus):
        return False
    return {gpu for job in row.jobs.values() for gpu in job.gpus}.issuperset(event.gpus)
