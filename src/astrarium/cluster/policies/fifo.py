"""First come, first served, until the end: no app is stopped, and none overtakes another."""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.cluster.arrange import closest
from astrarium.cluster.contract import Allocations, Event, Grant, Revoke
from astrarium.cluster.demand import idle_first, needed, usable, wanted
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.policies._lease_ends import SPARE
from astrarium.cluster.state import ClusterState
from astrarium.core.choice import NoParameters
from astrarium.core.quantities import FOREVER, Time


@cluster_policies.register("fifo")
class Fifo:
    Parameters = NoParameters

    def __init__(self, parameters: NoParameters) -> None:
        """There is nothing to set."""

    def decide(self, now: Time, events: Sequence[Event], state: ClusterState) -> Allocations:
        for row in state.apps.values():
            spare = len(row.leases) - needed(row, len(row.leases))
            if spare:
                yield Revoke(row.app.id, idle_first(row)[:spare], SPARE)
        for row in state.apps.values():
            more = usable(row, len(row.leases) + len(state.free)) - len(row.leases)
            if more > 0:
                gpus = closest(sorted(state.free), more, state.floor, tuple(row.leases))
                yield Grant(row.app.id, gpus, FOREVER, "it was the next in line")
            if len(row.leases) < usable(row, state.floor.size):  # a gang that could never run waits alone
                return

    def standing(self, now: Time, state: ClusterState) -> list[tuple[int, str]]:
        """Return who wants GPUs, in the order in which they came."""
        return [(app, "by its arrival") for app, row in state.apps.items() if wanted(row)]
