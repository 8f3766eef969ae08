"""SLAQ as Themis compares with it (section 6.1) gives GPUs to the app whose loss would fall most in a lease.

Loss curves are not in the traces. Every job is given the same one, after SLAQ's sublinear form: a loss of 1
before the first iteration that falls as 1 / (1 + s * d), where d is the part of the work that is done and s
the `steepness` (at 9, a loss of 0.1 in the end). The losses of an app's jobs are added up.
"""

from __future__ import annotations

from math import fsum
from typing import Annotated

import msgspec

from astrarium.cluster.arrange import planned
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.policies._leased import Leased, LeaseParameters
from astrarium.cluster.policies._offer import Offer
from astrarium.cluster.state import AppRow, ClusterState, JobRow
from astrarium.cluster.work_left import job_left
from astrarium.core.quantities import Time


@cluster_policies.register("slaq")
class Slaq(Leased):
    fixed = False
    in_order = False
    why = "its loss falls most with them"

    class Parameters(LeaseParameters, frozen=True, forbid_unknown_fields=True):
        steepness: Annotated[float, msgspec.Meta(gt=0, description="how fast losses fall at first")] = 9.0

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        self._steepness = parameters.steepness

    def rank_in_words(self, rank: float) -> str:
        return f"its loss falls by {-rank:.3f} in a lease"

    def rank(self, now: Time, row: AppRow, offer: Offer) -> float:
        held = offer.held(row)
        count = offer.wants(row)
        if count <= 0:
            return 0.0
        left = {job.job.id: job_left(now, row, job, offer.state) for job in row.unfinished()}
        with_them = self._loss(row, [*held, *offer.best(row, count)], left, offer.state)
        return with_them - self._loss(row, held, left, offer.state)

    def at_best(self, now: Time, row: AppRow, state: ClusterState) -> float:
        """Return the fall on all the GPUs that an app can use, side by side: it gets no further."""
        return fsum(self._fall(now, row, job, state) for job in row.unfinished())

    def _fall(self, now: Time, row: AppRow, job: JobRow, state: ClusterState) -> float:
        left = job_left(now, row, job, state)
        whole = max(1, job.job.forecast)
        return self._loss_at(left - self._lease * job.job.most, whole) - self._loss_at(left, whole)

    def _loss(self, row: AppRow, gpus: list[int], left: dict[int, Time], state: ClusterState) -> float:
        """Return the loss of an app with these GPUs at the end of a lease; *left* is the work of each job."""
        plan = planned(row, gpus, state.floor) if gpus else {}
        return fsum(self._job_loss(job, plan.get(job.job.id, ()), left, state) for job in row.unfinished())

    def _job_loss(
        self, job: JobRow, gpus: tuple[int, ...], left: dict[int, Time], state: ClusterState
    ) -> float:
        after = left[job.job.id] - self._lease * state.pace(job.job, gpus)
        return self._loss_at(after, max(1, job.job.forecast))

    def _loss_at(self, left: float, whole: Time) -> float:
        return 1.0 / (1.0 + self._steepness * (1.0 - max(0.0, left) / whole))
