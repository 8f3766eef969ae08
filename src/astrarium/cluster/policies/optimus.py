"""Optimus as Themis compares with it (section 6.1) gives GPUs to the app whose throughput grows by the
largest ratio.

GPUs are given one after another. An app that has none yet comes first: any throughput is infinitely more than
nothing. Where a gang takes several at once, the ratio is that of each of them (the root).
"""

from __future__ import annotations

import math

from astrarium.cluster.demand import smallest_step
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.policies._leased import Leased
from astrarium.cluster.policies._offer import Offer
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.cluster.work_left import throughput
from astrarium.core.quantities import Time


@cluster_policies.register("optimus")
class Optimus(Leased):
    fixed = False
    why = "its throughput grows by the largest ratio"

    def rank_in_words(self, rank: float) -> str:
        return (
            "it runs nowhere yet"
            if rank == -math.inf
            else f"its throughput grows {-rank:.2f} times with each GPU"
        )

    def rank(self, now: Time, row: AppRow, offer: Offer) -> float:
        before = throughput(row, offer.held(row), offer.state)
        if not before:
            return -math.inf
        count = self.portion(row, offer)
        more = [*offer.held(row), *offer.best(row, count)] if count else offer.held(row)
        return -math.pow(throughput(row, more, offer.state) / before, 1 / max(1, count))

    def at_best(self, now: Time, row: AppRow, state: ClusterState) -> float:
        return -math.inf

    def portion(self, row: AppRow, offer: Offer) -> int:
        return smallest_step(row, offer.count(row), len(offer))
