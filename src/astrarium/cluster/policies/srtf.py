"""Shortest remaining time first serves the app that would end soonest with what it has and what is free.

It is the policy that Themis compares with (section 6.1): how long an app still takes depends on how close
together its GPUs would lie, and the shortest gets what it can use.
"""

from __future__ import annotations

from math import inf

from astrarium.cluster.demand import most_usable, smallest_step
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.policies._leased import Leased
from astrarium.cluster.policies._offer import Offer
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.cluster.work_left import time_left, work_left
from astrarium.core.quantities import SECOND, Time


@cluster_policies.register("srsf")  # it goes by GPU time that is left, as the owner of an app forecasts it
class ShortestRemainingService(Leased):
    why = "it has the least GPU time left"

    def rank_in_words(self, rank: float) -> str:
        return f"it has {rank / SECOND / 3600:.2f} GPU-hours left"

    def rank(self, now: Time, row: AppRow, offer: Offer) -> float:
        return work_left(now, row, offer.state)

    def portion(self, row: AppRow, offer: Offer) -> int:
        return smallest_step(row, offer.count(row), len(offer))


@cluster_policies.register("srtf")
class ShortestRemainingTime(Leased):
    fixed = False
    why = "it is the first to end with them"

    def rank_in_words(self, rank: float) -> str:
        return f"it would end in {rank / SECOND / 3600:.2f} hours"

    def rank(self, now: Time, row: AppRow, offer: Offer) -> float:
        """A gang that does not fit is ranked by how long it would take with all that it can use."""
        count = max(0, offer.wants(row))
        gpus = [*offer.held(row), *offer.best(row, count)]
        takes = time_left(now, row, gpus, offer.state)
        return takes if takes < inf else _at_its_widest(now, row, offer.state)

    def at_best(self, now: Time, row: AppRow, state: ClusterState) -> float:
        """Return no bound where phases to come may be wider than this one."""
        return _at_its_widest(now, row, state) if len(row.app.phases) == 1 else 0.0


def _at_its_widest(now: Time, row: AppRow, state: ClusterState) -> float:
    return work_left(now, row, state) / most_usable(row)
