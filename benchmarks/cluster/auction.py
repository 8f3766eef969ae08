"""The auction of Themis: CPU of whole auctions, one program for all bidders and one without each winner.

Bids are those that agents make (`_auction_bids.py`), and tables drawn at random. Drawn tables with places, or
of any size, have several times as many rows as any agent's. The *gap* bounds what was lost where a search was
stopped early.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from _auction_bids import agents

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what all benchmarks share

from _measure import Row, main
from astrarium.cluster.auction.bids import Bid, BidOption, GpuPiece
from astrarium.cluster.auction.goods import FreeMachine
from astrarium.cluster.auction.partial_allocation import AuctionResult, auction

BAR = 350.0  # ms; Themis has 354 for one auction with Gurobi
TESTBED = (4,) * 12 + (2,) * 8  # free GPUs of each machine, 64 in all
SIMULATED = (
    (8,) * 27 + (4,) * 6 + (1,) * 16
)  # 256: footnote 6 of the paper with the number of large ones fixed
SIXTEEN = (4, 3, 2, 2, 2, 1, 1, 1)
THIRTY_TWO = (8, 5, 4, 3, 3, 2, 2, 1, 1, 1, 1, 1)
POWERS = (1, 2, 4, 8)
ALL_SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64)
RACKS = 4
HELD = (0, 32, 128, 224)  # of 256 GPUs, by the bidders themselves


class Case(NamedTuple):
    what: str
    free: tuple[int, ...]
    bidders: int
    sizes: tuple[int, ...] = POWERS
    places: bool = False  # racks and machines are named


CASES = (
    *(Case(f"64 GPUs, {bidders} bidders", TESTBED, bidders) for bidders in (4, 8, 17)),
    Case("16 free of 64, 17 bidders", SIXTEEN, 17),
    *(Case(f"32 free of 256, {bidders} bidders", THIRTY_TWO, bidders) for bidders in (8, 17)),
    Case("256 GPUs, 17 bidders", SIMULATED, 17),
    Case("32 free of 256, 17 bidders, places named", THIRTY_TWO, 17, places=True),
    Case("256 GPUs, 17 bidders, places named", SIMULATED, 17, places=True),
    Case("32 free of 256, 17 bidders, pieces of any size", THIRTY_TWO, 17, ALL_SIZES),
    Case("256 GPUs, 17 bidders, pieces of any size", SIMULATED, 17, ALL_SIZES),
    Case("256 GPUs, 17 bidders, any size, places named", SIMULATED, 17, ALL_SIZES, places=True),
)


def measure(repeats: int) -> list[Row]:
    """Measure another set of apps each time; fewer times where places or odd sizes make it slow."""
    auction(*drawn(CASES[2], 0))  # loads the solver
    real = [row for workload in (1, 2) for held in HELD for row in of_agents(workload, held, repeats)]
    return real + [row for case in CASES for row in rows(case, repeats if plain(case) else min(3, repeats))]


def of_agents(workload: int, held: int, repeats: int) -> Iterator[Row]:
    what = f"256 GPUs, 17 agents of workload {workload} that hold {held}"
    return timing_rows(what, [timed(*agents(workload, held, seed)) for seed in range(repeats)])


def plain(case: Case) -> bool:
    return case.sizes == POWERS and not case.places


def rows(case: Case, repeats: int) -> Iterator[Row]:
    return timing_rows(case.what, [timed(*drawn(case, seed)) for seed in range(repeats)])


def timing_rows(what: str, timings: Sequence[tuple[AuctionResult, float]]) -> Iterator[Row]:
    yield Row(f"auction, {what}: CPU", "ms", [took for _, took in timings], bar=BAR, less_is_better=True)
    yield Row(
        f"auction, {what}: solved to the end", "", [sum(result.exact for result, _ in timings) / len(timings)]
    )
    yield Row(f"auction, {what}: gap", "", [result.gap for result, _ in timings])


def timed(goods: list[FreeMachine], bids: list[Bid]) -> tuple[AuctionResult, float]:
    began = time.process_time_ns()
    outcome = auction(goods, bids)
    return outcome, (time.process_time_ns() - began) / 1e6


def drawn(case: Case, seed: int) -> tuple[list[FreeMachine], list[Bid]]:
    rng = Random(seed)
    goods = []
    first = 0
    for number, free in enumerate(case.free):
        goods.append(FreeMachine(number, tuple(range(first, first + free)), number % RACKS))
        first += free
    return goods, [bid(rng, bidder, case, goods) for bidder in range(case.bidders)]


class App(NamedTuple):
    work: float
    elapsed: float
    slowdown: float  # of a job that is spread
    gang: int
    demand: int
    held: int

    def rho(self, gpus: int, slowdown: float) -> float:
        if not self.held + gpus:
            return 4 * (self.elapsed + self.work)
        return self.elapsed + self.work * slowdown / min(self.held + gpus, self.demand)


def bid(rng: Random, bidder: int, case: Case, goods: Sequence[FreeMachine]) -> Bid:
    app = App(
        work=10 * rng.lognormvariate(0, 1),
        elapsed=rng.lognormvariate(0, 1),
        slowdown=rng.choice([1.0, 1.0, 1.1, 1.29, 1.5, 2.0]),
        gang=rng.choice([1, 1, 1, 2, 4, 8]),
        demand=rng.choice([4, 8, 16, 32, 50, 64]),
        held=rng.choice([0, 0, 0, 1, 2, 4]),
    )
    options = list(patterns(app, case.sizes, sum(case.free)))
    if case.places:
        options += [larger for option in options for larger in placed(rng, option, app, goods)]
    return Bid(bidder, app.rho(0, app.slowdown), tuple(options))


def patterns(app: App, sizes: Sequence[int], free: int) -> Iterator[BidOption]:
    """Yield every number of gangs, in pieces up to every size: the smaller the pieces, the slower."""
    for gpus in (app.gang * count for count in COUNTS if app.gang * count <= min(app.demand, free)):
        for largest in sizes:
            pieces = cut(gpus, [size for size in sizes if size <= largest])
            spread = max(1.0, app.gang / largest) if app.gang > 1 else 1 + (8 - largest) / 8
            yield BidOption(
                tuple(map(GpuPiece, pieces)), app.rho(gpus, 1 + (app.slowdown - 1) * (spread - 1) / 2)
            )


def cut(gpus: int, sizes: Sequence[int]) -> list[int]:
    pieces: list[int] = []
    for size in sorted(sizes, reverse=True):
        pieces += [size] * (gpus // size)
        gpus %= size
    return pieces


def placed(rng: Random, option: BidOption, app: App, goods: Sequence[FreeMachine]) -> Iterator[BidOption]:
    """Yield places in one rack, and beside what the app has on two machines: a little better."""
    if len(option.pieces) > 1:
        yield option._replace(one_rack=True, rho=option.rho * 0.97)
    for machine in rng.sample(goods, 2) if app.held else ():
        beside = GpuPiece(min(option.pieces[0].gpus, machine.free), machine=machine.id)
        if beside.gpus == option.pieces[0].gpus:
            yield BidOption((beside, *option.pieces[1:]), option.rho * 0.95)


if __name__ == "__main__":
    main(measure, repeats=7)
