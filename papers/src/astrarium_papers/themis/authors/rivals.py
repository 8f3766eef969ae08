"""The rivals as the authors' simulator has them: free GPUs are offered one by one, and no job stays in place.

Each free GPU, in the order of their places, goes to the job that bids most for this one; of equals to who has
fewest GPUs, then to who has waited longest. What a job bids is the only difference between rivals. A lease
ends with an iteration, so that GPUs come free job by job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import ceil, inf
from typing import NamedTuple

from astrarium.cluster.contract import Allocations, Event, Grant, Job
from astrarium.cluster.fairness import work_left
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.streams import stream
from astrarium.core.units import Time
from astrarium_papers.themis.authors.setting import LEASE, MINUTE, iteration


class Offer(NamedTuple):
    """A job that is offered one more GPU. *has*: those that it has, with what it took at this instant."""

    now: Time
    row: AppRow
    has: list[int]
    gpu: int
    state: ClusterState

    @property
    def job(self) -> Job:
        return self.row.app.phases[0][0]

    @property
    def left(self) -> Time:
        return work_left(self.now, self.row, self.state)

    @property
    def size(self) -> int:
        """Return how many GPUs the job would have."""
        return len(self.has) + 1

    @property
    def speed(self) -> float:
        """Return how fast each GPU would be, for the place: 1 at most."""
        return self.state.pace(self.job, [*self.has, self.gpu]) / self.size

    def takes(self, gpus: Sequence[int]) -> float:
        """Return how long the job takes from its arrival, with these GPUs from now on."""
        lived = self.now - self.row.arrived
        return lived + self.left / self.state.pace(self.job, gpus) if gpus else inf


Rank = Callable[[Offer], float]


class OneByOne:
    """A policy that offers free GPUs one by one to all; the smallest *rank* takes it. *early*: ties go to who
    came first, and not to who has fewest GPUs for longest. *together*: leases that were given at the same
    instant end at the same instant."""

    def __init__(self, rank: Rank, early: bool = False, together: bool = False) -> None:
        self._rank, self._early, self._together = rank, early, together

    def decide(self, now: Time, events: Sequence[Event], state: ClusterState) -> Allocations:
        taken = dict[int, list[int]]()
        for gpu in sorted(state.free, key=lambda gpu: (state.floor.place_of(gpu), gpu)):
            offers = [
                Offer(now, row, [*row.leases, *taken.get(app, ())], gpu, state)
                for app, row in state.apps.items()
            ]
            wanting = [offer for offer in offers if len(offer.has) < offer.job.most]
            if not wanting:
                break
            taken.setdefault(min(wanting, key=self._order).row.app.id, []).append(gpu)
        yield from leased(now, taken, state, self._together)

    def _order(self, offer: Offer) -> tuple[float, ...]:
        tie = (offer.row.arrived,) if self._early else (len(offer.has), offer.row.counted)
        return self._rank(offer), *tie, offer.row.app.id


def leased(now: Time, taken: dict[int, list[int]], state: ClusterState, together: bool) -> Allocations:
    for app, gpus in taken.items():
        row = state.apps[app]
        job = row.app.phases[0][0]
        step = iteration(job) / state.pace(job, [*row.leases, *gpus])
        until = now + (LEASE if together else ceil(ceil(LEASE / step) * step))
        yield Grant(app, tuple(gpus), until, "it was next")


def attained(offer: Offer) -> float:
    """Tiresias: the GPU time that a job has had."""
    return offer.state.service(offer.now, offer.row)


def work_done(offer: Offer) -> float:
    """SRSF by a fault of theirs: the work that is done, in place of what is left."""
    return offer.job.work - offer.left


def service_left(offer: Offer) -> float:
    """SRSF as the paper has it: the GPU time that is left of a job."""
    return offer.left


def time_left(offer: Offer) -> float:
    """SRTF (their SJF): how long a job takes with this GPU. A fault: the worse the place, the less."""
    return offer.left * offer.speed / offer.size


def time_left_right(offer: Offer) -> float:
    """SRTF without that fault."""
    return offer.left / offer.speed / offer.size


def throughput(offer: Offer) -> float:
    """Gandiva: how fast the job would be."""
    return -offer.speed * offer.size


def closeness(offer: Offer) -> float:
    """Gandiva, as an earlier version of theirs has it: how close together the GPUs of a job would lie."""
    return -offer.speed


def growth(offer: Offer) -> float:
    """Optimus: by what factor this GPU makes a job shorter, from its arrival."""
    return -offer.takes(offer.has) / offer.takes([*offer.has, offer.gpu]) if offer.has else -inf


def loss(offer: Offer) -> float:
    """SLAQ: by how much the loss falls in a lease. A fault: the more GPUs, and the better they lie, the fewer
    iterations are reckoned with, and a lease has as many as it has minutes."""
    return _fall(offer, LEASE / MINUTE // (offer.size * offer.speed))


def loss_right(offer: Offer) -> float:
    """SLAQ without that fault."""
    return _fall(offer, LEASE * offer.size * offer.speed // iteration(offer.job))


def _fall(offer: Offer, more: float) -> float:
    """Return by how much the loss changes: it falls with the square of the iterations, by factors that are
    drawn for each job (which ones theirs are, our files do not say)."""
    done = (offer.job.work - offer.left) / iteration(offer.job)
    square, linear = _factors(offer.row.app.id)
    before, after = (1.0 / (square * at**2 + linear * at + 1.0) for at in (done, done + more))
    return after - before


@cache
def _factors(job: int) -> tuple[float, float]:
    chance = stream(1, "loss", job)
    return float(chance.random()), float(chance.random())
