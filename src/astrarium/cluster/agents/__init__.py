"""The agent of an app (Themis, section 4.3): what rho would be with the GPUs that it is offered.

rho = T_sh / T_id. T_sh is the time since the app came, and what is left on these GPUs and those it has,
as if it kept them to its end; T_id is that of `fairness`, under either name.

With no GPUs an app would never end. `UNSERVED` is what stands for it: ten times as bad as with the fewest
GPUs that it can run on, so that a first GPU is always worth more than one more.

Truth-telling: a table is what the app claimed when it was offered GPUs, before it saw what others bid, and
nobody changes it afterwards. How badly it fares until the next offer is read from the same claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from astrarium.cluster.agents.outlook import (
    UNSERVED,
    Claim,
    Outlook,
    Part,
    Shape,
    held,
    outlook,
    shape,
    sizes,
)
from astrarium.cluster.auction.goods import Bid, FreeMachine, Option, Piece
from astrarium.cluster.contract import App, Job
from astrarium.cluster.demand import Appetite, stood
from astrarium.cluster.fairness import Definition
from astrarium.cluster.machines import Floor
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.units import Time

# Which subsets of what is offered an agent puts a number on: so many GPUs, in pieces of such sizes.


FINE = 4  # numbers of GPUs up to here are all looked at, beyond it two for each doubling
BESIDE = 2  # machines on which an app has GPUs and wants more
SOME_RACK = -1  # one rack, whichever


class Ground(NamedTuple):
    """What is offered, and what the app has: parts by machine."""

    free: Mapping[int, int]  # by machine
    racks: Mapping[int, int]  # free GPUs of each
    slot: int
    held: Mapping[int, Part]

    @property
    def total(self) -> int:
        return sum(self.free.values())

    @property
    def largest(self) -> int:
        return max(self.free.values())

    def shape(self, pieces: Iterable[Piece] = (), one_rack: bool = False) -> Shape:
        """With these pieces beside what it has."""
        parts, loose = dict(self.held), []
        for piece in pieces:
            if piece.machine is None:
                loose.append(Part(piece.gpus, self._rack(one_rack)))
            else:
                before = parts[piece.machine]
                parts[piece.machine] = Part(before.gpus + piece.gpus, before.rack)
        return shape([*parts.values(), *loose], self.slot)

    def _rack(self, one_rack: bool) -> int | None:
        if len(self.racks) == 1:
            return next(iter(self.racks))
        return SOME_RACK if one_rack else None


class Pattern(NamedTuple):
    pieces: tuple[Piece, ...]
    one_rack: bool = False


def ground(goods: Sequence[FreeMachine], floor: Floor, held: Mapping[int, Part]) -> Ground:
    racks: dict[int, int] = {}
    for each in goods:
        racks[each.rack] = racks.get(each.rack, 0) + each.free
    slot = closest_slot(floor, [*held, *(each.id for each in goods)])
    return Ground({each.id: each.free for each in goods}, racks, slot, held)


def closest_slot(floor: Floor, machines: Iterable[int]) -> int:
    """So many GPUs lie in one slot on any of them."""
    return min((floor.machines[each].slot or floor.machines[each].gpus for each in machines), default=1)


def counts(most: int, useful: Callable[[int], int]) -> list[int]:
    """Numbers of GPUs that the app would use in full."""
    return sorted({useful(count) for count in (*_steps(most), most)} - {0})


def _steps(most: int) -> Iterator[int]:
    count = 1
    while count < most:
        yield count
        count += 1 << count.bit_length() - 2 if count >= FINE else 1


def loose(count: int) -> Pattern:
    return Pattern((Piece(1),) * count)


def tighter(count: int, size: int, offered: Ground, racks_matter: bool) -> Iterator[Pattern]:
    """For jobs of *size* GPUs: each pattern is harder to have than those before."""
    size = min(size, count, offered.largest)
    racks = racks_matter and len(offered.racks) > 1 and max(offered.racks.values()) >= count
    if racks:
        yield Pattern((Piece(1),) * count, one_rack=True)
    for piece in (size // 2, size, min(count, offered.largest)):
        if piece > 1:
            yield Pattern(_cut(count, piece))
            if racks and piece < count:
                yield Pattern(_cut(count, piece), one_rack=True)
    yield from _beside(count, size, offered)


def _beside(count: int, size: int, offered: Ground) -> Iterator[Pattern]:
    """On a machine where it already is, and the rest in pieces."""
    homes = sorted(
        offered.held.keys() & offered.free.keys(), key=lambda each: (-offered.held[each].gpus, each)
    )
    for home in homes[:BESIDE]:
        there = min(count, offered.free[home])
        yield Pattern((Piece(there, machine=home), *_cut(count - there, size)))


def _cut(count: int, size: int) -> tuple[Piece, ...]:
    """The rest in powers of two: pieces that divide each other are easy to fit."""
    rest = count % size
    smaller = (1 << bit for bit in reversed(range(rest.bit_length())) if rest >> bit & 1)
    return tuple(Piece(each) for each in (*[size] * (count // size), *smaller))


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
