"""The partial allocation auction is the proportionally fair assignment, less a hidden payment (Pseudocode 1).

Bidder i keeps the fraction c_i of what it has won: by what factor the others' product of 1/rho is smaller
because i is there. GPUs are indivisible, so whoever holds the auction rounds c_i x GPUs (down, nothing would
be left of a lot of one GPU that anybody else wanted); the rest is left over.

What holds, and is tested:
- The assignment before payments is Pareto efficient among the options bid. After them it is not: GPUs are
  left over.
- No two bidders would both like to swap what they have won: if one gained a factor by the swap, the other
  would lose at least as much. Freedom from envy holds for goods that can be divided; for whole GPUs it
  cannot (two like bidders, one GPU).
- If the fraction c_i of a lot is worth c_i times the lot, no lie about a table pays, whatever the others
  bid: c_i / rho_i is then the product of all over something that i has no hand in. This is the homogeneity
  that Theorem 3.2 assumes.
- With whole GPUs, work that speeds up less and less, and nothing being worth 1/rho_old rather than 0, that
  is lost. On average over small auctions drawn at random, lies about places (the paper's) and modest ones
  still lose; to make too much of many GPUs pays: 0.045 in log(1/rho), standard error 0.018, over 600.
- A table times a number is the same table: to claim to be worse off throughout changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, fsum, log
from typing import NamedTuple

from astrarium.cluster.auction.bids import Bid
from astrarium.cluster.auction.goods import FreeMachine
from astrarium.cluster.auction.handout import won_gpus
from astrarium.cluster.auction.program import BILLION, NOTHING, AuctionProgram, program
from astrarium.cluster.auction.search import USUAL, Assignment, Hint, SearchEffort, best


class Share(NamedTuple):
    """What one bidder has won, of which it keeps a fraction. *option* is the number in the bid of what was
    won, None if nothing; *rho* what all of it leads to."""

    bidder: int
    option: int | None
    rho: float
    fraction: float  # c_i; 1 if nothing was won
    won: tuple[int, ...]


class AuctionResult(NamedTuple):
    """The shares of all bidders. *exact*: every program was solved to the end. If not, *gap* is how much
    larger the sum of log(1/rho) could be at most; fractions may then be off as well."""

    shares: tuple[Share, ...]
    exact: bool
    gap: float = 0.0


class FairAssignment(NamedTuple):
    """The proportionally fair assignment: rows of the program's tables, and how much each bidder keeps."""

    rows: list[int]
    fractions: list[float]
    exact: bool
    gap: float = 0.0


def auction(goods: Sequence[FreeMachine], bids: Sequence[Bid], effort: SearchEffort = USUAL) -> AuctionResult:
    """Give the goods out proportionally fair, less the hidden payments that keep bids honest."""
    numbers = program(goods, bids)
    fair = fractions(numbers, bids, effort)
    won = won_gpus(numbers, fair.rows, goods)
    options = [int(table.option[row]) for table, row in zip(numbers.tables, fair.rows, strict=True)]
    shares = tuple(map(_share, bids, options, won, fair.fractions))
    return AuctionResult(shares, fair.exact, fair.gap)


def fractions(numbers: AuctionProgram, bids: Sequence[Bid], effort: SearchEffort = USUAL) -> FairAssignment:
    """Return the fair assignment: a program for all, and one without each who is in somebody's way."""
    if not bids:
        return FairAssignment([], [], True)
    answer = best(numbers, range(len(bids)), effort)
    payments = _Payments(numbers, bids, answer, effort)
    kept_fractions = [payments.fraction(bidder) for bidder in range(len(bids))]
    return FairAssignment(
        answer.rows, kept_fractions, payments.exact, 0.0 if answer.exact else answer.loss / BILLION
    )


class _Payments:
    """The payments of one auction: each takes a program without the bidder that pays, but for bidders that
    are alike. *exact* until one of these programs was not solved to the end."""

    def __init__(
        self, numbers: AuctionProgram, bids: Sequence[Bid], answer: Assignment, effort: SearchEffort
    ) -> None:
        self._numbers = numbers
        self._bids = bids
        self._rows = answer.rows
        self._effort = effort if answer.exact else effort.less()
        self._without: dict[bytes, float] = {}  # bidders alike are left out once
        self.exact = answer.exact
        self._answer = answer

    def fraction(self, bidder: int) -> float:
        others = [other for other in range(len(self._bids)) if other != bidder]
        nothing_won = self._numbers.tables[bidder].gpus[self._rows[bidder]] == 0
        if nothing_won or not any(self._rows[other] for other in others):
            return 1.0  # nothing to pay for, or nobody is hurt: row 0 is what a bidder likes best
        beside = self._logs(others, [self._rows[other] for other in others])
        return min(1.0, exp(beside - self._alone(bidder, others)))

    def _alone(self, bidder: int, others: list[int]) -> float:
        """Return what the others would gain by themselves."""
        alike = self._numbers.tables[bidder].same_as()
        if alike not in self._without:
            answer = best(self._numbers, others, self._effort, self._hint(others))
            self.exact &= answer.exact
            self._without[alike] = self._logs(others, answer.rows)
        return self._without[alike]

    def _hint(self, others: list[int]) -> Hint:
        answer = self._answer
        rows = [self._rows[other] for other in others]
        columns = [answer.columns[other] for other in others] if answer.columns else None
        return Hint(answer.loss, columns, rows, answer.tight, answer.prices)

    def _logs(self, bidders: list[int], rows: list[int]) -> float:
        logs = (_log(self._numbers, self._bids, *pair) for pair in zip(bidders, rows, strict=True))
        return fsum(logs)


def _log(numbers: AuctionProgram, bids: Sequence[Bid], bidder: int, row: int) -> float:
    """Return what a bidder gains, before rounding to billionths."""
    option = int(numbers.tables[bidder].option[row])
    return 0.0 if option == NOTHING else log(bids[bidder].rho_old / bids[bidder].options[option].rho)


def _share(bid: Bid, option: int, won: tuple[int, ...], fraction: float) -> Share:
    if option == NOTHING:
        return Share(bid.bidder, None, bid.rho_old, 1.0, ())
    return Share(bid.bidder, option, bid.options[option].rho, fraction, won)
