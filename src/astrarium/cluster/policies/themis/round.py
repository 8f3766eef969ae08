"""One round of Themis offers free GPUs to the apps that fare worst, auctions them, and hands out the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import ceil, floor
from typing import NamedTuple

from astrarium.cluster.agents.participants import Participant
from astrarium.cluster.auction.goods import FreeMachine, free_machines
from astrarium.cluster.auction.handout import kept
from astrarium.cluster.auction.partial_allocation import AuctionResult, Share, auction
from astrarium.cluster.auction.tally import stopped_early
from astrarium.cluster.contract import Grant
from astrarium.cluster.policies._lease_ends import lease_end
from astrarium.cluster.policies.themis.parameters import ThemisParameters
from astrarium.cluster.policies.themis.places import at_home, preferred, settled
from astrarium.cluster.state import ClusterState
from astrarium.core.quantities import Time

HAIR = 1e-9
ENOUGH = "there were enough for all who asked"


class RankedParticipant(NamedTuple):
    """An app that wants GPUs, with its rho."""

    rho: float
    participant: Participant
    app: int


class Round:
    """It offers free GPUs to the worst-off apps, and gives the rest to others. Of all chance, *order* says in
    which order apps outside the auction get what is left, and *chance* (numbers from 0 to 1, one for each
    winner) how payments are rounded."""

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
        if sum(participant.most - len(participant.row.leases) for participant in self._wanting) <= free:
            wants = {participant.app: participant.wants(free) for participant in self._wanting}
            yield from self._granted(preferred(self._now, self._state, wants), ENOUGH)
            return
        ranked = self._ranked()
        yield from self._overdue(ranked)
        bidders = self._bidders(ranked)
        if bidders:
            yield from self._auctioned(bidders, ranked)
            yield from self._left_over(bidders, ranked)

    def _ranked(self) -> list[RankedParticipant]:
        """Return the apps that want GPUs, the worst first; of those alike, who came first."""
        now = self._now
        state = self._state
        keyed = [
            (
                -participant.agent.rho(now, participant.row, state),
                participant.row.arrived,
                participant.app,
                participant,
            )
            for participant in self._wanting
        ]
        return [RankedParticipant(-rho, participant, app) for rho, _, app, participant in sorted(keyed)]

    def _bidders(self, ranked: Sequence[RankedParticipant]) -> list[RankedParticipant]:
        """Return the worst of the apps that could use something of what is offered."""
        count = max(1, ceil((1.0 - self._parameters.f) * len(self._state.apps) - HAIR))
        free = len(self._state.free)
        able = (one for one in ranked if free and one.participant.wants(free))
        return list(islice(able, count))

    def _auctioned(
        self, bidders: Sequence[RankedParticipant], ranked: Sequence[RankedParticipant]
    ) -> Iterator[Grant]:
        goods = free_machines(self._state.floor, self._state.free)
        bids = [
            bidder.participant.agent.bid(self._now, bidder.participant.row, self._state, goods)
            for bidder in bidders
        ]
        self.outcome = auction(goods, bids)
        shares = {share.bidder: share for share in self.outcome.shares if share.won}
        keeps = {
            bidder.app: self._keeps(bidder.participant, shares[bidder.app], goods)
            for bidder in bidders
            if bidder.app in shares
        }
        won: dict[int, dict[int, int]] = {}
        for app, gpus in keeps.items():
            for machine, count in Counter(self._state.floor.machine_of(gpu) for gpu in gpus).items():
                won.setdefault(machine, {})[app] = count
        places = at_home(won, goods, self._state)
        positions = {one.app: place for place, one in enumerate(ranked, 1)}
        for bidder in bidders:
            if places.get(bidder.app):
                reason = _why_granted(
                    bidder,
                    positions[bidder.app],
                    len(ranked),
                    shares[bidder.app],
                    len(places[bidder.app]),
                    goods,
                )
                why = reason + stopped_early(self.outcome)
                yield Grant(bidder.app, tuple(sorted(places[bidder.app])), self._until, why)

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
        inside = {bidder.app for bidder in bidders}
        participants = [self._wanting[place] for place in self._order]
        who = "chance"
        if self._parameters.leftovers == "worst":
            participants = [one.participant for one in ranked]
            who = "its rho"
        outside = [participant for participant in participants if participant.app not in inside]
        why = f"{len(bidders)} who fare worse were asked first; {who} gave it what their auction left over"
        yield from self._granted(settled(self._state, self._dealt(outside)), why)
        again = {}
        free = len(self._state.free)
        for bidder in bidders:
            again[bidder.app] = bidder.participant.wants(free)
            free -= again[bidder.app]
        yield from self._granted(
            settled(self._state, again), "they were left over, and no other app could use them"
        )

    def _dealt(self, participants: Sequence[Participant]) -> dict[int, int]:
        """Return GPUs for each app: one step each, again and again, while somebody can use some."""
        free = len(self._state.free)
        asking = list(participants)
        dealt = {participant.app: 0 for participant in participants}
        while free and asking:
            still = []
            for participant in asking:
                step = participant.demand.smallest_step(dealt[participant.app], free)
                if step:
                    dealt[participant.app] += step
                    free -= step
                    still.append(participant)
            asking = still
        return dealt

    def _overdue(self, ranked: Sequence[RankedParticipant]) -> Iterator[Grant]:
        """Grant a gang to the app that has waited too long; if it does not fit, end all leases together."""
        late = self._parameters.patience * self._parameters.lease
        waiting = (
            one
            for one in ranked
            if late and one.participant.starved is not None and self._now - one.participant.starved >= late
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


def _why_granted(
    bidder: RankedParticipant,
    position: int,
    apps: int,
    share: Share,
    keeps: int,
    goods: Sequence[FreeMachine],
) -> str:
    place = "the worst" if position == 1 else f"number {position} from the worst"
    offered = sum(machine.free for machine in goods)
    paid = len(share.won) - keeps
    return (
        f"its rho is {bidder.rho:.2f}, {place} of {apps}; "
        f"the auction gave it {len(share.won)} of {offered} GPUs"
        + (f" and kept {paid} as payment" if paid else "")
    )
