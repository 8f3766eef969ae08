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

import msgspec

from astrarium.cluster.auction.goods import Bid, FreeMachine
from astrarium.cluster.auction.program import BILLION, NOTHING, AuctionProgram, program
from astrarium.cluster.auction.search import USUAL, Assignment, Hint, SearchEffort, best
from astrarium.core.errors import BrokenBooks


def won_gpus(
    program: AuctionProgram, rows: Sequence[int], goods: Sequence[FreeMachine]
) -> list[tuple[int, ...]]:
    """Return the GPUs of each bidder, none of them twice; pieces lie on one machine or in one rack where they
    can."""
    counts = [table.counts[row] for table, row in zip(program.tables, rows, strict=True)]
    total = [sum(int(own[need]) for own in counts) for need in range(len(program.needs))]
    packed = program.packer.packed(total)
    if packed is None:
        raise BrokenBooks("what the search has found does not fit")
    hand = _Handout(goods, packed, len(counts))
    for need in sorted(range(len(program.needs)), key=lambda number: -program.needs[number].gpus):
        for bidder, own in enumerate(counts):
            for _ in range(int(own[need])):
                hand.give(bidder, need, program.needs[need].gpus)
    return [tuple(sorted(gpus)) for gpus in hand.given]


class _Handout:
    """The GPUs that are still there to be given, and the places for pieces that the packing has found."""

    def __init__(self, goods: Sequence[FreeMachine], places: list[list[int]], bidders: int) -> None:
        self._goods = goods
        self._places = [list(each) for each in places]
        self._left = [machine.ordered() for machine in goods]
        self._at: list[set[int]] = [set() for _ in range(bidders)]
        self.given: list[list[int]] = [[] for _ in range(bidders)]

    def give(self, bidder: int, need: int, gpus: int) -> None:
        place = min(self._places[need], key=lambda position: self._distance(bidder, position))
        self._places[need].remove(place)
        self._at[bidder].add(place)
        self.given[bidder] += self._left[place][:gpus]
        del self._left[place][:gpus]

    def _distance(self, bidder: int, position: int) -> tuple[bool, bool, int]:
        racks = {self._goods[each].rack for each in self._at[bidder]}
        return position not in self._at[bidder], self._goods[position].rack not in racks, position


def kept(won: Sequence[int], count: int, goods: Sequence[FreeMachine]) -> tuple[int, ...]:
    """Return what a winner keeps after the hidden payment: at most *count* of the GPUs *won*, on as few
    machines as can be: whole machines from the largest, and the smallest that holds the rest. GPUs of a
    machine are taken where they lie closest."""
    if count >= len(won):
        return tuple(won)
    mine = set(won)
    taken = list[int]()
    left = sorted(([gpu for gpu in machine.ordered() if gpu in mine] for machine in goods), key=len)
    while len(taken) < count:
        rest = count - len(taken)
        pile = next((pile for pile in left if len(pile) >= rest), left[-1])
        left.remove(pile)
        taken += pile[:rest]
    return tuple(sorted(taken))


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


def tally_of(policy: object) -> AuctionTally | None:
    """Return how well the auctions of a policy were solved, which it has as `tally`. None: it holds none."""
    return getattr(policy, "tally", None)


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


def stopped_early(result: AuctionResult) -> str:
    """Return what to add to the reasons of an auction whose search was stopped early; nothing otherwise."""
    if result.exact:
        return ""
    if not result.gap:
        return " (stopped early: payments are estimates)"
    return f" (stopped early: the sum of log(1/rho) could be larger by at most {result.gap:.2g})"


class FairAssignment(NamedTuple):
    """The proportionally fair assignment: rows of the program's tables, and how much each bidder keeps."""

    rows: list[int]
    fractions: list[float]
    exact: bool
    gap: float = 0.0


def auction(goods: Sequence[FreeMachine], bids: Sequence[Bid], effort: SearchEffort = USUAL) -> AuctionResult:
    """Hold an auction."""
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
    found = [payments.fraction(bidder) for bidder in range(len(bids))]
    return FairAssignment(answer.rows, found, payments.exact, 0.0 if answer.exact else answer.loss / BILLION)


class _Payments:
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
        logs = (_log(self._numbers, self._bids, *each) for each in zip(bidders, rows, strict=True))
        return fsum(logs)


def _log(numbers: AuctionProgram, bids: Sequence[Bid], bidder: int, row: int) -> float:
    """Return what a bidder gains, before rounding to billionths."""
    option = int(numbers.tables[bidder].option[row])
    return 0.0 if option == NOTHING else log(bids[bidder].rho_old / bids[bidder].options[option].rho)


def _share(bid: Bid, option: int, won: tuple[int, ...], fraction: float) -> Share:
    if option == NOTHING:
        return Share(bid.bidder, None, bid.rho_old, 1.0, ())
    return Share(bid.bidder, option, bid.options[option].rho, fraction, won)
