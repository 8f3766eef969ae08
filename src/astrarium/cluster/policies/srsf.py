"""Shortest remaining service first serves the app with the least GPU time left, as its owner forecasts it.

It is the policy that Themis compares with (section 6.1): one gang, or one GPU more for a job, at a time.
"""

from __future__ import annotations

from astrarium.cluster.demand import smallest_step
from astrarium.cluster.fairness import work_left
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.policies._leased import Leased, LeaseParameters, Offer
from astrarium.cluster.state import AppRow
from astrarium.core.units import SECOND, Time


@cluster_policies.register("srsf")
class ShortestRemainingService(Leased):
    Parameters = LeaseParameters
    why = "it has the least GPU time left"

    def __init__(self, parameters: LeaseParameters) -> None:
        super().__init__(parameters.lease, parameters.gangs == "skip")

    def rank_in_words(self, rank: float) -> str:
        return f"it has {rank / SECOND / 3600:.2f} GPU-hours left"

    def rank(self, now: Time, row: AppRow, offer: Offer) -> float:
        return work_left(now, row, offer.state)

    def portion(self, row: AppRow, offer: Offer) -> int:
        return smallest_step(row, offer.count(row), len(offer))
