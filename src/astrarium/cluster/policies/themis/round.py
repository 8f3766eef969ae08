"""One round of Themis offers free GPUs to the apps that fare worst, auctions them, and hands out the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, product
from math import ceil, floor, inf
from typing import Annotated, Literal, NamedTuple

import msgspec

from astrarium.cluster.agents.participants import Participant
from astrarium.cluster.arrange import closest, cost_of_spread
from astrarium.cluster.auction.goods import FreeMachine, free_machines
from astrarium.cluster.auction.partial import AuctionResult, Share, auction, kept, stopped_early
from astrarium.cluster.contract import Grant
from astrarium.cluster.demand import just_expired
from astrarium.cluster.fairness import Definition, time_left
from astrarium.cluster.policies._leased import lease_end
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.quantities import Duration, check_above_zero
from astrarium.core.units import SECOND, Time

# Which GPUs, once it is known how many: where an app's jobs have just been, so that they go on unbroken,
# and then as close together as can be had.


ByMachine = Mapping[int, Mapping[int, int]]  # GPUs of each app, by machine


def settled(state: ClusterState, shares: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """Return so many free GPUs for each app; all take what they ran on before anybody takes others."""
    free = set(state.free)
    shares = {app: count for app, count in shares.items() if count}
    found = {app: _own(state.apps[app], free, count) for app, count in shares.items()}
    free.difference_update(*found.values())
    for app, count in shares.items():
        own = found[app]
        if len(own) < count:
            near = (*state.apps[app].leases, *own)
            new = closest(sorted(free), count - len(own), state.floor, near)
            free.difference_update(new)
            found[app] = (*own, *new)
    return found


def preferred(now: Time, state: ClusterState, shares: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """Return so many free GPUs for each app, where there are enough for all. Those choose first to whom a bad
    place costs most, of GPUs where nobody stood or, if they are better, of all."""
    free = set(state.free)
    found = dict[int, tuple[int, ...]]()
    own = {app: _own(state.apps[app], free, count) for app, count in shares.items() if count}
    stood = {gpu for gpus in own.values() for gpu in gpus}
    for app in sorted(own, key=lambda app: cost_of_spread(state.apps[app], shares[app], state), reverse=True):
        here = [gpu for gpu in own[app] if gpu in free]
        found[app] = _best_place(now, state, state.apps[app], shares[app], here, (free - stood, free))
        free.difference_update(found[app])
    return found


def _best_place(
    now: Time, state: ClusterState, row: AppRow, count: int, here: list[int], pools: Sequence[set[int]]
) -> tuple[int, ...]:
    """Return GPUs of a pool on which an app ends soonest. To leave those where it stands takes a start."""
    if len(here) == count and _lies_well(row, (*row.leases, *here), state):
        return tuple(here)
    best = tuple[int, ...]()
    least = inf
    for stays, pool in product((here, []), pools):
        pool = {*pool, *here}.difference(stays)
        gpus = (*stays, *closest(pool, count - len(stays), state.floor, (*row.leases, *stays)))
        takes = time_left(now, row, (*row.leases, *gpus), state) + (0 if stays else state.startup)
        if len(gpus) == count and (takes < least or not best):
            best = gpus
            least = takes
    return best


def _lies_well(row: AppRow, gpus: Sequence[int], state: ClusterState) -> bool:
    """Return whether an app has one job, which would be no faster on other GPUs."""
    if len(row.jobs) > 1:
        return False
    (only,) = row.jobs.values()
    return len(gpus) <= only.job.most and state.lies_well(only.job, gpus)


def _own(row: AppRow, free: Collection[int], count: int) -> tuple[int, ...]:
    """Return up to *count* free GPUs that an app has just run on, whole jobs first, as gangs are whole."""
    here = [[gpu for gpu in each.gpus if gpu in free] for each in row.jobs.values()]
    taken: list[int] = []
    for gpus in here:
        if len(taken) + len(gpus) <= count:
            taken += gpus
    rest = [gpu for gpus in here for gpu in gpus if gpu not in taken]
    return tuple((taken + rest)[:count])


def at_home(won: ByMachine, goods: Sequence[FreeMachine], state: ClusterState) -> dict[int, tuple[int, ...]]:
    """Return the GPUs for what was won on machines. Machines that are alike may change places: each goes,
    with all that was won on it, where most of its winners' jobs have just been."""
    before = {app: set(just_expired(state.apps[app])) for on in won.values() for app in on}
    used = {gpu for app in before for gpu in state.apps[app].leases}
    fixed = {state.floor.machine_of(gpu) for gpu in used}
    alike: dict[tuple[int, int, int], list[FreeMachine]] = {}
    for machine in goods:
        key = (machine.free, machine.rack, machine.id if machine.id in fixed else -1)
        alike.setdefault(key, []).append(machine)
    found: dict[int, list[int]] = {app: [] for app in before}
    for machines in alike.values():
        for source, target in _matched(won, machines, before):
            _hand_out(won[source.id], target, before, found)
    return {app: tuple(gpus) for app, gpus in found.items()}


def _matched(
    won: ByMachine, machines: Sequence[FreeMachine], before: Mapping[int, set[int]]
) -> list[tuple[FreeMachine, FreeMachine]]:
    sources = [machine for machine in machines if machine.id in won]
    if len(machines) == 1:
        return [(machine, machine) for machine in sources]
    pairs = [
        (-_overlap(won[source.id], target, before), source is not target, place, spot)
        for place, source in enumerate(sources)
        for spot, target in enumerate(machines)
    ]
    found: dict[int, int] = {}
    for _, _, place, spot in sorted(pairs):
        if place not in found and spot not in found.values():
            found[place] = spot
    return [(sources[place], machines[spot]) for place, spot in sorted(found.items())]


def _overlap(on: Mapping[int, int], target: FreeMachine, before: Mapping[int, set[int]]) -> int:
    return sum(min(count, len(before[app].intersection(target.gpus))) for app, count in on.items())


def _hand_out(
    on: Mapping[int, int],
    target: FreeMachine,
    before: Mapping[int, set[int]],
    found: Mapping[int, list[int]],
) -> None:
    left = target.ordered()
    own = {app: [gpu for gpu in left if gpu in before[app]][:count] for app, count in on.items()}
    taken = {gpu for gpus in own.values() for gpu in gpus}
    left = [gpu for gpu in left if gpu not in taken]
    for app, count in on.items():
        missing = count - len(own[app])
        found[app] += own[app] + left[:missing]
        left = left[missing:]


HAIR = 1e-9
ENOUGH = "there were enough for all who asked"


class ThemisParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    f: Annotated[
        float, msgspec.Meta(ge=0, le=1, description="the worst 1 - f of the apps bid, and at least one")
    ] = 0.8
    lease: Annotated[Duration, msgspec.Meta(description="how long GPUs are leased")] = Duration(600 * SECOND)
    grid: Annotated[
        int, msgspec.Meta(ge=0, description="leases end at so many instants in a lease; 0: at any")
    ] = 4
    definition: Annotated[Definition, msgspec.Meta(description="what finish times are compared with")] = (
        "share"
    )
    leftovers: Annotated[
        Literal["chance", "worst"],
        msgspec.Meta(description="which apps outside the auction come first for what it has left over"),
    ] = "chance"
    patience: Annotated[
        int, msgspec.Meta(ge=0, description="leases that an app waits for its first gang; 0: for ever")
    ] = 6
    error: Annotated[
        float, msgspec.Meta(ge=0, lt=1, description="apps are wrong about themselves by up to so much")
    ] = 0.0
    lies: Annotated[
        dict[int, float],
        msgspec.Meta(description="by app: how much it overstates what being apart costs"),
    ] = {}
    lie_near: Annotated[
        bool, msgspec.Meta(description="liars understate what being on one machine costs instead")
    ] = False
    seed: Annotated[int, msgspec.Meta(ge=0, description="of all chance: errors, roundings, leftovers")] = 0

    def __post_init__(self) -> None:
        check_above_zero("lease", self.lease)


class RankedParticipant(NamedTuple):
    """An app that wants GPUs, with its rho."""

    rho: float
    participant: Participant
    app: int


class Round:
    """One round of grants. Of all chance, *order* says in which order apps outside the auction get what is
    left, and *chance* (numbers from 0 to 1, one for each winner) how payments are rounded."""

    def __init__(
        self,
        now: Time,
        state: ClusterState,
        wanting: Sequence[Participant],
        parameters: ThemisParameters,
        order: Sequence[int],
        chance: Iterator[float],
    ) -> None:
        self._now = now
        self._state = state
        self._parameters = parameters
        self._wanting = wanting
        self._order = order
        self._chance = chance
        self._until = lease_end(now, parameters.lease, parameters.grid)
        self.outcome: AuctionResult | None = None  # of the auction, once there was one

    def grants(self) -> Iterator[Grant]:
        free = len(self._state.free)
        if sum(each.most - len(each.row.leases) for each in self._wanting) <= free:
            wants = {each.app: each.wants(free) for each in self._wanting}
            yield from self._granted(preferred(self._now, self._state, wants), ENOUGH)
            return
        ranked = self._ranked()
        yield from self._overdue(ranked)
        bidders = self._bidders(ranked)
        if bidders:
            yield from self._auctioned(bidders, ranked)
            yield from self._left_over(bidders, ranked)

    # visibility

    def _ranked(self) -> list[RankedParticipant]:
        """Return the apps that want GPUs, the worst first; of those alike, who came first."""
        now = self._now
        state = self._state
        found = [
            (-each.agent.rho(now, each.row, state), each.row.arrived, each.app, each)
            for each in self._wanting
        ]
        return [RankedParticipant(-rho, participant, app) for rho, _, app, participant in sorted(found)]

    def _bidders(self, ranked: Sequence[RankedParticipant]) -> list[RankedParticipant]:
        """Return the worst of the apps that could use something of what is offered."""
        count = max(1, ceil((1.0 - self._parameters.f) * len(self._state.apps) - HAIR))
        free = len(self._state.free)
        able = (each for each in ranked if free and each.participant.wants(free))
        return list(islice(able, count))

    # allocation

    def _auctioned(
        self, bidders: Sequence[RankedParticipant], ranked: Sequence[RankedParticipant]
    ) -> Iterator[Grant]:
        goods = free_machines(self._state.floor, self._state.free)
        bids = [
            each.participant.agent.bid(self._now, each.participant.row, self._state, goods)
            for each in bidders
        ]
        self.outcome = auction(goods, bids)
        shares = {share.bidder: share for share in self.outcome.shares if share.won}
        keeps = {
            each.app: self._keeps(each.participant, shares[each.app], goods)
            for each in bidders
            if each.app in shares
        }
        won: dict[int, dict[int, int]] = {}
        for app, gpus in keeps.items():
            for machine, count in Counter(self._state.floor.machine_of(gpu) for gpu in gpus).items():
                won.setdefault(machine, {})[app] = count
        places = at_home(won, goods, self._state)
        positions = {each.app: place for place, each in enumerate(ranked, 1)}
        for each in bidders:
            if places.get(each.app):
                told = _told(
                    each, positions[each.app], len(ranked), shares[each.app], len(places[each.app]), goods
                )
                why = told + stopped_early(self.outcome)
                yield Grant(each.app, tuple(sorted(places[each.app])), self._until, why)

    def _keeps(self, participant: Participant, share: Share, goods: Sequence[FreeMachine]) -> tuple[int, ...]:
        """Return what a winner keeps: less the payment, rounded by chance to what its jobs can use."""
        due = share.fraction * len(share.won)
        demand = participant.demand
        count = demand.more(floor(due + HAIR))
        step = demand.smallest_step(count, len(share.won) - count)
        first = not count and not participant.row.leases
        if first or next(self._chance) * step < due - count - HAIR:
            count += step
        return kept(share.won, count, goods)

    def _left_over(
        self, bidders: Sequence[RankedParticipant], ranked: Sequence[RankedParticipant]
    ) -> Iterator[Grant]:
        inside = {each.app for each in bidders}
        participants = [self._wanting[place] for place in self._order]
        who = "chance"
        if self._parameters.leftovers == "worst":
            participants = [each.participant for each in ranked]
            who = "its rho"
        outside = [each for each in participants if each.app not in inside]
        why = f"{len(bidders)} who fare worse were asked first; {who} gave it what their auction left over"
        yield from self._granted(settled(self._state, self._dealt(outside)), why)
        again = {}
        free = len(self._state.free)
        for each in bidders:
            again[each.app] = each.participant.wants(free)
            free -= again[each.app]
        yield from self._granted(
            settled(self._state, again), "they were left over, and no other app could use them"
        )

    def _dealt(self, participants: Sequence[Participant]) -> dict[int, int]:
        """Return GPUs for each app: one step each, again and again, while somebody can use some."""
        free = len(self._state.free)
        asking = list(participants)
        given = {each.app: 0 for each in participants}
        while free and asking:
            still = []
            for each in asking:
                step = each.demand.smallest_step(given[each.app], free)
                if step:
                    given[each.app] += step
                    free -= step
                    still.append(each)
            asking = still
        return given

    # who has waited too long

    def _overdue(self, ranked: Sequence[RankedParticipant]) -> Iterator[Grant]:
        """Grant a gang to the app that has waited too long; if it does not fit, end all leases together."""
        late = self._parameters.patience * self._parameters.lease
        waiting = (
            each
            for each in ranked
            if late and each.participant.starved is not None and self._now - each.participant.starved >= late
        )
        first = next(waiting, None)
        if first is None:
            return
        gang = first.participant.demand.smallest_step(0, len(self._state.free))
        if gang:
            why = f"it had nothing for {self._parameters.patience} leases: it goes before the auction"
            yield from self._granted(settled(self._state, {first.app: gang}), why)
        else:
            self._until = min(self._until, self._last_lease())

    def _last_lease(self) -> Time:
        """Return when the last lease ends: with all leases ending by then, every GPU will be free at once."""
        return max(
            (end for row in self._state.apps.values() for end in row.leases.values()), default=self._until
        )

    def _granted(self, places: Mapping[int, Sequence[int]], why: str) -> Iterator[Grant]:
        for app, gpus in places.items():
            yield Grant(app, tuple(sorted(gpus)), self._until, why)


def _told(
    each: RankedParticipant, position: int, apps: int, share: Share, keeps: int, goods: Sequence[FreeMachine]
) -> str:
    place = "the worst" if position == 1 else f"number {position} from the worst"
    offered = sum(machine.free for machine in goods)
    paid = len(share.won) - keeps
    return (
        f"its rho is {each.rho:.2f}, {place} of {apps}; "
        f"the auction gave it {len(share.won)} of {offered} GPUs"
        + (f" and kept {paid} as payment" if paid else "")
    )
