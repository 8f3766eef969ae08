"""What is won becomes GPUs: those that the pieces of each bidder lie on, and those that it keeps."""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.cluster.auction.goods import FreeMachine
from astrarium.cluster.auction.program import AuctionProgram
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
        self._places = [list(machines) for machines in places]
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
        racks = {self._goods[machine].rack for machine in self._at[bidder]}
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
