"""An auction becomes a program: one option for each bidder, pieces that fit, the largest sum of log(1/rho).

Only what an option gains over having nothing matters: log(rho_old / rho), counted in whole billionths, so
that sums are exact and equal means equal. A table that is another's times a number is the same table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import log
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from astrarium.cluster.auction.bids import Bid, GpuPiece
from astrarium.cluster.auction.capacity import CapacityRow, PieceNeed, capacity_rows, decide_alone
from astrarium.cluster.auction.goods import FreeMachine, MachineClass, classes
from astrarium.cluster.auction.packing import Packer

BILLION = 10**9
NOTHING = -1
WORD = 2**62
COLUMNS = 16  # compared at a time

Ints: TypeAlias = NDArray[np.int64]


class BidTable(NamedTuple):
    """One bid, row by row: the largest gain first, then the fewest GPUs; the last row is nothing at all."""

    option: Ints  # its number in the bid; NOTHING
    gain: Ints
    gpus: Ints
    counts: Ints  # of each need
    weights: Ints  # in each row of the capacity
    key: Ints  # the counts in few words: they add up as the counts do

    def same_as(self) -> bytes:
        """Return a key that is equal for bidders who cannot be told apart."""
        return self.gain.tobytes() + b"|" + self.counts.tobytes()


class AuctionProgram(NamedTuple):
    """One auction in numbers: machines, pieces, the capacity for them, and the table of each bidder."""

    classes: list[MachineClass]
    needs: list[PieceNeed]
    capacity: Ints  # of each row
    rows_decide: bool  # what obeys the rows fits
    tables: list[BidTable]
    packer: Packer


class _Alternative(NamedTuple):
    option: int
    gain: int
    needs: dict[int, int]


def program(goods: Sequence[FreeMachine], bids: Sequence[Bid]) -> AuctionProgram:
    kinds = classes(goods, *_what_matters(bids))
    numbers: dict[PieceNeed, int] = {}
    racks = sorted({machine.rack for machine in goods if machine.free})
    pieces = _Pieces(kinds, numbers)
    alternatives = [list(_alternatives(bid, racks, pieces)) for bid in bids]
    needs = list(numbers)
    counts = [_counts(own, len(needs)) for own in alternatives]
    weights, capacity = _binding(capacity_rows(needs, kinds), counts, len(needs))
    words = _words(counts, len(needs))
    decide = decide_alone(needs, kinds)
    sizes = np.array([need.gpus for need in needs], np.int64)
    tables = [
        _table(own, own_counts, heavy, words, sizes, capacity, decide)
        for own, own_counts, heavy in zip(alternatives, counts, weights, strict=True)
    ]
    return AuctionProgram(kinds, needs, capacity, decide, tables, Packer(needs, kinds))


def _what_matters(bids: Sequence[Bid]) -> tuple[bool, set[int]]:
    """Return whether racks matter, and the machines that are named."""
    pieces = [piece for bid in bids for option in bid.options for piece in option.pieces]
    one_rack = any(option.one_rack for bid in bids for option in bid.options)
    racks = one_rack or any(piece.rack is not None for piece in pieces)
    return racks, {piece.machine for piece in pieces if piece.machine is not None}


class _Pieces:
    """Numbers for the needs that pieces are, given once for each kind of piece."""

    def __init__(self, kinds: list[MachineClass], numbers: dict[PieceNeed, int]) -> None:
        self._kinds = kinds
        self._numbers = numbers
        self._known: dict[GpuPiece, int | None] = {}

    def counted(self, pieces: Mapping[GpuPiece, int], rack: int | None) -> dict[int, int] | None:
        """Return how many pieces there are of each need, all in a rack if one is given. None: some piece fits
        nowhere."""
        needs: dict[int, int] = {}
        for piece, count in pieces.items():
            number = self._number(piece if rack is None else GpuPiece(piece.gpus, piece.machine, rack))
            if number is None:
                return None
            needs[number] = needs.get(number, 0) + count
        return needs

    def _number(self, piece: GpuPiece) -> int | None:
        if piece not in self._known:
            need = PieceNeed(
                piece.gpus, frozenset(n for n, kind in enumerate(self._kinds) if _takes(kind, piece))
            )
            number = self._numbers.setdefault(need, len(self._numbers)) if need.classes else None
            self._known[piece] = number
        return self._known[piece]


def _takes(kind: MachineClass, piece: GpuPiece) -> bool:
    return (
        kind.free >= piece.gpus
        and piece.machine in (None, kind.machine)
        and (piece.rack is None or piece.rack == kind.rack)
    )


def _alternatives(bid: Bid, racks: list[int], pieces: _Pieces) -> Iterator[_Alternative]:
    """Yield options that are worth something; one for each rack where all pieces are to lie in one."""
    for number, option in enumerate(bid.options):
        gain = round(BILLION * log(bid.rho_old / option.rho))
        counted = Counter(option.pieces) if gain > 0 else {}
        for rack in _racks(counted, racks) if option.one_rack else (None,):
            needs = pieces.counted(counted, rack)
            if needs:
                yield _Alternative(number, gain, needs)
    yield _Alternative(NOTHING, 0, {})


def _racks(pieces: Iterable[GpuPiece], racks: list[int]) -> list[int]:
    return [rack for rack in racks if all(piece.rack in (None, rack) for piece in pieces)]


def _counts(own: list[_Alternative], needs: int) -> Ints:
    counts = np.zeros((len(own), needs), np.int64)
    for row, alternative in enumerate(own):
        for need, count in alternative.needs.items():
            counts[row, need] = count
    return counts


def _binding(rows: list[CapacityRow], counts: list[Ints], needs: int) -> tuple[list[Ints], Ints]:
    """Return the weights of each bidder's options, and the capacity, in rows that could be broken at all."""
    by_need = np.array([row.weights for row in rows], np.int32).reshape(len(rows), needs).T.copy()
    capacity = np.array([row.capacity for row in rows], np.int64)
    weights = [_times(own, by_need) for own in counts]
    wanted = sum((own.max(axis=0) for own in weights), np.zeros(len(rows), np.int64))
    return [own[:, wanted > capacity].astype(np.int64) for own in weights], capacity[wanted > capacity]


def _times(counts: Ints, weights: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return counts @ weights, need by need: options have few of them."""
    totals = np.zeros((len(counts), weights.shape[1]), np.int32)
    for need in np.flatnonzero(counts.any(axis=0)):
        rows = np.flatnonzero(counts[:, need])
        totals[rows] += counts[rows, need, None].astype(np.int32) * weights[need]
    return totals


def _words(counts: list[Ints], needs: int) -> Ints:
    """Return digits of their own for the count of every need, in as few words of 62 bits as will do."""
    most = sum((own.max(axis=0) for own in counts), np.zeros(needs, np.int64)) + 1
    words: list[dict[int, int]] = [{}]
    value = 1
    for need, base in enumerate(int(count) for count in most):
        if value * base > WORD:
            words.append({})
            value = 1
        words[-1][need] = value
        value *= base
    return np.array([[word.get(need, 0) for word in words] for need in range(needs)], np.int64).reshape(
        needs, len(words)
    )


def _table(
    own: list[_Alternative],
    counts: Ints,
    weights: Ints,
    words: Ints,
    sizes: Ints,
    capacity: Ints,
    decide: bool,
) -> BidTable:
    gain = np.array([alternative.gain for alternative in own])
    option = np.array([alternative.option for alternative in own])
    table = BidTable(option, gain, counts @ sizes, counts, weights, counts @ words)
    fits: NDArray[np.bool_] = np.all(table.weights <= capacity, axis=1)
    order = np.lexsort((np.arange(len(own)), table.gpus, -gain))
    order = order[fits[order]]
    sorted_table = BidTable(*(column[order] for column in table))
    if len(order) <= 2:  # one thing or nothing
        return sorted_table
    worth = _worth_having(sorted_table, decide)
    return BidTable(*(column[worth] for column in sorted_table))


def _worth_having(table: BidTable, rows_decide: bool) -> NDArray[np.bool_]:
    """Return the rows that no earlier row, which gains as much or more, beats with pieces that fit wherever
    these do.

    Where the rows decide, less weight fits wherever more does; else only fewer of the same pieces do.
    """
    easy = np.column_stack((table.gpus, table.weights if rows_decide else table.counts))
    easy = easy[:, easy.any(axis=0)]
    easy = easy.astype(np.min_scalar_type(int(easy.max(initial=0))))  # an eighth as much to compare
    bits = np.uint64(1) << np.arange(easy.shape[1], dtype=np.uint64) % np.uint64(64)
    kinds = np.bitwise_or.reduce(np.where(easy > 0, bits, np.uint64(0)), axis=1)  # most pairs differ in these
    earlier, later = np.nonzero(np.triu((kinds[:, None] & ~kinds) == 0, 1))
    for first in range(0, easy.shape[1], COLUMNS):
        part = easy[:, first : first + COLUMNS]
        no_harder = (part[earlier] <= part[later]).all(axis=1)
        earlier = earlier[no_harder]
        later = later[no_harder]
    worth = np.ones(len(easy), np.bool_)
    worth[later] = False
    return worth
