"""The proportionally fair assignment: against trying everything and HiGHS; ties, places, the paper."""

from __future__ import annotations

import math
from random import Random

import pytest

from astrarium.cluster.auction import capacity, search
from astrarium.cluster.auction.bids import Bid, BidOption, GpuPiece
from astrarium.cluster.auction.capacity import PieceNeed
from astrarium.cluster.auction.enumeration import are_few
from astrarium.cluster.auction.goods import FreeMachine, classes, free_machines
from astrarium.cluster.auction.packing import Packer
from astrarium.cluster.auction.partial_allocation import auction
from astrarium.cluster.auction.program import program
from astrarium.cluster.auction.search import SearchEffort, best
from astrarium.cluster.machines import Floor, Machine
from tests.support.cluster.auction_cases import (
    best_by_trying,
    check_hands,
    fits,
    linear,
    machines,
    option,
    rank,
    solved,
    table,
)

SEEDS = range(40)


def small(seed: int, sizes: tuple[int, ...]) -> tuple[list[FreeMachine], list[Bid]]:
    rng = Random(seed)
    goods = machines(*(rng.randint(1, 5) for _ in range(rng.randint(1, 3))))
    return goods, [table(rng, sizes, 8, bidder) for bidder in range(rng.randint(1, 4))]


@pytest.mark.parametrize(
    "sizes", [(1, 2, 4), pytest.param((1, 2, 3, 5), marks=pytest.mark.thorough), (2, 3)], ids=str
)
def test_nothing_is_better_and_ties_are_broken_as_promised(sizes: tuple[int, ...]) -> None:
    for seed in SEEDS:
        goods, bids = small(seed, sizes)
        answer, chosen = solved(goods, bids)
        assert answer.exact
        assert rank(bids, chosen) == best_by_trying(goods, bids), seed


def test_one_by_one_and_with_arrays_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    few = 0
    for seed in SEEDS:
        rng = Random(seed)
        goods = machines(*(rng.randint(1, 2) for _ in range(rng.randint(1, 2))))
        bids = [table(rng, (1, 2), 4, bidder) for bidder in range(rng.randint(2, 9))]
        numbers = program(goods, bids)
        few += are_few(numbers.tables, numbers.capacity) and len(numbers.capacity) > 0
        one_by_one = best(numbers, range(len(bids)))
        with monkeypatch.context() as patched:
            patched.setattr(search, "are_few", lambda *_: False)
            assert best(numbers, range(len(bids))) == one_by_one, seed
    assert few > len(SEEDS) / 2


def test_pieces_that_nobody_contests_do_not_multiply() -> None:
    """Forty bidders each want one or two GPUs of a machine of their own, and two contend for the only GPU of
    another: 2 ** 40 assignments obey the one row of the capacity that can be broken."""
    goods = machines(*[2] * 40, 1, 2)
    bids = [
        Bid(own, 4.0, tuple(BidOption((GpuPiece(gpus, machine=own),), 4.0 / (1 + gpus)) for gpus in (1, 2)))
        for own in range(40)
    ]
    bids += [Bid(40 + more, 4.0, (BidOption((GpuPiece(1, machine=40),), 3.0 - more),)) for more in (0, 1)]
    numbers = program(goods, bids)
    assert are_few(numbers.tables, numbers.capacity)
    answer, chosen = solved(goods, bids)
    assert answer.exact
    assert chosen == [*(bid.options[1] for bid in bids[:40]), None, bids[41].options[0]]


def test_racks_and_named_machines_count() -> None:
    for seed in SEEDS:
        rng = Random(seed)
        goods = machines(*(rng.randint(1, 4) for _ in range(4)), racks=(0, 0, 1, 1))
        bids = [placed(rng, table(rng, (1, 2, 3), 8, bidder, 4)) for bidder in range(3)]
        answer, chosen = solved(goods, bids)
        assert answer.exact
        assert rank(bids, chosen) == best_by_trying(goods, bids), seed


def placed(rng: Random, bid: Bid) -> Bid:
    """Some pieces on a machine or in a rack by name, some options in one rack."""
    return bid._replace(options=tuple(somewhere(rng, option) for option in bid.options))


def somewhere(rng: Random, choice: BidOption) -> BidOption:
    kind = rng.choice(["anywhere", "one rack", "named"])
    if kind == "named":
        first = choice.pieces[0]
        named = rng.choice([first._replace(machine=rng.randrange(4)), first._replace(rack=rng.randrange(2))])
        return choice._replace(pieces=(named, *choice.pieces[1:]))
    return choice._replace(one_rack=kind == "one rack")


def test_searching_with_prices_finds_what_trying_everything_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones are searched without prices otherwise."""
    monkeypatch.setattr("astrarium.cluster.auction.search.SMALL", 0.5)
    for seed in SEEDS:
        goods, bids = small(seed, (1, 2, 4) if seed % 2 else (1, 2, 3))
        _, chosen = solved(goods, bids)
        assert rank(bids, chosen) == best_by_trying(goods, bids), seed


@pytest.mark.parametrize("seed", range(6))
def test_highs_finds_nothing_better_for_64_gpus(seed: int) -> None:
    rng = Random(seed)
    goods = machines(*[4] * 12, *[2] * 8)
    bids = [app(rng, bidder) for bidder in range(8)]
    answer, _ = solved(goods, bids)
    assert answer.exact
    assert answer.gain / 1e9 == pytest.approx(by_configurations([4] * 12 + [2] * 8, bids), abs=1e-6)


def app(rng: Random, bidder: int) -> Bid:
    slow = {4: 1.0, 2: rng.uniform(1, 1.2), 1: rng.uniform(1.2, 1.5)}
    return linear(
        bidder, rng.lognormvariate(2, 1), slow, rng.choice([4, 8, 24]), old=rng.lognormvariate(5, 1)
    )


def by_configurations(free: list[int], bids: list[Bid]) -> float:
    """The other way to say it: machines take configurations, configurations hold pieces."""
    optimize = pytest.importorskip("scipy.optimize")
    import numpy as np

    options = [(number, choice) for number, bid in enumerate(bids) for choice in bid.options]
    kinds = [(4, c) for c in [(4,), (2, 2), (2, 1, 1), (1, 1, 1, 1)]] + [(2, c) for c in [(2,), (1, 1)]]
    rows = np.zeros((len(bids) + 2 + 3, len(options) + len(kinds)))
    for column, (number, choice) in enumerate(options):
        rows[number, column] = 1
        rows[len(bids) + 2 :, column] = [sum(p.gpus == size for p in choice.pieces) for size in (4, 2, 1)]
    for column, (size, held) in enumerate(kinds, start=len(options)):
        rows[len(bids) + (size == 2), column] = 1
        rows[len(bids) + 2 :, column] = [-held.count(piece) for piece in (4, 2, 1)]
    upper = [1] * len(bids) + [free.count(4), free.count(2)] + [0, 0, 0]
    gains = [-math.log(bids[number].rho_old / choice.rho) for number, choice in options] + [0.0] * len(kinds)
    most = [1] * len(options) + [max(free.count(size), 1) for size, _ in kinds]
    solution = optimize.milp(
        gains,
        constraints=optimize.LinearConstraint(rows, -np.inf, upper),
        integrality=np.ones(len(gains)),
        bounds=optimize.Bounds(0, most),
        options={"mip_rel_gap": 1e-9},
    )
    return float(-solution.fun)


def test_table_2_one_app_takes_both_gpus() -> None:
    bid = Bid(0, 1.0, (option([1], 200 / 400), option([1, 1], 100 / 400)))
    outcome = auction(machines(1, 1), [bid])
    assert outcome.shares[0].won == (0, 1)
    assert (outcome.shares[0].rho, outcome.shares[0].fraction) == (0.25, 1.0)


def test_table_2_two_apps_take_one_each() -> None:
    """With rho_old = 1, 1/4 for one and nothing for the other would be as good as 1/2 for both."""
    options = (option([1], 200 / 400), option([1, 1], 100 / 400))
    outcome = auction(machines(1, 1), [Bid(bidder, 2.0, options) for bidder in range(2)])
    assert [share.won for share in outcome.shares] == [(0,), (1,)]
    assert [share.fraction for share in outcome.shares] == pytest.approx([0.5, 0.5])  # alone: 1/4, not 1/2


def vgg(bidder: int) -> Bid:
    """Four tasks; 103.6 images a second on one machine, 80.4 on two (Table 1)."""
    return Bid(bidder, 10.0, (option([4], 1.0), option([2, 2], 103.6 / 80.4)))


def inception(bidder: int) -> Bid:
    return Bid(bidder, 10.0, (option([4], 1.0), option([2, 2], 242 / 243)))


def test_figure_5_instance_1_each_has_a_machine_of_its_own() -> None:
    outcome = auction(machines(4, 4), [vgg(0), vgg(1)])
    assert [share.won for share in outcome.shares] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [share.fraction for share in outcome.shares] == [1.0, 1.0]


def test_figure_5_instance_2_who_needs_the_machine_has_it() -> None:
    outcome = auction(machines(4, 2, 2), [inception(0), vgg(1)])
    assert [share.won for share in outcome.shares] == [(4, 5, 6, 7), (0, 1, 2, 3)]
    assert [share.fraction for share in outcome.shares] == [1.0, 1.0]


def test_machines_that_are_alike_are_one_class() -> None:
    goods = machines(4, 4, 2, 4, racks=(0, 1, 0, 1))
    assert [kind.members for kind in classes(goods, False, ())] == [(0, 1, 3), (2,)]
    assert [kind.members for kind in classes(goods, True, ())] == [(0,), (1, 3), (2,)]
    assert [kind.members for kind in classes(goods, False, [3])] == [(0, 1), (2,), (3,)]


def test_goods_of_a_floor_keep_racks_and_slots() -> None:
    floor = Floor()
    floor.join(Machine(7, 4, rack=1, slot=2))
    floor.join(Machine(8, 2, rack=0))
    goods = free_machines(floor, [5, 0, 2, 3])
    assert goods == [FreeMachine(8, (5,), 0, (0,)), FreeMachine(7, (0, 2, 3), 1, (0, 1, 1))]
    assert goods[1].ordered() == [2, 3, 0]


def test_a_piece_of_two_gets_a_slot_of_its_own() -> None:
    goods = [FreeMachine(0, (0, 1, 2), 0, (0, 1, 1))]
    outcome = auction(goods, [Bid(0, 8.0, (option([2], 1.0),))])
    assert outcome.shares[0].won == (1, 2)


def test_pieces_go_where_they_are_named_and_into_one_rack() -> None:
    goods = machines(4, 4, 4, 4, racks=(0, 1, 1, 0))
    beside = Bid(0, 8.0, (BidOption((GpuPiece(2, machine=2),), 1.0),))
    wide = Bid(1, 8.0, (BidOption((GpuPiece(4), GpuPiece(4)), 1.0, one_rack=True),))
    outcome = auction(goods, [beside, wide])
    assert outcome.shares[0].won == (8, 9)
    assert {gpu // 4 for gpu in outcome.shares[1].won} == {0, 3}


def test_sizes_that_divide_each_other_are_decided_by_rows() -> None:
    kinds = classes(machines(5, 3, 8, 8), False, ())
    needs = [PieceNeed(size, capacity.fitting(size, kinds)) for size in (1, 2, 4, 8)]
    assert capacity.decide_alone(needs, kinds)
    assert {row.capacity for row in capacity.capacity_rows(needs, kinds)} == {24, 11, 5, 2}
    assert not capacity.decide_alone([PieceNeed(3, needs[2].classes), PieceNeed(2, needs[1].classes)], kinds)


def test_rows_never_refuse_what_fits_and_packing_finds_it() -> None:
    for seed in SEEDS:
        rng = Random(seed)
        goods = machines(*(rng.randint(1, 8) for _ in range(3)))
        kinds = classes(goods, False, ())
        sizes = sorted(rng.sample([1, 2, 3, 4, 5, 6], 3))
        needs = [PieceNeed(size, capacity.fitting(size, kinds)) for size in sizes]
        counts = [rng.randint(0, 3) for _ in sizes]
        pieces = [GpuPiece(size) for size, count in zip(sizes, counts, strict=True) for _ in range(count)]
        really = fits(pieces[::-1], goods, [machine.free for machine in goods])
        assert (Packer(needs, kinds).packed(counts) is not None) == really
        rows = capacity.capacity_rows(needs, kinds)
        obeyed = all(sum(w * n for w, n in zip(r.weights, counts, strict=True)) <= r.capacity for r in rows)
        assert obeyed or not really


@pytest.mark.parametrize("sizes", [(1, 2, 4, 8), (1, 2, 3, 5, 8)], ids=str)
def test_no_gpu_is_handed_out_twice_and_none_is_lost(sizes: tuple[int, ...]) -> None:
    for seed in range(15):
        rng = Random(seed)
        goods = machines(*(rng.randint(0, 8) for _ in range(6)), racks=(0, 0, 0, 1, 1, 1))
        bids = [table(rng, sizes, 24, bidder, 12) for bidder in range(7)]
        check_hands(goods, bids, auction(goods, bids))


def test_the_same_auction_ends_the_same() -> None:
    rng = Random(1)
    goods = machines(8, 4, 4, 2)
    bids = [table(rng, (1, 2, 4), 16, bidder, 10) for bidder in range(6)]
    assert auction(goods, bids) == auction(list(goods), list(bids))


def test_who_bids_first_matters_only_in_ties() -> None:
    rng = Random(3)
    goods = machines(8, 4, 2)
    bids = [app(rng, bidder) for bidder in range(5)]
    turned = {share.bidder: share.rho for share in auction(goods, bids[::-1]).shares}
    assert turned == {share.bidder: share.rho for share in auction(goods, bids).shares}


def test_with_little_effort_the_answer_is_still_good_and_says_so() -> None:
    rng = Random(5)
    goods = machines(8, 8, 8, 7, 5, 3)
    bids = [app(rng, bidder) for bidder in range(9)]
    numbers = program(goods, bids)
    hasty = best(numbers, range(9), SearchEffort(work=20))
    exact = best(numbers, range(9))
    assert exact.exact
    assert 0.8 * exact.gain <= hasty.gain <= exact.gain


def test_nobody_bids_nothing_is_free_nothing_is_wanted() -> None:
    assert auction(machines(2), []).shares == ()
    assert auction([], [Bid(0, 2.0, (option([1], 1.0),))]).shares[0].won == ()
    useless = Bid(0, 2.0, (option([1], 3.0), option([4], 1.0)))  # worse than nothing; more than there is
    assert auction(machines(2), [useless]).shares[0].option is None
