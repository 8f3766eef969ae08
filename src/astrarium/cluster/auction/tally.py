"""A tally says how well the auctions of a run were solved."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from astrarium.cluster.auction.partial_allocation import AuctionResult


class AuctionTally(msgspec.Struct, frozen=True):
    """How well the auctions of a run were solved. *unsolved*: auctions in which a program was not solved to
    the end. *largest_gap*: how much larger the sum of log(1/rho) of the bidders could have been at most, in
    the worst of these."""

    auctions: int = 0
    unsolved: int = 0
    largest_gap: float = 0.0

    def after(self, outcome: AuctionResult) -> AuctionTally:
        return AuctionTally(
            self.auctions + 1, self.unsolved + (not outcome.exact), max(self.largest_gap, outcome.gap)
        )


@runtime_checkable
class HoldsAuctions(Protocol):
    """A policy that holds auctions, or asks others that may, keeps a tally of them. None: these hold none."""

    @property
    def tally(self) -> AuctionTally | None: ...


def tally_of(policy: object) -> AuctionTally | None:
    """Return how well the auctions of a policy were solved. None: it holds none."""
    return policy.tally if isinstance(policy, HoldsAuctions) else None


def stopped_early(result: AuctionResult) -> str:
    """Return what to add to the reasons of an auction whose search was stopped early; nothing otherwise."""
    if result.exact:
        return ""
    if not result.gap:
        return " (stopped early: payments are estimates)"
    return f" (stopped early: the sum of log(1/rho) could be larger by at most {result.gap:.2g})"
