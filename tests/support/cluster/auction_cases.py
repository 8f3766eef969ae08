"""Small auctions: drawn at random, and solved by trying everything."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from random import Random

from astrarium.cluster.auction.bids import Bid, BidOption, GpuPiece
from astrarium.cluster.auction.goods import FreeMachine
from astrarium.cluster.auction.handout import kept
from astrarium.cluster.auction.partial_allocation import AuctionResult, Share
from astrarium.cluster.auction.program import BILLION, program
from astrarium.cluster.auction.search import Assignment, best

EMPTY = BidOption((), 1.0)


def option(sizes: Iterable[int], rho: float) -> BidOption:
    """An option with pieces of these sizes, on any machines."""
    return BidOption(tuple(GpuPiece(size) for size in sizes), rho)


def machines(*free: int, racks: Sequence[int] = ()) -> list[FreeMachine]:
    """With so many free GPUs each; a second rack number for each machine, if given."""
    goods = []
    first = 0
    for number, count in enumerate(free):
        rack = racks[number] if racks else 0
        goods.append(FreeMachine(number, tuple(range(first, first + count)), rack))
        first += count
    return goods


def solved(goods: Sequence[FreeMachine], bids: Sequence[Bid]) -> tuple[Assignment, list[BidOption | None]]:
    """The proportionally fair assignment, and the option that each gets."""
    numbers = program(goods, bids)
    answer = best(numbers, range(len(bids)))
    chosen = [int(table.option[row]) for table, row in zip(numbers.tables, answer.rows, strict=True)]
    return answer, [bid.options[n] if n >= 0 else None for bid, n in zip(bids, chosen, strict=True)]


def gain(bid: Bid, chosen: BidOption | None) -> int:
    return 0 if chosen is None else round(BILLION * math.log(bid.rho_old / chosen.rho))


def fits(pieces: Sequence[GpuPiece], goods: Sequence[FreeMachine], room: list[int]) -> bool:
    """Every machine is tried for every piece."""
    if not pieces:
        return True
    piece = pieces[0]
    for place, machine in enumerate(goods):
        if (
            room[place] >= piece.gpus
            and piece.machine in (None, machine.id)
            and piece.rack in (None, machine.rack)
        ):
            room[place] -= piece.gpus
            placed = fits(pieces[1:], goods, room)
            room[place] += piece.gpus
            if placed:
                return True
    return False


def together(chosen: Sequence[BidOption | None], goods: Sequence[FreeMachine]) -> bool:
    """Whether the options fit side by side, in some choice of racks for those who want one."""
    racks = sorted({machine.rack for machine in goods})
    for racks_wanted in product(*(list(racks) if o and o.one_rack else [None] for o in chosen)):
        pieces = [
            piece if rack is None else piece._replace(rack=rack)
            for o, rack in zip(chosen, racks_wanted, strict=True)
            for piece in (o.pieces if o else ())
        ]
        clash = any(
            o and rack is not None and any(piece.rack not in (None, rack) for piece in o.pieces)
            for o, rack in zip(chosen, racks_wanted, strict=True)
        )
        largest_first = sorted(pieces, key=lambda piece: -piece.gpus)
        if not clash and fits(largest_first, goods, [machine.free for machine in goods]):
            return True
    return False


def assignments(goods: Sequence[FreeMachine], bids: Sequence[Bid]) -> Iterator[tuple[BidOption | None, ...]]:
    """All that fit."""
    free = sum(machine.free for machine in goods)
    for chosen in product(*((None, *bid.options) for bid in bids)):
        if sum(choice.gpus for choice in chosen if choice) <= free and together(chosen, goods):
            yield chosen


Rank = tuple[int, int, tuple[int, ...]]


def rank(bids: Sequence[Bid], chosen: Sequence[BidOption | None]) -> Rank:
    """The larger, the better: the sum of gains, fewer GPUs, the gains of the first."""
    gains = tuple(gain(bid, choice) for bid, choice in zip(bids, chosen, strict=True))
    return sum(gains), -sum(choice.gpus for choice in chosen if choice), gains


def best_by_trying(goods: Sequence[FreeMachine], bids: Sequence[Bid]) -> Rank:
    return max(rank(bids, chosen) for chosen in assignments(goods, bids))


def table(rng: Random, sizes: Sequence[int], most: int, bidder: int = 0, options: int = 5) -> Bid:
    """rho that grow coarse on purpose: ties are common."""
    old = float(rng.choice([4, 8, 8, 16]))
    drawn = []
    for _ in range(rng.randint(1, options)):
        pieces = [rng.choice(sizes) for _ in range(rng.randint(1, 3))]
        if sum(pieces) <= most:
            drawn.append(option(pieces, old / rng.choice([0.5, 1, 1.5, 2, 2, 3, 4]) / (1 + sum(pieces) / 4)))
    return Bid(bidder, old, tuple(drawn))


def linear(bidder: int, work: float, slow: dict[int, float], most: int, old: float = 40.0) -> Bid:
    """An app whose work divides at will: *slow* has its slowdown by the largest piece it lies on."""
    options = []
    for gpus in range(1, most + 1):
        for piece, slowdown in slow.items():
            if gpus % piece == 0:
                options.append(option([piece] * (gpus // piece), work * slowdown / gpus))
    return Bid(bidder, old, tuple(options))


def check_hands(goods: Sequence[FreeMachine], bids: Sequence[Bid], outcome: AuctionResult) -> None:
    """No GPU twice, none from nowhere, none lost; what is won is what the option says, where it says."""
    there = [gpu for machine in goods for gpu in machine.gpus]
    won = [gpu for share in outcome.shares for gpu in share.won]
    assert len(set(won)) == len(won)
    assert set(won) <= set(there)
    for share, bid in zip(outcome.shares, bids, strict=True):
        keeps = kept_of(share, goods)
        assert set(keeps) <= set(share.won)
        assert len(keeps) <= share.fraction * len(share.won) + 1e-9 or not share.won
        assert 0 < share.fraction <= 1
        chosen = None if share.option is None else bid.options[share.option]
        assert len(share.won) == (chosen.gpus if chosen else 0)
        mine = [m._replace(gpus=tuple(gpu for gpu in m.gpus if gpu in share.won), slots=()) for m in goods]
        assert together([chosen], mine)


# What winners keep after the hidden payment, rounded down.


def kept_of(share: Share, goods: Sequence[FreeMachine]) -> tuple[int, ...]:
    return kept(share.won, math.floor(share.fraction * len(share.won) + 1e-9), goods)


Rho = Callable[[tuple[int, ...]], float]


def best_kept(share: Share, goods: Sequence[FreeMachine], rho: Rho) -> tuple[int, ...]:
    """The best by the winner's own numbers, of all subsets: however many of each machine."""
    count = math.floor(share.fraction * len(share.won) + 1e-9)
    piles = [[gpu for gpu in machine.ordered() if gpu in share.won] for machine in goods]
    subsets = {
        tuple(sorted(gpu for pile, n in zip(piles, counts, strict=True) for gpu in pile[:n]))
        for counts in product(*(range(len(pile) + 1) for pile in piles))
    }
    fitting = [*(subset for subset in subsets if len(subset) <= count), kept_of(share, goods)]
    return min(fitting, key=lambda gpus: (rho(gpus), len(gpus), gpus))
