"""The rivals as the authors' simulator has them deal GPUs out one by one, and nothing stays where it was.

For each free GPU, in the order of their numbers, the job of the smallest rank takes one; of equals who has
fewest, then who has had so few for longest. Most are blind to places. Gandiva and Optimus are not: they take
the GPU that is best for the job, among those left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from astrarium.cluster.contract import Allocations, Event, Grant, Job
from astrarium.cluster.fairness import work_left
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.units import Time
from astrarium_papers.themis.authors.setting import LEASE

STEEP = 9.0  # how fast losses fall at first


class Claim(NamedTuple):
    """A job that may take one more GPU. *has*: GPUs that it has, with those it has taken in this round."""

    now: Time
    row: AppRow
    has: list[int]
    left: Sequence[int]
    state: ClusterState

    @property
    def job(self) -> Job:
        return self.row.app.phases[0][0]

    def pace(self, more: int | None = None) -> float:
        return self.state.pace(self.job, [*self.has, *([] if more is None else [more])])

    def best(self) -> int:
        """Return the GPU that makes the job fastest, the first of those alike."""
        return max(self.left, key=lambda gpu: (self.pace(gpu), -gpu)) if self.has else self.left[0]


Rank = Callable[[Claim], float]


class OneByOne:
    """A policy that deals out free GPUs one by one, by *rank*; *sees*: it is not blind to places. *early*:
    ties go to who came first, and not to who has fewest GPUs for longest."""

    def __init__(self, rank: Rank, sees: bool = False, early: bool = False) -> None:
        self._rank, self._sees, self._early = rank, sees, early

    def decide(self, now: Time, events: Sequence[Event], state: ClusterState) -> Allocations:
        left, taken = sorted(state.free), dict[int, list[int]]()
        while left:
            claims = [
                Claim(now, row, [*row.leases, *taken.get(app, ())], left, state)
                for app, row in state.apps.items()
            ]
            wanting = [claim for claim in claims if len(claim.has) < claim.job.most]
            if not wanting:
                break
            first = min(wanting, key=self._order)
            gpu = first.best() if self._sees else left[0]
            left.remove(gpu)
            taken.setdefault(first.row.app.id, []).append(gpu)
        for app, gpus in taken.items():
            yield Grant(app, tuple(gpus), now + LEASE, "it was next")

    def _order(self, claim: Claim) -> tuple[float, ...]:
        tie = (claim.row.arrived,) if self._early else (len(claim.has), claim.row.counted)
        return self._rank(claim), *tie, claim.row.app.id


def attained(claim: Claim) -> float:
    """Tiresias: the GPU time that a job has had. (Their SRSF ranks by it too, which is a fault of theirs.)"""
    return claim.state.service(claim.now, claim.row)


def service_left(claim: Claim) -> float:
    """SRSF as the paper has it: the GPU time that is left of a job."""
    return work_left(claim.now, claim.row, claim.state)


def time_left(claim: Claim) -> float:
    """SRTF: how long a job takes on all GPUs that it can use."""
    return work_left(claim.now, claim.row, claim.state) / claim.job.most


def placement(claim: Claim) -> float:
    """Gandiva: how close together the GPUs of a job would lie with one more."""
    return -claim.pace(claim.best()) / (len(claim.has) + 1)


def growth(claim: Claim) -> float:
    """Optimus: by what factor one more GPU makes a job faster."""
    return -claim.pace(claim.best()) / claim.pace() if claim.has else -inf


def loss(claim: Claim) -> float:
    """SLAQ: by how much one more GPU for a lease makes the loss fall."""
    whole = max(1, claim.job.forecast)
    done = 1 - work_left(claim.now, claim.row, claim.state) / whole
    before, after = (done + count * LEASE / whole for count in (len(claim.has), len(claim.has) + 1))
    return _loss(after) - _loss(before)


def loss_by_count(claim: Claim) -> float:
    """SLAQ with the number of GPUs the wrong way round: who has most comes first."""
    return loss(claim) - len(claim.has)


def _loss(done: float) -> float:
    return 1.0 / (1.0 + STEEP * min(1.0, done))
