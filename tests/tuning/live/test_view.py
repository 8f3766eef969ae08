"""What a terminal shows of a live search."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rich.console import Console

from astrarium.core.choice import made
from astrarium.tuning.live.view import BARS, sparkline, time_left, view
from astrarium.tuning.policies import searches
from astrarium.tuning.search.contract import Budgeted
from tests.support.tuning.live_search import SMALL, Play


def shown(play: Play, seconds: float) -> str:
    console = Console(width=110, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(view("fifo", play.live, seconds))
    return captured.get()


def test_each_candidate_that_trains_has_a_row_with_its_curve() -> None:
    play = Play("random", gpus=2, settings={"candidates": 4, "iterations": 60})
    play.go(lambda: min(play.live.session.candidates[number].trained for number in (0, 1)) >= 20)
    text = shown(play, 50.0)
    [first, second] = [line.split() for line in text.splitlines() if re.match(r" *[01] ", line)]
    candidate = play.live.session.candidates[0]
    assert first[:2] == ["0", f"{candidate.trained}/60"]
    assert first[2] == f"{candidate.curve[-1].value:.5g}"
    assert set(first[-1]) <= set(BARS)
    assert second[0] == "1"
    assert f"best {play.live.session.best[-1].value:.5g}" in text
    assert "2 of 2 GPUs held" in text
    assert "left, by the search's budget" in text


def test_the_time_that_is_left_follows_from_the_budget() -> None:
    play = Play("random", gpus=2, settings={"candidates": 4, "iterations": 60})
    assert time_left(play.live, 1.0) is None  # nobody knows the pace
    play.go(lambda: sum(row.done for row in play.rows.values()) >= 60)
    done = sum(row.done for row in play.rows.values())
    assert time_left(play.live, 100.0) == f"{100 * (240 - done) / done:.2g} s"
    play.go()
    assert time_left(play.live, 100.0) is None


@pytest.mark.parametrize("search", [*SMALL, "sync-bohb", "bohb"])
def test_budgets_are_what_searches_train_in_all(search: str) -> None:
    settings: dict[str, Any] = SMALL.get(search, {"iterations": 9})
    one = made(searches.get(search), settings, field="search")
    assert isinstance(one, Budgeted)
    if search in SMALL:
        play = Play(search).go()
        trained = sum(row.done for row in play.rows.values())
        assert trained == pytest.approx(one.budget(), rel=0.1 if search == "asha" else 0)


def test_a_grid_has_no_budget_before_it_is_drawn() -> None:
    assert not isinstance(made(searches.get("grid"), {}, field="search"), Budgeted)


def test_a_curve_is_as_wide_as_there_is_room() -> None:
    assert sparkline([]) == ""
    assert sparkline([1.0]) == BARS[0]
    assert sparkline([0.0, 1.0]) == BARS[0] + BARS[-1]
    assert len(sparkline([float(value) for value in range(1000)])) == 24
    assert sparkline([3.0, 3.0]) == BARS[0] * 2
