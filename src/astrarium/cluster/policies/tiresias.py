"""Tiresias as Themis compares with it (section 6.1): GPUs go to the app that has had the least GPU time.

`tiresias-2d` is the policy of the Tiresias paper, with queues.
"""

from __future__ import annotations

from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.policies._leased import Leased, LeaseParameters, Offer
from astrarium.cluster.state import AppRow
from astrarium.core.units import SECOND, Time


@cluster_policies.register("tiresias")
class Tiresias(Leased):
    Parameters = LeaseParameters
    why = "it has had the least GPU time"

    def __init__(self, parameters: LeaseParameters) -> None:
        super().__init__(parameters.lease, parameters.gangs == "skip")

    def told(self, rank: float) -> str:
        return f"it has had {rank / SECOND / 3600:.2f} GPU-hours"

    def rank(self, now: Time, row: AppRow, offer: Offer) -> float:
        return offer.state.service(now, row)
