"""The agent of an app (Themis, section 4.3) bids: it says what rho would be with the GPUs that are offered.

rho = T_sh / T_id. T_sh is the time since the app came, and what is left on these GPUs and those it has, as if
it kept them to its end; T_id is that of `fairness`, under any name.

With no GPUs an app would never end. `UNSERVED` is what stands for it: ten times as bad as with the fewest
GPUs that it can run on, so that a first GPU is always worth more than one more.

Truth-telling: an agent reports once what its app is like, before it sees what others bid. Bids, and how badly
the app fares, are read from that report.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from astrarium.cluster.agents.layouts import MachineGpus, gpu_layout, held
from astrarium.cluster.agents.patterns import (
    BidContext,
    Pattern,
    bid_context,
    closest_slot,
    counts,
    loose,
    tighter,
)
from astrarium.cluster.agents.remaining_work import UNSERVED, RemainingWork, remaining_work, sizes
from astrarium.cluster.agents.self_report import HONEST, SelfReport
from astrarium.cluster.auction.bids import Bid, BidOption
from astrarium.cluster.auction.goods import FreeMachine
from astrarium.cluster.contract import App
from astrarium.cluster.demand import GpuDemand, just_expired
from astrarium.cluster.fairness import Definition, Ideal
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.quantities import Time


class _FinishEstimate(NamedTuple):
    """What the visibility phase knows of an app: when it would end with what it has, or how much is left."""

    ends: Time | None
    left: float


class AppAgent:
    """The agent of one app keeps what the app has reported, and reads all that it says from that."""

    def __init__(self, app: App, definition: Definition = "share", report: SelfReport = HONEST) -> None:
        self.report = report
        self._ideal = Ideal(app, definition, lambda job: report.work * job.forecast)
        self._estimate: _FinishEstimate | None = None

    def changed(self) -> None:
        """Forget the estimate: the app has other GPUs or other jobs than before."""
        self._estimate = None

    def rho(self, now: Time, row: AppRow, state: ClusterState) -> float:
        """Return how the app fares with the GPUs it has or had until now, by the report of its last bid."""
        if self._estimate is None:
            gpus = [*row.leases, *(gpu for gpu in just_expired(row) if gpu in state.free)]  # some may be gone
            self._estimate = _finish_estimate(now, gpus, remaining_work(now, row, state, self.report), state)
        return self._rho(now, row, state, self._estimate)

    def _rho(self, now: Time, row: AppRow, state: ClusterState, estimate: _FinishEstimate) -> float:
        ends, left = estimate
        ideal = self._ideal(max(1, state.floor.size), state.contention(now, row))
        if ends is not None:
            return (ends - row.arrived) / ideal
        return UNSERVED * (now - row.arrived + left) / ideal

    def bid(self, now: Time, row: AppRow, state: ClusterState, goods: list[FreeMachine]) -> Bid:
        """Return a bid: a rho for every pattern that is better than those which are easier to have."""
        self.changed()
        remaining = remaining_work(now, row, state, self.report)
        before = self._rho(now, row, state, _finish_estimate(now, tuple(row.leases), remaining, state))
        context = bid_context(goods, state.floor, held(state.floor, row.leases))
        ideal = self._ideal(max(1, state.floor.size), state.contention(now, row))
        options = _BidOptions(row, remaining, context, now - row.arrived, ideal).options(before)
        return Bid(row.app.id, before, tuple(options))


class _BidOptions:
    """The options of a bid are patterns, each with a smaller rho than those which are easier to have."""

    def __init__(
        self, row: AppRow, remaining: RemainingWork, context: BidContext, lived: Time, ideal: float
    ) -> None:
        self._row = row
        self._remaining = remaining
        self._context = context
        self._lived = lived
        self._ideal = ideal

    def options(self, before: float) -> Iterator[BidOption]:
        """Yield options that beat *best*, what no more GPUs can do in the loosest pattern."""
        best = before
        tight = self._remaining.placement_matters()
        racks = self._remaining.racks_matter()
        for count in counts(self._context.total, GpuDemand(self._row).more):
            easier = best
            for pattern in self._patterns(count, tight, racks):
                rho = self._rho(pattern)
                if rho < easier:
                    yield BidOption(pattern.pieces, rho, pattern.one_rack)
                    easier = rho
                    best = rho if pattern == loose(count) else best

    def _patterns(self, count: int, tight: bool, racks: bool) -> Iterator[Pattern]:
        yield loose(count)
        if tight:
            yield from tighter(count, self._job_size(count), self._context, racks)

    def _job_size(self, count: int) -> int:
        jobs = self._remaining.present
        own = sizes(jobs, len(self._row.leases) + count)
        return max(own) if own is not None else max(job.least for job in jobs)

    def _rho(self, pattern: Pattern) -> float:
        return (self._lived + self._remaining.left(self._context.layout(*pattern))) / self._ideal


def _finish_estimate(
    now: Time, gpus: Sequence[int], remaining: RemainingWork, state: ClusterState
) -> _FinishEstimate:
    if len(gpus) < remaining.smallest:
        return _FinishEstimate(
            None, remaining.left(gpu_layout([MachineGpus(remaining.smallest)], remaining.smallest))
        )
    has = held(state.floor, gpus)
    left = remaining.left(gpu_layout(has.values(), closest_slot(state.floor, has)))
    return _FinishEstimate(now + round(left), left)
