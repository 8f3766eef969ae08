"""An offer is the GPUs that are free in one step, and who has won some of them."""

from __future__ import annotations

from collections.abc import Iterable

from astrarium.cluster.arrange import closest
from astrarium.cluster.demand import usable
from astrarium.cluster.state import AppRow, ClusterState


class Offer:
    """The policy takes GPUs from the offer for one app after another, and then grants them. On *warm* ones
    jobs still stand whose leases have just ended: others should take them last."""

    def __init__(self, state: ClusterState, warm: Iterable[int] = ()) -> None:
        self.state = state
        self.won = dict[int, list[int]]()
        self.warm = warm
        self.taken: set[int] = set()

    def __len__(self) -> int:
        return len(self.state.free) - len(self.taken)

    def held(self, row: AppRow) -> list[int]:
        """Return what the app has, with what it has won."""
        return [*row.leases, *self.won.get(row.app.id, ())]

    def count(self, row: AppRow) -> int:
        return len(row.leases) + len(self.won.get(row.app.id, ()))

    def wants(self, row: AppRow) -> int:
        """Return how many of the GPUs that are left the app could use."""
        has = self.count(row)
        return usable(row, has + len(self)) - has

    def best(self, row: AppRow, count: int) -> list[int]:
        """Return GPUs where jobs of the app have just been, as far as these are free, and then close by."""
        free = self.state.free
        taken = self.taken
        stood = [gpu for job in row.jobs.values() for gpu in job.gpus if gpu in free and gpu not in taken]
        if len(stood) >= count:
            return stood[:count]
        left = free.difference(taken, stood)
        missing = count - len(stood)
        cold = left.difference(self.warm)
        near = [*self.held(row), *stood]
        return [*stood, *closest(cold if len(cold) >= missing else left, missing, self.state.floor, near)]

    def take(self, row: AppRow, gpus: Iterable[int]) -> None:
        won = self.won.setdefault(row.app.id, [])
        won += gpus
        self.taken.update(gpus)
