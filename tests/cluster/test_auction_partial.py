"""Hidden payments: the fractions, what is kept, who could envy whom, and what lies bring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from random import Random
from statistics import fmean
from typing import Any

import pytest

from astrarium.cluster.auction import partial_allocation
from astrarium.cluster.auction.bids import Bid, BidOption
from astrarium.cluster.auction.goods import FreeMachine
from astrarium.cluster.auction.handout import kept
from astrarium.cluster.auction.partial_allocation import auction
from astrarium.cluster.auction.search import Assignment, best
from tests.support.cluster.auction_cases import (
    assignments,
    best_by_trying,
    best_kept,
    gain,
    kept_of,
    linear,
    machines,
    option,
    rank,
    solved,
    table,
)

SEEDS = range(30)


def drawn(seed: int) -> tuple[list[FreeMachine], list[Bid]]:
    rng = Random(seed)
    goods = machines(*(rng.randint(1, 4) for _ in range(rng.randint(1, 3))))
    return goods, [table(rng, (1, 2, 3), 6, bidder, 4) for bidder in range(rng.randint(2, 4))]


def test_fractions_are_what_the_others_lose_by_a_bidder() -> None:
    for seed in SEEDS:
        goods, bids = drawn(seed)
        _, chosen = solved(goods, bids)
        for share in auction(goods, bids).shares:
            others = [bid for bid in bids if bid.bidder != share.bidder]
            beside = sum(gain(bid, chosen[bid.bidder]) for bid in others)
            assert log(share.fraction) == pytest.approx(
                (beside - best_by_trying(goods, others)[0]) / 1e9, abs=1e-7
            )


def test_a_bidder_in_nobodys_way_pays_nothing() -> None:
    bids = [linear(bidder, 10.0, {1: 1.0}, 4) for bidder in range(3)]
    outcome = auction(machines(4, 4, 4), bids)
    assert [(len(share.won), share.fraction) for share in outcome.shares] == [(4, 1.0)] * 3


def test_many_alike_keep_1_over_e_each() -> None:
    """n alike have 1/n each; without one, 1/(n-1): (1 - 1/n)^(n-1), which comes down to 1/e."""
    bids = [linear(bidder, 100.0, {1: 1.0}, 40, old=1000.0) for bidder in range(4)]
    goods = machines(*[8] * 6)
    outcome = auction(goods, bids)
    assert [share.fraction for share in outcome.shares] == pytest.approx([0.75**3] * 4)
    sizes = [len(kept_of(share, goods)) for share in outcome.shares]
    assert sizes == [5] * 4  # of 12, of which 0.421875 are 5.06


def test_a_table_times_a_number_is_the_same_table() -> None:
    for seed in SEEDS:
        goods, bids = drawn(seed)
        louder = tuple(option._replace(rho=option.rho * 3) for option in bids[0].options)
        loud = [bids[0]._replace(rho_old=bids[0].rho_old * 3, options=louder), *bids[1:]]
        before = auction(goods, bids).shares
        after = auction(goods, loud).shares
        assert [kept_of(share, goods) for share in before] == [kept_of(share, goods) for share in after]


def test_programs_are_solved_only_where_they_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    solves: list[int] = []

    def counted(*arguments: Any) -> Assignment:
        solves.append(len(arguments[1]))
        return best(*arguments)

    monkeypatch.setattr(partial_allocation, "best", counted)
    alike = [linear(bidder, 100.0, {1: 1.0}, 8) for bidder in range(6)]
    auction(machines(4, 4), [*alike, Bid(6, 2.0, (option([1], 1.99),))])
    assert solves == [7, 6]  # all, and without one of six alike; the last won nothing
    solves.clear()
    auction(machines(8, 8), alike[:2])
    assert solves == [2]  # all have what they want


def test_what_is_kept_lies_on_few_machines() -> None:
    goods = machines(4, 2, 4)
    assert kept(range(10), 10, goods) == tuple(range(10))
    assert kept(range(10), 4, goods) == (0, 1, 2, 3)
    assert kept(range(10), 2, goods) == (4, 5)
    assert kept(range(10), 6, goods) == (4, 5, 6, 7, 8, 9)
    assert kept((0, 4, 5, 6), 2, goods) == (4, 5)
    assert kept(range(10), 0, goods) == ()


def test_a_half_of_one_gpu_is_nothing() -> None:
    bids = [linear(bidder, 100.0, {1: 1.0}, 8, old=1000.0) for bidder in range(2)]
    outcome = auction(machines(1, 1), bids)
    assert [kept_of(share, machines(1, 1)) for share in outcome.shares] == [(), ()]


def test_nobody_can_be_better_off_without_another_being_worse_off() -> None:
    for seed in SEEDS:
        goods, bids = drawn(seed)
        _, chosen = solved(goods, bids)
        mine = rank(bids, chosen)[2]
        for other in assignments(goods, bids):
            theirs = rank(bids, other)[2]
            assert not (theirs != mine and all(t >= m for t, m in zip(theirs, mine, strict=True))), seed


def patterns() -> list[tuple[int, ...]]:
    return [
        (1,),
        (2,),
        (4,),
        (1, 1),
        (2, 1),
        (2, 2),
        (1, 1, 1),
        (1, 1, 1, 1),
        (4, 2),
        (4, 4),
        (2, 2, 2),
        (4, 1),
    ]


class App:
    """Work that spreads badly, after some time without GPUs."""

    def __init__(self, rng: Random) -> None:
        self.work = rng.lognormvariate(2, 0.7)
        self.slow = rng.choice([1.0, 1.1, 1.3, 1.6])
        self.elapsed = rng.choice([0.0, 1.0, 3.0])
        self.old = rng.choice([20.0, 40.0, 80.0])

    def rho(self, pieces: Sequence[int]) -> float:
        if not pieces:
            return self.elapsed + self.old
        return self.elapsed + self.work * (1.0 if len(pieces) == 1 else self.slow) / sum(pieces)

    def bid(self, bidder: int) -> Bid:
        return Bid(bidder, self.rho(()), tuple(option(pattern, self.rho(pattern)) for pattern in patterns()))


def shared(seed: int) -> tuple[list[FreeMachine], list[App]]:
    rng = Random(seed)
    goods = machines(*(rng.choice([1, 2, 2, 4, 4]) for _ in range(rng.randint(2, 4))))
    return goods, [App(rng) for _ in range(rng.randint(2, 4))]


def test_no_two_would_both_like_to_swap() -> None:
    """If one gains by a swap, the other loses at least as much (in log rho): else the swap were better."""
    envious = 0
    for seed in SEEDS:
        goods, apps = shared(seed)
        _, chosen = solved(goods, [app.bid(number) for number, app in enumerate(apps)])
        worth = [[log(app.rho(sizes(kept))) for kept in chosen] for app in apps]
        for i in range(len(apps)):
            for j in range(i):
                assert (worth[i][i] - worth[i][j]) + (worth[j][j] - worth[j][i]) <= 1e-7, seed
                envious += worth[i][i] > worth[i][j] + 1e-7 or worth[j][j] > worth[j][i] + 1e-7
    assert envious  # whole GPUs cannot always be shared without envy


def sizes(chosen: BidOption | None) -> tuple[int, ...]:
    return tuple(piece.gpus for piece in chosen.pieces) if chosen else ()


def test_goods_that_divide_evenly_leave_no_envy_among_those_alike() -> None:
    for number in (2, 3, 4):
        bids = [linear(bidder, 100.0, {1: 1.0}, 12, old=1000.0) for bidder in range(number)]
        goods = machines(*[3] * number)
        sizes = {(len(share.won), len(kept_of(share, goods))) for share in auction(goods, bids).shares}
        assert sizes == {(3, int(3 * (1 - 1 / number) ** (number - 1)))}


def lies(bid: Bid) -> dict[str, Bid]:
    def changed(as_if: Callable[[BidOption], float], old: float = 1.0) -> Bid:
        options = tuple(option._replace(rho=option.rho * as_if(option)) for option in bid.options)
        return bid._replace(rho_old=bid.rho_old * old, options=options)

    return {
        "spread is 20% worse": changed(lambda option: 1.2 if len(option.pieces) > 1 else 1.0),
        "spread is 50% worse": changed(lambda option: 1.5 if len(option.pieces) > 1 else 1.0),
        "dense is 20% better": changed(lambda option: 0.8 if len(option.pieces) == 1 else 1.0),
        "dense is 50% better": changed(lambda option: 0.5 if len(option.pieces) == 1 else 1.0),
        "starving": changed(lambda option: 1.0, old=5.0),
        "content": changed(lambda option: 1.0, old=0.7),
        "more is better than it is": changed(lambda option: option.gpus**-0.5),
        "more is no better": changed(lambda option: option.gpus**0.5),
        "much or nothing": changed(lambda option: 1.0 if option.gpus >= 4 else 1e4),
        "little or nothing": changed(lambda option: 1.0 if option.gpus <= 2 else 1e4),
    }


LIES = sorted(lies(Bid(0, 1.0, ())))


def divided(goods: list[FreeMachine], bids: list[Bid], truth: Bid) -> float:
    """What the first gets if a part of a lot is worth the same part: c / rho."""
    share = auction(goods, bids).shares[0]
    return share.fraction / (truth.rho_old if share.option is None else truth.options[share.option].rho)


def test_no_lie_pays_where_parts_are_worth_their_part() -> None:
    losing = 0
    for seed in SEEDS:
        goods, bids = drawn(seed)
        honest = divided(goods, bids, bids[0])
        rng = Random(seed)
        noise = [option._replace(rho=option.rho * exp(rng.gauss(0, 1))) for option in bids[0].options]
        for lie in [*lies(bids[0]).values(), bids[0]._replace(options=tuple(noise))]:
            lied = divided(goods, [lie, *bids[1:]], bids[0])
            assert lied <= honest * (1 + 1e-7), seed
            losing += lied < honest * (1 - 1e-7)
    assert losing  # not all lies are without effect


def in_whole_gpus(goods: list[FreeMachine], bids: list[Bid], apps: list[App]) -> float:
    """log(1/rho) of the first, with what it really keeps."""

    def pieces(gpus: Sequence[int]) -> list[int]:
        counts = [sum(gpu in gpus for gpu in machine.gpus) for machine in goods]
        return [count for count in counts if count]

    first = auction(goods, bids).shares[0]
    return -log(apps[0].rho(pieces(best_kept(first, goods, lambda gpus: apps[0].rho(pieces(gpus))))))


ABOUT_PLACES = [kind for kind in LIES if kind.startswith(("dense", "spread"))]
MODEST = ["content", "little or nothing", "more is no better"]
TOO_MUCH = "more is better than it is"


@pytest.fixture(scope="module")
def lied() -> dict[str, list[float]]:
    """What each kind of lie brings in log(1/rho), auction by auction."""
    won: dict[str, list[float]] = {kind: [] for kind in LIES}
    for seed in range(80):
        goods, apps = shared(seed)
        bids = [app.bid(number) for number, app in enumerate(apps)]
        honest = in_whole_gpus(goods, bids, apps)
        for kind, lie in lies(bids[0]).items():
            won[kind].append(in_whole_gpus(goods, [lie, *bids[1:]], apps) - honest)
    return won


@pytest.mark.parametrize("kind", [*ABOUT_PLACES, *MODEST, "much or nothing"])
def test_in_whole_gpus_lies_about_places_and_modesty_lose_on_average(
    kind: str, lied: dict[str, list[float]]
) -> None:
    """The paper's lies are those about places. Single auctions can be won by them: the theorem is not about
    whole GPUs."""
    assert fmean(lied[kind]) < 0
    assert sum(gain < -1e-9 for gain in lied[kind]) > sum(gain > 1e-9 for gain in lied[kind])


def test_in_whole_gpus_it_can_pay_to_make_too_much_of_many(lied: dict[str, list[float]]) -> None:
    """The limit of what may be said. Over 600 other auctions of this kind it brought 0.045 (standard error
    0.018) on average, with 63 gains and 20 losses."""
    assert any(gain > 1e-9 for gain in lied[TOO_MUCH])
