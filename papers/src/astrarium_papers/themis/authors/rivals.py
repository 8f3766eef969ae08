"""The rivals as the authors' simulator has them: free GPUs are offered one by one, and no job stays in place.

Each free GPU, in the order of their places, goes to the job that bids most for this one; of equals to who has
fewest GPUs, then to who has waited longest. What a job bids is the only difference between rivals. A job
gives its GPUs back with its last iteration that ends in time (`IterationLeases`), so that GPUs come free job
by job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil, floor, inf
from typing import Literal, NamedTuple

from astrarium.cluster.contract import Allocations, Event, Grant, Job, LeaseExpired
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.cluster.work_left import work_left
from astrarium.core.quantities import Time
from astrarium_papers.themis.authors.setting import LEASE, MINUTE, SpreadJob, iteration

Ending = Literal["in time", "after", "together"]
CLOSE = 1e-6  # of an iteration
MS = 1_000_000
WHY = "it was next"


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
    came first, and not to who has fewest GPUs for longest. *ending*: GPUs are given back with the last
    iteration that ends "in time", with the one "after" the lease has ended, or all "together" when it ends.
    """

    def __init__(self, rank: Rank, early: bool = False, ending: Ending = "in time") -> None:
        self._rank = rank
        self._early = early
        self._ending = ending
        self._started: dict[int, Time] = {}  # when a job had GPUs again after it had none
        self._leases = IterationLeases()

    def decide(self, now: Time, events: Sequence[Event], state: ClusterState) -> Allocations:
        dealt = self._dealt(now, state)
        self._started.update((app, now) for app in dealt if not state.apps[app].leases)
        if self._ending != "in time":
            yield from _leased(now, dealt, state, together=self._ending == "together")
            return
        lost = [event.app for event in events if isinstance(event, LeaseExpired)]
        for app in dict.fromkeys([*dealt, *lost]):
            row = state.apps.get(app)
            if row is not None and (app in dealt or row.leases):
                yield from self._leases.grants(now, row, dealt.get(app, ()), state)

    def _dealt(self, now: Time, state: ClusterState) -> dict[int, list[int]]:
        dealt = dict[int, list[int]]()
        for gpu in sorted(state.free, key=lambda gpu: (state.floor.place_of(gpu), gpu)):
            offers = [
                Offer(now, row, [*row.leases, *dealt.get(app, ())], gpu, state)
                for app, row in state.apps.items()
            ]
            wanting = [offer for offer in offers if len(offer.has) < offer.job.most]
            if not wanting:
                break
            dealt.setdefault(min(wanting, key=self._order).row.app.id, []).append(gpu)
        return dealt

    def _order(self, offer: Offer) -> tuple[float, ...]:
        row = offer.row
        since = self._started[row.app.id] if row.leases else row.counted
        tie = (row.arrived,) if self._early else (len(offer.has), since)
        return self._rank(offer), *tie, row.app.id


def _leased(now: Time, dealt: dict[int, list[int]], state: ClusterState, together: bool) -> Allocations:
    for app, gpus in dealt.items():
        row = state.apps[app]
        job = row.app.phases[0][0]
        step = iteration(job) / state.pace(job, [*row.leases, *gpus])
        yield Grant(app, tuple(gpus), now + (LEASE if together else ceil(ceil(LEASE / step) * step)), WHY)


class Rhythm(NamedTuple):
    """When the iterations of a job end: at *start*, and then after every *step*."""

    start: float
    step: float

    def next(self, now: Time) -> float:
        """Return the first end from now on."""
        return self.start + ceil((now - self.start) / self.step - CLOSE) * self.step

    def last(self, until: Time) -> float:
        """Return the last end until then, *start* at the earliest."""
        return self.start + max(0, floor((until - self.start) / self.step + CLOSE)) * self.step


class IterationLeases:
    """Leases end with iterations: before one that would outlast the lease of a GPU, the job gives the GPU
    back. With fewer GPUs iterations take longer, so that others may have to go with it. A GPU that a job gets
    in an iteration changes those that follow."""

    def __init__(self) -> None:
        self._ends: dict[int, Time] = {}  # by GPU, if it were not for iterations
        self._rhythms: dict[int, Rhythm] = {}  # by app

    def grants(self, now: Time, row: AppRow, more: Sequence[int], state: ClusterState) -> Iterator[Grant]:
        """Yield leases for GPUs that a job gets, and anew for those that it has."""
        app = row.app.id
        job = row.app.phases[0][0]
        gpus = [*row.leases, *more]
        self._ends.update(dict.fromkeys(more, now + LEASE))
        start = self._rhythms[app].next(now) if row.leases else now
        rhythm = self._rhythms[app] = Rhythm(start, iteration(job) / state.pace(job, gpus))
        at = rhythm.last(min(self._ends[gpu] for gpu in gpus))
        left = self._left(at, job, gpus, state)
        until = max(now + 1, round(at))
        yield Grant(app, tuple(gpu for gpu in gpus if gpu not in left), until, WHY)
        if left:
            yield Grant(app, tuple(left), max(until + 1, min(self._ends[gpu] for gpu in left)), WHY)

    def _left(self, at: float, job: Job, gpus: list[int], state: ClusterState) -> list[int]:
        """Return the GPUs with which a job goes on at the end of an iteration."""
        while gpus:
            step = iteration(job) / state.pace(job, gpus)
            stay = [gpu for gpu in gpus if at + step * (1 - CLOSE) <= self._ends[gpu]]
            if stay == gpus:
                break
            gpus = stay
        return gpus


def attained(offer: Offer) -> float:
    """Tiresias: the GPU time that a job has had."""
    return offer.state.service(offer.now, offer.row)


def work_done(offer: Offer) -> float:
    """SRSF by a fault of theirs: the work that is done, in place of what is left. They count whole
    iterations, so that many jobs are equal."""
    step = iteration(offer.job)
    return floor((offer.job.work - offer.left) / step + CLOSE) * round(step / MS)


def work_done_in_parts(offer: Offer) -> float:
    """SRSF by that fault, where parts of iterations count."""
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


def loss(jobs: Sequence[SpreadJob], right: bool = False) -> Rank:
    """SLAQ: by how much the loss falls in a lease. A fault, unless it is put *right*: the more GPUs, and the
    better they lie, the fewer iterations are reckoned with, and a lease has as many as it has minutes."""

    def rank(offer: Offer) -> float:
        pace = offer.size * offer.speed
        step = iteration(offer.job)
        done = floor((offer.job.work - offer.left) / step + CLOSE)
        more = LEASE * pace // step if right else LEASE / MINUTE // pace
        curve = jobs[offer.row.app.id].curve
        return curve.loss(done + more) - curve.loss(done)

    return rank
