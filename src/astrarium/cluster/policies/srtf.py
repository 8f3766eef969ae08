"""Shortest remaining time first, as Themis compares with it (section 6.1): every app says how long it would
still take with what it has and what is free, close together or not; the shortest gets what it can use.
"""

from __future__ import annotations

from math import inf

from astrarium.cluster.ledger import AppRow
from astrarium.cluster.policies._leased import Leased, LeaseParameters, Offer
from astrarium.cluster.registry import cluster_policies
from astrarium.cluster.remaining import time_left, work_left
from astrarium.core.units import Time


@cluster_policies.register("srtf")
class ShortestRemainingTime(Leased):
    Parameters = LeaseParameters
    fixed = False
    why = "it is the first to end with them"

    def __init__(self, parameters: LeaseParameters) -> None:
        super().__init__(parameters.lease, parameters.gangs == "skip")

    def rank(self, now: Time, row: AppRow, offer: Offer) -> float:
        """A gang that does not fit is ranked by how long it would take with all that it can use."""
        count = max(0, offer.wants(row))
        gpus = [*offer.held(row), *offer.best(row, count)]
        found = time_left(now, row, gpus, offer.state)
        if found < inf:
            return found
        widest = sum(job.job.most for job in row.unfinished())
        return work_left(now, row, offer.state) / widest
