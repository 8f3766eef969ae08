"""Pieces on machines: what is said to fit does, and what is given up is said to be."""

from __future__ import annotations

from random import Random

import pytest

from astrarium.cluster.auction import packing
from astrarium.cluster.auction.bids import Bid, BidOption, GpuPiece
from astrarium.cluster.auction.capacity import PieceNeed
from astrarium.cluster.auction.goods import MachineClass, classes
from astrarium.cluster.auction.packing import Packer, Slack
from astrarium.cluster.auction.partial_allocation import auction
from astrarium.cluster.auction.search import SearchEffort
from tests.support.cluster.auction_cases import best_by_trying, check_hands, fits, machines, rank

SEEDS = range(60)


def test_pieces_that_are_confined_are_packed_if_they_can_be() -> None:
    for seed in SEEDS:
        rng = Random(seed)
        goods = machines(*(rng.randint(1, 6) for _ in range(4)), racks=[0, 0, 1, 1])
        kinds = classes(goods, True, (1, 2))
        pieces = [drawn(rng) for _ in range(rng.randint(1, 5))]
        needs = [need(piece, kinds) for piece in dict.fromkeys(pieces)]
        counts = [pieces.count(piece) for piece in dict.fromkeys(pieces)]
        really = fits(pieces, goods, [machine.free for machine in goods])
        assert Packer(needs, kinds).fit(tuple(counts)) is really


def drawn(rng: Random) -> GpuPiece:
    where = rng.choice([{}, {}, {"rack": rng.randrange(2)}, {"machine": rng.choice([1, 2])}])
    return GpuPiece(rng.choice([1, 1, 2, 3, 4]), **where)


def need(piece: GpuPiece, kinds: list[MachineClass]) -> PieceNeed:
    takes = [
        number
        for number, kind in enumerate(kinds)
        if kind.free >= piece.gpus
        and piece.machine in (None, kind.machine)
        and piece.rack in (None, kind.rack)
    ]
    return PieceNeed(piece.gpus, frozenset(takes))


def test_places_are_kept_for_those_who_have_no_choice() -> None:
    """The tightest machine for the piece of 3 is the one that the named piece needs."""
    kinds = classes(machines(3, 4), False, (0,))
    needs = [PieceNeed(3, frozenset({0, 1})), PieceNeed(2, frozenset({0}))]
    slack = Slack(needs, kinds).start([1, 1])
    assert min(slack) >= 0
    packed = Packer(needs, kinds).packed([1, 1])
    assert packed == [[1], [0]]


def test_what_is_given_up_is_neither_said_to_fit_nor_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of 3 beside three of 5 on three machines of 7: there is room enough, but not together."""
    kinds = classes(machines(7, 7, 7), False, ())
    anywhere = frozenset({0})
    needs = [PieceNeed(3, anywhere), PieceNeed(5, anywhere)]
    assert Packer(needs, kinds).fit((1, 3)) is False
    monkeypatch.setattr(packing, "STEPS", 0)
    assert Packer(needs, kinds).fit((1, 3)) is None


@pytest.mark.thorough
def test_the_gap_is_no_smaller_than_what_is_missed() -> None:
    missed = 0
    for seed in SEEDS:
        rng = Random(seed)
        goods = machines(4, 4, 3, 5, 2)
        bids = [bid(rng, bidder) for bidder in range(4)]
        outcome = auction(goods, bids, effort=SearchEffort(work=1, packings=1))
        check_hands(goods, bids, outcome)
        shares = zip(bids, outcome.shares, strict=True)
        chosen = [None if share.option is None else of.options[share.option] for of, share in shares]
        short = (best_by_trying(goods, bids)[0] - rank(bids, chosen)[0]) / 1e9
        assert short <= outcome.gap + 1e-9
        assert not (outcome.exact and short)
        missed += short > 0
    assert missed  # else nothing was tried here


def bid(rng: Random, bidder: int) -> Bid:
    sizes = [rng.sample([1, 2, 3, 4, 5], rng.randint(1, 3)) for _ in range(6)]
    return Bid(
        bidder,
        8.0,
        tuple(
            BidOption(tuple(map(GpuPiece, size)), 7.0 / sum(size) ** rng.uniform(0.3, 1)) for size in sizes
        ),
    )
