"""How well auctions were solved: counted by the policy, kept in the record, told in the summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.auction.partial_allocation import AuctionResult, auction
from astrarium.cluster.auction.tally import AuctionTally, stopped_early, tally_of
from astrarium.cluster.policies.fifo import Fifo
from astrarium.cluster.policies.themis import Themis, round
from astrarium.cluster.report.tables import auctions_told

pytest_plugins = ("tests.support.cli_fixtures",)

CROWDED = """\
machines: [{count: 1, gpus: 4}]
apps: [{name: many, gpus: 2, length: 1h, count: 6}]
policy: {name: themis, f: 0.0}
"""


@pytest.fixture
def simulated(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "crowded.yaml"
    path.write_text(CROWDED)
    return lambda verb, *arguments: call(verb, str(path), "--no-folder", *arguments)


def test_every_auction_counts_and_the_worst_is_remembered() -> None:
    tally = AuctionTally()
    for exact, gap in ((True, 0.0), (False, 0.25), (False, 0.125)):
        tally = tally.after(AuctionResult((), exact, gap))
    assert tally == AuctionTally(auctions=3, unsolved=2, largest_gap=0.25)


def test_who_holds_no_auctions_has_no_tally() -> None:
    assert tally_of(Fifo(Fifo.Parameters())) is None
    assert tally_of(Themis(Themis.Parameters())) == AuctionTally()


def test_a_run_tells_of_its_auctions(simulated: Any) -> None:
    summaries = simulated("compare", "-p", "themis", "-p", "fifo", "--json").json["policies"]
    assert summaries["fifo"]["auctions"] is None
    assert summaries["themis"]["auctions"]["auctions"] > 0
    assert summaries["themis"]["auctions"]["unsolved"] == 0
    assert "all solved to the end" in simulated("simulate").out


def test_auctions_that_were_not_solved_are_told(
    simulated: Any, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given_up(*of: Any) -> AuctionResult:
        return auction(*of)._replace(exact=False, gap=0.5)

    monkeypatch.setattr(round, "auction", given_up)
    tally = simulated("simulate", "--json").json["auctions"]
    assert tally["unsolved"] == tally["auctions"] > 0
    assert tally["largest_gap"] == 0.5
    printed = call("explain", "crowded.yaml", "many-0", "--at", "1min").out
    assert "(stopped early: the sum of log(1/rho) could be larger by at most 0.5)" in " ".join(
        printed.split()
    )


def test_in_words() -> None:
    assert auctions_told(AuctionTally(1)) == "1 auction, all solved to the end"
    sentence = auctions_told(AuctionTally(1200, 3, 0.0123))
    assert sentence.startswith("1,200 auctions, 3 not solved to the end")
    assert sentence.endswith("at most 0.012")


def test_a_grant_of_an_auction_that_was_stopped_early_says_so() -> None:
    assert stopped_early(AuctionResult((), True)) == ""
    assert "payments are estimates" in stopped_early(AuctionResult((), False))
    assert "at most 0.087" in stopped_early(AuctionResult((), False, 0.0868))
