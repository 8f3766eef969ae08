"""The agent of an app (Themis, section 4.3): what rho would be with the GPUs that it is offered.

rho = T_sh / T_id. T_sh is the time since the app came, and what is left on these GPUs and those it has,
as if it kept them to its end; T_id is that of `fairness`, under either name.

With no GPUs an app would never end. `UNSERVED` is what stands for it: ten times as bad as with the fewest
GPUs that it can run on, so that a first GPU is always worth more than one more.

Truth-telling: a table is what the app claimed when it was offered GPUs, before it saw what others bid, and
nobody changes it afterwards. How badly it fares until the next offer is read from the same claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from astrarium.cluster.agents.outlook import UNSERVED, Claim, Outlook, outlook, sizes
from astrarium.cluster.agents.patterns import Ground, Pattern, closest_slot, counts, ground, loose, tighter
from astrarium.cluster.agents.shapes import Part, held, shape
from astrarium.cluster.auction.goods import Bid, FreeMachine, Option
from astrarium.cluster.contract import App, Job
from astrarium.cluster.demand import Appetite, stood
from astrarium.cluster.fairness import Definition
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.units import Time

HONEST = Claim()
LEAST_CLAIM = 0.01


def erring(error: float, chance: Iterator[float]) -> Claim:
    """Off by up to *error* either way, in work and in S; *chance* has numbers from 0 to 1."""
    work, apart = (1.0 + error * (2.0 * next(chance) - 1.0) for _ in range(2))
    return Claim(work=max(LEAST_CLAIM, work), apart=max(LEAST_CLAIM, apart))


def lying(claim: Claim, lie: float, near: bool = False) -> Claim:
    """Says that it suffers so much more when it is spread or, with *near*, so much less when it is not."""
    if near:
        return claim._replace(near=max(LEAST_CLAIM, claim.near * (1.0 - lie)))
    return claim._replace(apart=claim.apart * (1.0 + lie))


class Ideal:
    """T_id of one app: `fairness.ideal`, with sums over its jobs done once."""

    def __init__(self, app: App, definition: Definition, work: float = 1.0) -> None:
        self._definition = definition
        self._phases = [
            (
                work * sum(job.forecast for job in phase),
                sum(job.most for job in phase),
                _longest({job.most: 0.0 for job in phase}, phase, work),
            )
            for phase in app.phases
        ]
        self._one: tuple[float, int] | None = None  # a single job: its work, and the GPUs that it can use
        if definition == "share" and len(app.phases) == len(app.phases[0]) == 1:
            self._one = self._phases[0][:2]

    def __call__(self, size: int, contention: float) -> float:
        if self._one is not None:  # as most apps are: asked of all of them at every auction
            left, most = self._one
            return max(1.0, left / min(size / max(1.0, contention), most))
        if self._definition == "equation-1":
            widest = max(most for _, most, _ in self._phases)
            return max(1.0, sum(total for total, _, _ in self._phases) / min(size, widest) * contention)
        gpus = size / max(1.0, contention)
        return max(1.0, sum(_alone(gpus, *phase) for phase in self._phases))


class _Sight(NamedTuple):
    """What the visibility phase has of an app: when it would end with what it has, or how much is left."""

    ends: Time | None
    left: float


class Agent:
    def __init__(self, app: App, definition: Definition = "share", claim: Claim = HONEST) -> None:
        self._app, self._definition = app, definition
        self._sight: _Sight | None = None
        self.table: Bid | None = None  # of the last auction that it took part in
        self._claim(claim)

    def _claim(self, claim: Claim) -> None:
        self.claim = claim
        self._ideal = Ideal(self._app, self._definition, claim.work)

    def changed(self) -> None:
        """It has other GPUs or other jobs than before."""
        self._sight = None

    def rho(self, now: Time, row: AppRow, state: ClusterState) -> float:
        """How it fares, with the GPUs that it has or had until now; from the claim of its last bid."""
        if self._sight is None:
            gpus = [*row.leases, *(gpu for gpu in stood(row) if gpu in state.free)]  # some may be gone
            self._sight = _seen(now, gpus, outlook(now, row, state, self.claim), state)
        return self._rho(now, row, state, self._sight)

    def _rho(self, now: Time, row: AppRow, state: ClusterState, sight: _Sight) -> float:
        ends, left = sight
        ideal = self._ideal(max(1, state.floor.size), state.contention(now, row))
        if ends is not None:
            return (ends - row.arrived) / ideal
        return UNSERVED * (now - row.arrived + left) / ideal

    def ideal(self, now: Time, row: AppRow, state: ClusterState) -> float:
        """T_id as of now."""
        return self._ideal(max(1, state.floor.size), state.contention(now, row))

    def bid(
        self,
        now: Time,
        row: AppRow,
        state: ClusterState,
        goods: list[FreeMachine],
        claim: Claim | None = None,
    ) -> Bid:
        """A number on every pattern that is better than those which are easier to have. Pure but for what the
        agent remembers: a *claim* that is other than the last, and the table."""
        if claim is not None and claim != self.claim:
            self._claim(claim)
        self.changed()
        ahead = outlook(now, row, state, self.claim)
        before = self._rho(now, row, state, _seen(now, tuple(row.leases), ahead, state))
        offered = ground(goods, state.floor, held(state.floor, row.leases))
        options = _Table(row, ahead, offered, now - row.arrived, self.ideal(now, row, state)).options(before)
        self.table = Bid(row.app.id, before, tuple(options))
        return self.table


class _Table:
    """The rows of one bid."""

    def __init__(self, row: AppRow, ahead: Outlook, offered: Ground, lived: Time, ideal: float) -> None:
        self._row, self._ahead, self._offered = row, ahead, offered
        self._lived, self._ideal = lived, ideal

    def options(self, before: float) -> Iterator[Option]:
        """*best* is what fewer or as many GPUs can do in the loosest pattern: all others must beat it."""
        best, tight, racks = before, self._ahead.placement_matters(), self._ahead.racks_matter()
        for count in counts(self._offered.total, Appetite(self._row).more):
            easier = best
            for pattern in self._patterns(count, tight, racks):
                rho = self._rho(pattern)
                if rho < easier:
                    yield Option(pattern.pieces, rho, pattern.one_rack)
                    easier = rho
                    best = rho if pattern == loose(count) else best

    def _patterns(self, count: int, tight: bool, racks: bool) -> Iterator[Pattern]:
        yield loose(count)
        if tight:
            yield from tighter(count, self._job_size(count), self._offered, racks)

    def _job_size(self, count: int) -> int:
        tasks = self._ahead.present
        own = sizes(tasks, len(self._row.leases) + count)
        return max(own) if own is not None else max(task.least for task in tasks)

    def _rho(self, pattern: Pattern) -> float:
        return (self._lived + self._ahead.left(self._offered.shape(*pattern))) / self._ideal


def _seen(now: Time, gpus: Sequence[int], ahead: Outlook, state: ClusterState) -> _Sight:
    if len(gpus) < ahead.smallest:
        return _Sight(None, ahead.left(shape([Part(ahead.smallest)], ahead.smallest)))
    has = held(state.floor, gpus)
    left = ahead.left(shape(has.values(), closest_slot(state.floor, has)))
    return _Sight(now + round(left), left)


def _longest(longest: dict[int, float], phase: tuple[Job, ...], work: float) -> list[tuple[int, float]]:
    for job in phase:
        longest[job.most] = max(longest[job.most], work * job.forecast)
    return list(longest.items())


def _alone(gpus: float, total: float, most: int, longest: list[tuple[int, float]]) -> float:
    return max(total / min(gpus, most), *(left / min(width, gpus) for width, left in longest))
