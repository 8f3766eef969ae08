"""Fluid's table and figures in their quick forms, and what the text prints of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from papers.tests.reproductions import (
    explained,
    listed,
    measured_once,
    parameters,
)

from astrarium_papers.fluid import _runs, figure3_5, figure3_12, figure3_13, table3_2
from astrarium_papers.fluid._grids import grid_times
from astrarium_papers.fluid._runs import ALONE, CIFAR, DYNAMIC, STATIC, WLM

pytestmark = pytest.mark.long

NAMES = [
    "table3_2",
    "figure3_5",
    "figure3_6",
    "figure3_7",
    "figure3_9",
    "figure3_10",
    "figure3_11",
    "figure3_12",
    "figure3_13",
]
PARAMETERS = parameters(NAMES, "figure3_7", "figure3_10", "figure3_11", "figure3_13")
reproduced = measured_once("fluid")


def ours(name: str, what: str) -> float:
    (match,) = [row.ours for row in reproduced(name).rows if row.what == what]
    return float(match)


def claims(name: str) -> dict[str, bool]:
    return {claim.what: claim.holds for claim in reproduced(name).claims}


def test_they_are_listed_in_their_order() -> None:
    assert listed("fluid") == NAMES


TestReproductions = explained(reproduced, PARAMETERS)


def test_the_toy_example_is_as_printed() -> None:
    rows = [row for row in reproduced("figure3_5").rows if row.paper is not None]
    assert [row.ours for row in rows] == list(figure3_5.WIDTHS)
    assert ours("figure3_5", "makespan, without Fluid") == 30
    assert ours("figure3_5", "makespan, StaticFluid, as printed") == 12
    assert ours("figure3_5", "makespan, Fluid") < 10


def test_more_workers_are_used_less_and_fluid_gets_much_of_it_back() -> None:
    assert all(claims("table3_2").values())
    for workers in (2, 8, 32):
        assert ours("table3_2", f"speed-up, {workers} workers, with Fluid") > 1.25
    lost, kept = (ours("table3_2", f"utilization, 32 workers{end}") for end in ("", ", with Fluid"))
    assert kept > 1.8 * lost


def test_the_printed_table_is_about_the_same_work_in_every_line() -> None:
    work = [workers * used / 100 * took for workers, (used, took) in table3_2.PAPER.items()]
    assert max(work) < 1.15 * min(work)


@pytest.mark.thorough
@pytest.mark.parametrize("search", ["hyperband", "sync-bohb"])
@pytest.mark.parametrize("task", _runs.SHORT.values())
def test_synchronous_searches_reach_their_target_sooner(search: str, task: str) -> None:
    """30 to 100 % in the text; the quick form has fewer iterations, and rungs that are emptier."""
    assert 1.25 < ours("figure3_7", f"{search}, {task}: speed-up to target") < 3


@pytest.mark.thorough
def test_asynchronous_searches_gain_too() -> None:
    """10 to 30 % in the text; in the quick form, with its few candidates, one lucky one counts for much."""
    gains = [ours("figure3_7", f"asha, {task}: speed-up to target") for task in _runs.SHORT.values()]
    gains += [ours("figure3_7", f"bohb, {task}: speed-up to target") for task in _runs.SHORT.values()]
    assert sum(gains) / len(gains) > 1.05


@pytest.mark.thorough
def test_as_printed_pbt_is_slowed_down_and_not_with_our_rules() -> None:
    assert claims("figure3_7")["ours: StaticFluid as printed slows PBT down"]
    for task in _runs.SHORT.values():
        assert ours("figure3_7", f"pbt, {task}: speed-up to target") > 0.99


@pytest.mark.thorough
def test_overheads_decide_how_far_one_goes() -> None:
    assert all(claims("figure3_13").values())
    put_in = [row for row in reproduced("figure3_13").rows if row.given]
    assert len(put_in) == 6
    alpha = [figure3_13._with_packing(CIFAR, reading, 2.0).packing for reading in figure3_13.READINGS]
    assert alpha == pytest.approx([1.68, 2.0])


def test_what_is_switched_off_is_off() -> None:
    chosen = range(1, 2)
    alone = grid_times(WLM, ALONE, 5, chosen)
    assert grid_times(WLM, DYNAMIC, 5, chosen, parts={"packed": 1, "spread": 1}) == alone
    assert grid_times(WLM, DYNAMIC, 5, chosen, parts={"packed": 1}) < alone


def test_variance_is_all_that_differs() -> None:
    even = figure3_12._varied(CIFAR, 0.0)
    for part in (0.0, 1.0):
        assert even.iteration_time(dict.fromkeys(CIFAR.knobs, part), 1, 2) == CIFAR.iteration
    assert claims("figure3_12")["Fluid is faster whatever the variance"]


def test_spreads_are_over_the_seeds() -> None:
    spread = _runs.speedups([10.0, 30.0], [5.0, 10.0])
    assert spread.deviation == pytest.approx(0.7071, rel=1e-3)
    assert (spread.mean, spread.least, spread.most) == (2.5, 2.0, 3.0)
    assert str(_runs.over([150.0])) == "150 to 150 over the seeds, deviation 0"


def test_a_target_that_is_not_reached_counts_to_the_end() -> None:
    never: Any = msgspec.structs.replace(CIFAR, target=1000.0)
    record = _runs.searched(never, "random", STATIC, 1, {"candidates": 3, "iterations": 2})
    assert _runs.to_target(never, record) == _runs.seconds(record)
