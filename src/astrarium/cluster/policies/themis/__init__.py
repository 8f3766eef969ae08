"""Themis (Mahajan et al., NSDI 2020) leases GPUs by auction to the apps that are treated worst.

Whenever GPUs are free and more are wanted, there is a round. Visibility: all apps say how they fare (rho with
what they have); the worst are offered the GPUs, and bid a table. Allocation: the partial-allocation auction
gives each winner a part of what it has won, and the rest as hidden payment to apps outside, at random.

*f*, the fairness knob: section 4.2.2 offers to "a fraction f" of the apps, Pseudocode 1 and section 3.3.2 to
the worst 1 - f. Ours is the second: with f = 1 a single app bids, as Figure 19 says. At least one always
does.

What the paper leaves open, and what we do:
- Leases end on a `grid` of instants, so that auctions see machines and not splinters. The finer it is, the
  sooner a newcomer finds GPUs free. With 0, every lease counts from its grant.
- Payments are rounded by chance to GPUs that jobs can use: right on average, where rounding down would take
  small lots whole. A winner that could run nothing otherwise keeps its smallest gang, whatever the payment.
- Payments go to apps outside the auction, in turns, in an order of chance: the paper's. With `leftovers` by
  rho the worst come first. That is fairer, but gives an app a reason to overstate its rho, as long as it is
  not so much that it has to bid.
- GPUs that nobody outside can use go to bidders, the worst first: no GPU is idle that somebody could use.
- Who has had nothing for `patience` leases, one at a time, gets a gang before the auction; where too few GPUs
  are free for it, all leases end together so that they will be.
- With enough for all who ask there is no auction: those to whom a bad place costs most choose first.
- With few apps 1 - f of them is a single bidder, who takes turns with others on the whole cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astrarium.cluster.agents.participants import Participants, touched
from astrarium.cluster.agents.self_report import HONEST, SelfReport, erring, lying
from astrarium.cluster.auction.tally import AuctionTally
from astrarium.cluster.contract import Allocations, Event, Grant, LeaseExpired, Revoke
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.policies._lease_ends import spared
from astrarium.cluster.policies.themis.parameters import ThemisParameters
from astrarium.cluster.policies.themis.round import Round
from astrarium.cluster.state import ClusterState
from astrarium.core.quantities import Time
from astrarium.core.random_streams import stream


@cluster_policies.register("themis")
class Themis:
    Parameters = ThemisParameters

    def __init__(self, parameters: ThemisParameters) -> None:
        self._parameters = parameters
        self._participants = Participants(parameters.definition, self._report)
        self.tally = AuctionTally()  # of its auctions

    def decide(self, now: Time, events: Sequence[Event], state: ClusterState) -> Allocations:
        named = touched(events, state)
        self._participants.changed(now, named, state)
        expired = {event.app for event in events if type(event) is LeaseExpired}
        yield from self._spared(now, named - expired, state)  # those who lost a part may get it back
        while True:
            yield from self._rounds(now, state)
            returned = list(self._spared(now, named, state))
            yield from returned
            if not returned:
                return

    def standing(self, now: Time, state: ClusterState) -> list[tuple[int, str]]:
        """Return who wants GPUs, those first who fare worst: they are offered what is free."""
        ranked = [
            (participant.agent.rho(now, participant.row, state), participant.row)
            for participant in self._participants.wanting(now, state)
        ]
        ranked.sort(key=lambda pair: (-pair[0], pair[1].arrived, pair[1].app.id))
        return [(row.app.id, f"its rho would be {rho:.2f} with what it has") for rho, row in ranked]

    def _rounds(self, now: Time, state: ClusterState) -> Iterator[Grant]:
        if not state.free:
            return
        wanting = self._participants.wanting(now, state)
        if wanting:
            mine = self._parameters
            count = len(wanting)
            order = stream(mine.seed, "themis", "leftovers", now).permutation(count).tolist()
            chance = iter(stream(mine.seed, "themis", "payments", now).random(count).tolist())
            one = Round(now, state, wanting, mine, order, chance)
            for grant in one.grants():
                yield grant
                self._participants.changed(now, (grant.app,), state)
            if one.outcome is not None:
                self.tally = self.tally.after(one.outcome)

    def _spared(self, now: Time, apps: set[int], state: ClusterState) -> Iterator[Revoke]:
        for revoke in spared(sorted(apps), state):
            yield revoke
            self._participants.changed(now, (revoke.app,), state)

    def _report(self, app: int) -> SelfReport:
        """Return what an app says of itself, at every auction the same."""
        mine = self._parameters
        report = HONEST
        if mine.error:
            report = erring(mine.error, iter(stream(mine.seed, "themis", "errors", app).random(2).tolist()))
        lie = mine.lies.get(app, 0.0)
        return lying(report, lie, mine.lie_near) if lie else report
