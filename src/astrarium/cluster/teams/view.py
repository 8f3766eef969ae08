"""The books as the policy of one queue sees them: a cluster of its own, whose machines come and go."""

from __future__ import annotations

from collections.abc import Iterator, Set
from copy import copy

import msgspec

from astrarium.cluster.contract import Event, Grant, MachineJoined, MachineLost, Revoke, Withdraw
from astrarium.cluster.machines import Floor
from astrarium.cluster.state import AppRow, ClusterState, Contention
from astrarium.core.quantities import Time


class QueueView(ClusterState):
    """The apps of a queue, and the GPUs that they may have. Contention is that of the whole cluster, for this
    part of it: so rho means the same in every queue."""

    def __init__(self, state: ClusterState, apps: dict[int, AppRow], gpus: Set[int]) -> None:
        self.__dict__.update(vars(state))
        self._part = len(gpus) / max(1, state.floor.size)
        self.whole = state
        self.apps = apps
        self.free = set(state.free & gpus)
        self.holder = {gpu: app for gpu, app in state.holder.items() if gpu in gpus}
        self.floor = copy(state.floor)
        self.floor.size = len(gpus)
        self.kept: set[int] = set()  # that were to be taken back, and were not

    def contention(self, now: Time, row: AppRow) -> Contention:
        apps, gpus = self.whole.contention(now, row)
        return Contention(apps * self._part, gpus * self._part)

    def hear(self, action: Grant | Revoke | Withdraw) -> None:
        """Follow what the books were told."""
        if isinstance(action, Grant):
            self.free.difference_update(action.gpus)
            self.holder.update(dict.fromkeys(action.gpus, action.app))
            return
        if isinstance(action, Withdraw):
            del self.apps[action.app]
        for gpu in [gpu for gpu in self.holder if gpu not in self.whole.holder]:
            del self.holder[gpu]
            self.free.add(gpu)


def changes(before: Set[int], after: Set[int], floor: Floor) -> Iterator[Event]:
    """Yield how a cluster has changed whose GPUs are others now: a machine of which it has another part has
    left, and one with those GPUs has joined."""
    for machine in sorted({floor.machine_of(gpu) for gpu in before ^ after}):
        if any(floor.machine_of(gpu) == machine for gpu in before):
            yield MachineLost(machine)
        count = sum(floor.machine_of(gpu) == machine for gpu in after)
        if count:
            yield MachineJoined(msgspec.structs.replace(floor.machines[machine], gpus=count))
