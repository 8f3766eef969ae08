"""How well the auctions of a run were solved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:  # whoever keeps a tally need not load the auction
    from astrarium.cluster.auction.partial import Outcome


class Tally(msgspec.Struct, frozen=True):
    """*unsolved*: auctions in which a program was not solved to the end. *largest_gap*: how much larger the
    sum of log(1/rho) of the bidders could have been at most, in the worst of these."""

    auctions: int = 0
    unsolved: int = 0
    largest_gap: float = 0.0

    def after(self, outcome: Outcome) -> Tally:
        return Tally(
            self.auctions + 1, self.unsolved + (not outcome.exact), max(self.largest_gap, outcome.gap)
        )


@runtime_checkable
class HoldsAuctions(Protocol):
    """A policy that does, and counts them."""

    @property
    def tally(self) -> Tally: ...


def tally_of(policy: object) -> Tally | None:
    """None: it holds no auctions."""
    return policy.tally if isinstance(policy, HoldsAuctions) else None
