"""One round of Themis: who is offered the free GPUs, what the auction makes of the bids, and what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import ceil, floor
from typing import Literal, NamedTuple, Protocol

from astrarium.cluster.actions import Grant
from astrarium.cluster.auction.goods import FreeMachine, free_machines
from astrarium.cluster.auction.keeping import kept
from astrarium.cluster.auction.partial import Outcome, Share, auction
from astrarium.cluster.policies._settling import at_home, settled
from astrarium.cluster.policies._themis_seats import Seat, Seats
from astrarium.cluster.state import ClusterState
from astrarium.core.units import Time

HAIR = 1e-9
ENOUGH = "there were enough for all who asked"


class Rules(Protocol):
    """Those of the policy's parameters that matter here."""

    @property
    def f(self) -> float: ...
    @property
    def lease(self) -> Time: ...
    @property
    def grid(self) -> int: ...
    @property
    def bidders(self) -> int: ...
    @property
    def fewest(self) -> int: ...
    @property
    def gang_first(self) -> bool: ...
    @property
    def leftovers(self) -> Literal["chance", "worst"]: ...
    @property
    def patience(self) -> int: ...


class Ranked(NamedTuple):
    rho: float
    seat: Seat
    app: int


class Round:
    """*order* is chance: in which order *hungry* apps outside the auction are asked to take what is left."""

    def __init__(
        self,
        now: Time,
        state: ClusterState,
        seats: Seats,
        hungry: Sequence[Seat],
        rules: Rules,
        order: Sequence[int],
    ) -> None:
        self._now, self._state, self._rules = now, state, rules
        self._hungry, self._order = hungry, order
        self._seats = seats
        self._until = lease_end(now, rules.lease, rules.grid)
        self.outcome: Outcome | None = None  # of the auction, once there was one

    def grants(self) -> Iterator[Grant]:
        free = len(self._state.free)
        if sum(seat.most - len(seat.row.leases) for seat in self._hungry) <= free:
            yield from self._granted({seat.app: seat.wants(free) for seat in self._hungry}, ENOUGH)
            return
        ranked = self._ranked()
        yield from self._overdue(ranked)
        bidders = self._bidders(ranked)
        if bidders:
            yield from self._auctioned(bidders, ranked)
            yield from self._left_over(bidders, ranked)

    # visibility

    def _ranked(self) -> list[Ranked]:
        """The worst first; of those alike, who came first."""
        now, state = self._now, self._state
        found = [
            (-seat.agent.rho(now, seat.row, state), seat.row.arrived, seat.app, seat) for seat in self._hungry
        ]
        return [Ranked(-rho, seat, app) for rho, _, app, seat in sorted(found)]

    def _bidders(self, ranked: Sequence[Ranked]) -> list[Ranked]:
        """The worst of those that could use something of what is offered."""
        count = max(self._rules.fewest, ceil((1.0 - self._rules.f) * len(self._state.apps) - HAIR))
        free, found = len(self._state.free), list[Ranked]()
        for each in ranked if free else ():
            if len(found) == min(count, self._rules.bidders):
                break
            if each.seat.wants(free):
                found.append(each)
        return found

    # allocation

    def _auctioned(self, bidders: Sequence[Ranked], ranked: Sequence[Ranked]) -> Iterator[Grant]:
        goods = free_machines(self._state.floor, self._state.free)
        bids = [each.seat.agent.bid(self._now, each.seat.row, self._state, goods) for each in bidders]
        self.outcome = auction(goods, bids)
        shares = {share.bidder: share for share in self.outcome.shares if share.won}
        keeps = {
            each.app: self._keeps(each.seat, shares[each.app], goods)
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
                yield Grant(each.app, tuple(sorted(places[each.app])), self._until, told)

    def _keeps(self, seat: Seat, share: Share, goods: Sequence[FreeMachine]) -> tuple[int, ...]:
        """Less the payment, and less what would be of no use: a part of a gang."""
        count = seat.appetite.more(floor(share.fraction * len(share.won) + HAIR))
        if not count and self._rules.gang_first and not seat.row.leases:
            count = seat.appetite.step(0, len(share.won))
        return kept(share.won, count, goods)

    def _left_over(self, bidders: Sequence[Ranked], ranked: Sequence[Ranked]) -> Iterator[Grant]:
        inside = {each.app for each in bidders}
        seats, who = [self._hungry[place] for place in self._order], "chance"
        if self._rules.leftovers == "worst":
            seats, who = [each.seat for each in ranked], "its rho"
        outside = [seat for seat in seats if seat.app not in inside]
        why = f"{len(bidders)} who fare worse were asked first; {who} gave it what their auction left over"
        yield from self._granted(self._dealt(outside), why)
        again = {}
        free = len(self._state.free)
        for each in bidders:
            again[each.app] = each.seat.wants(free)
            free -= again[each.app]
        yield from self._granted(again, "they were left over, and no other app could use them")

    def _dealt(self, seats: Sequence[Seat]) -> dict[int, int]:
        """One step each, again and again, as long as there is something that somebody can use."""
        free, given = len(self._state.free), dict.fromkeys((seat.app for seat in seats), 0)
        asking = list(seats)
        while free and asking:
            still = []
            for seat in asking:
                step = seat.appetite.step(given[seat.app], free)
                if step:
                    given[seat.app] += step
                    free -= step
                    still.append(seat)
            asking = still
        return given

    # who has waited too long

    def _overdue(self, ranked: Sequence[Ranked]) -> Iterator[Grant]:
        late = self._rules.patience * self._rules.lease
        waiting = (
            each
            for each in ranked
            if late and each.seat.starved is not None and self._now - each.seat.starved >= late
        )
        first = next(waiting, None)
        if first is None:
            return
        gang = first.seat.appetite.step(0, len(self._state.free))
        if gang:
            why = f"it had nothing for {self._rules.patience} leases: it goes before the auction"
            yield from self._granted({first.app: gang}, why)
        else:
            self._until = min(self._until, self._last_lease())

    def _last_lease(self) -> Time:
        """With all leases ending by then, every GPU will be free at once."""
        return max(
            (end for row in self._state.apps.values() for end in row.leases.values()), default=self._until
        )

    def _granted(self, shares: dict[int, int], why: str) -> Iterator[Grant]:
        some = {app: count for app, count in shares.items() if count}
        for app, gpus in settled(self._state, some).items():
            yield Grant(app, tuple(sorted(gpus)), self._until, why)


def lease_end(now: Time, lease: Time, grid: int) -> Time:
    """The instant of the grid that is nearest to a whole lease from now."""
    if not grid:
        return now + lease
    step = max(1, lease // grid)
    return -(-(now + lease - step // 2) // step) * step


def _told(
    each: Ranked, position: int, apps: int, share: Share, keeps: int, goods: Sequence[FreeMachine]
) -> str:
    place = "the worst" if position == 1 else f"number {position} from the worst"
    offered = sum(machine.free for machine in goods)
    paid = len(share.won) - keeps
    return (
        f"its rho is {each.rho:.2f}, {place} of {apps}; "
        f"the auction gave it {len(share.won)} of {offered} GPUs"
        + (f" and kept {paid} as payment" if paid else "")
    )
