"""Gandiva as Themis compares with it (section 6.1) serves the app first that can have its GPUs closest
together.

How close is how fast its jobs would run there, over how fast they would on GPUs side by side; a job whose
lease has ended may be moved to a better place. Packing and time-slicing are not modelled, as in Themis.
"""

from __future__ import annotations

from astrarium.cluster.arrange import closest
from astrarium.cluster.machines import Floor, Spread
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.policies._leased import Leased
from astrarium.cluster.policies._offer import Offer
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.cluster.work_left import throughput
from astrarium.core.quantities import Time


@cluster_policies.register("gandiva")
class Gandiva(Leased):
    fixed = False
    why = "its jobs run closest together there"

    def rank_in_words(self, rank: float) -> str:
        return f"its jobs would run at {-rank:.2f} of their speed" if rank else "there is no place for it now"

    def rank(self, now: Time, row: AppRow, offer: Offer) -> float:
        count = offer.wants(row)
        return -self._score(row, self.pick(now, row, count, offer), offer) if count > 0 else 0.0

    def at_best(self, now: Time, row: AppRow, state: ClusterState) -> float:
        return -1.0

    def stays(self, row: AppRow, state: ClusterState) -> bool:
        """Return whether an app lies as close as it can: on one machine, or in one rack if too large."""
        return all(_lies_well(job.gpus, state.floor) for job in row.jobs.values())

    def pick(self, now: Time, row: AppRow, count: int, offer: Offer) -> list[int]:
        stays = offer.best(row, count)
        runs_on = [gpu for job in row.jobs.values() for gpu in job.gpus]
        settled = stays == runs_on and self.stays(row, offer.state)
        if settled or self._score(row, stays, offer) >= 1.0:
            return stays
        moves = list(closest(offer.state.free - offer.taken, count, offer.state.floor, offer.held(row)))
        return max(stays, moves, key=lambda gpus: self._score(row, gpus, offer))  # if equal, it stays

    def _score(self, row: AppRow, gpus: list[int], offer: Offer) -> float:
        """Return the speed of an app with these GPUs; 1: all that it would use lies together."""
        own = [*offer.held(row), *gpus]
        return throughput(row, own, offer.state) / max(1, len(own))


def _lies_well(gpus: tuple[int, ...], floor: Floor) -> bool:
    spread = floor.spread(gpus)
    if spread <= Spread.MACHINE:
        return True
    return spread is Spread.RACK and len(gpus) > max(map(len, floor.gpus_of.values()))
