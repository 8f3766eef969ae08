"""The agent of an app (Themis, section 4.3) bids: it says what rho would be with the GPUs that are offered.

rho = T_sh / T_id. T_sh is the time since the app came, and what is left on these GPUs and those it has, as if
it kept them to its end; T_id is that of `fairness`, under any name.

With no GPUs an app would never end. `UNSERVED` is what stands for it: ten times as bad as with the fewest
GPUs that it can run on, so that a first GPU is always worth more than one more.

Truth-telling: an agent reports once what its app is like, before it sees what others bid. Bids, and how badly
the app fares, are read from that report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from astrarium.cluster.agents.remaining_work import (
    UNSERVED,
    GpuLayout,
    MachineGpus,
    RemainingWork,
    SelfReport,
    gpu_layout,
    held,
    remaining_work,
    sizes,
)
from astrarium.cluster.auction.goods import Bid, BidOption, FreeMachine, GpuPiece
from astrarium.cluster.contract import App
from astrarium.cluster.demand import GpuDemand, just_expired
from astrarium.cluster.fairness import Definition, Ideal
from astrarium.cluster.machines import Floor
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.units import Time

# Which subsets of the offered GPUs an agent bids on: so many GPUs, in pieces of such sizes.


FINE = 4  # numbers of GPUs up to here are all looked at, beyond it two for each doubling
BESIDE = 2  # machines on which an app has GPUs and wants more
SOME_RACK = -1  # one rack, whichever


class BidContext(NamedTuple):
    """The GPUs that are offered, by machine and rack, and those that the bidding app holds."""

    free: Mapping[int, int]  # by machine
    racks: Mapping[int, int]  # free GPUs of each
    slot: int
    held: Mapping[int, MachineGpus]

    @property
    def total(self) -> int:
        return sum(self.free.values())

    @property
    def largest(self) -> int:
        return max(self.free.values())

    def layout(self, pieces: Iterable[GpuPiece] = (), one_rack: bool = False) -> GpuLayout:
        """Return the layout of these pieces together with what the app holds."""
        parts = dict(self.held)
        loose = []
        for piece in pieces:
            if piece.machine is None:
                loose.append(MachineGpus(piece.gpus, self._rack(one_rack)))
            else:
                before = parts[piece.machine]
                parts[piece.machine] = MachineGpus(before.gpus + piece.gpus, before.rack)
        return gpu_layout([*parts.values(), *loose], self.slot)

    def _rack(self, one_rack: bool) -> int | None:
        if len(self.racks) == 1:
            return next(iter(self.racks))
        return SOME_RACK if one_rack else None


class Pattern(NamedTuple):
    """The sizes of the pieces that a number of GPUs comes in, in one rack or anywhere."""

    pieces: tuple[GpuPiece, ...]
    one_rack: bool = False


def bid_context(goods: Sequence[FreeMachine], floor: Floor, held: Mapping[int, MachineGpus]) -> BidContext:
    racks: dict[int, int] = {}
    for each in goods:
        racks[each.rack] = racks.get(each.rack, 0) + each.free
    slot = closest_slot(floor, [*held, *(each.id for each in goods)])
    return BidContext({each.id: each.free for each in goods}, racks, slot, held)


def closest_slot(floor: Floor, machines: Iterable[int]) -> int:
    """Return how many GPUs lie in one slot on any of these machines."""
    return min((floor.machines[each].slot or floor.machines[each].gpus for each in machines), default=1)


def counts(most: int, useful: Callable[[int], int]) -> list[int]:
    """Return the numbers of GPUs that an agent bids on: those that the app would use in full."""
    return sorted({useful(count) for count in (*_steps(most), most)} - {0})


def _steps(most: int) -> Iterator[int]:
    count = 1
    while count < most:
        yield count
        count += 1 << count.bit_length() - 2 if count >= FINE else 1


def loose(count: int) -> Pattern:
    """Return the pattern that is easiest to have: single GPUs, anywhere."""
    return Pattern((GpuPiece(1),) * count)


def tighter(count: int, size: int, context: BidContext, racks_matter: bool) -> Iterator[Pattern]:
    """Yield patterns for jobs of *size* GPUs, each harder to have than those before."""
    size = min(size, count, context.largest)
    racks = racks_matter and len(context.racks) > 1 and max(context.racks.values()) >= count
    if racks:
        yield Pattern((GpuPiece(1),) * count, one_rack=True)
    for piece in (size // 2, size, min(count, context.largest)):
        if piece > 1:
            yield Pattern(_cut(count, piece))
            if racks and piece < count:
                yield Pattern(_cut(count, piece), one_rack=True)
    yield from _beside(count, size, context)


def _beside(count: int, size: int, context: BidContext) -> Iterator[Pattern]:
    """Yield patterns that lie on a machine where the app already is, with the rest in pieces."""
    homes = sorted(
        context.held.keys() & context.free.keys(), key=lambda each: (-context.held[each].gpus, each)
    )
    for home in homes[:BESIDE]:
        there = min(count, context.free[home])
        yield Pattern((GpuPiece(there, machine=home), *_cut(count - there, size)))


def _cut(count: int, size: int) -> tuple[GpuPiece, ...]:
    """Return pieces of *size*, and the rest in powers of two: sizes that divide each other fit easily."""
    rest = count % size
    smaller = (1 << bit for bit in reversed(range(rest.bit_length())) if rest >> bit & 1)
    return tuple(GpuPiece(each) for each in (*[size] * (count // size), *smaller))


HONEST = SelfReport()
LEAST_FACTOR = 0.01


def erring(error: float, chance: Iterator[float]) -> SelfReport:
    """Return a report off by up to *error* either way, in work and S; *chance* has numbers from 0 to 1."""
    work, apart = (1.0 + error * (2.0 * next(chance) - 1.0) for _ in range(2))
    return SelfReport(work=max(LEAST_FACTOR, work), apart=max(LEAST_FACTOR, apart))


def lying(report: SelfReport, lie: float, near: bool = False) -> SelfReport:
    """Return a report that overstates what being apart costs or, *near*, understates what one machine
    does."""
    if near:
        return report._replace(near=max(LEAST_FACTOR, report.near * (1.0 - lie)))
    return report._replace(apart=report.apart * (1.0 + lie))


class _FinishEstimate(NamedTuple):
    """What the visibility phase knows of an app: when it would end with what it has, or how much is left."""

    ends: Time | None
    left: float


class AppAgent:
    """The agent speaks for one app: it says how the app fares, and bids for it."""

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
        options = _Table(row, remaining, context, now - row.arrived, ideal).options(before)
        return Bid(row.app.id, before, tuple(options))


class _Table:
    """The options of one bid."""

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
