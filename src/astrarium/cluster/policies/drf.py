"""Dominant resource fairness, with GPUs as the one resource, gives a free GPU to the app with the smallest
share.

The app keeps it for as long as the job runs. Nobody is stopped, so that long jobs keep theirs and late apps
wait (Themis 3.1.1).
"""

from __future__ import annotations

from astrarium.cluster.demand import smallest_step
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.policies._leased import Leased, LeaseParameters
from astrarium.cluster.policies._offer import Offer
from astrarium.cluster.state import AppRow
from astrarium.core.choice import NoParameters
from astrarium.core.quantities import FOREVER, Duration, Time


@cluster_policies.register("drf")
class DominantResourceFairness(Leased):
    why = "it has the smallest share"

    Parameters = NoParameters

    def __init__(self, parameters: NoParameters) -> None:
        super().__init__(LeaseParameters(Duration(FOREVER), "skip"))

    def rank_in_words(self, rank: float) -> str:
        return f"it has {rank:.0f} GPUs"

    def rank(self, now: Time, row: AppRow, offer: Offer) -> float:
        return offer.count(row)

    def portion(self, row: AppRow, offer: Offer) -> int:
        return smallest_step(row, offer.count(row), len(offer))
