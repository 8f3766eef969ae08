"""What AlpaServe's sweeps are made of: knobs, curves, where 99 % is met, and what the planner hears."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from astrarium.placement.problem import Shape
from astrarium_papers.alpaserve import figure12, figure17
from astrarium_papers.alpaserve._common.cases import FAIR, Case, attainment_of
from astrarium_papers.alpaserve._common.panels import Gain, behind_of, gain, reach
from astrarium_papers.alpaserve._common.served import groups_of
from astrarium_papers.alpaserve._common.sweeps import HISTORY, Sweep, greedy, known, swept, turned, what_runs
from astrarium_papers.findings import Effort
from astrarium_papers.markdown import page

QUICK = Effort(quick=True)


def test_99_percent_is_found_between_points() -> None:
    assert reach([10, 20, 30], [0.9, 0.98, 1.0], more_helps=True) == pytest.approx(25)
    assert reach([1, 2, 4], [1.0, 0.995, 0.985], more_helps=False) == pytest.approx(3)
    assert reach([1, 2], [0.995, 0.999], more_helps=False) == 2
    assert reach([1, 2], [0.9, 0.98], more_helps=True) is None


def test_a_dip_where_it_is_easy_changes_nothing() -> None:
    """Few requests, few of which come late: what counts is the hardest that is met."""
    assert reach([1, 2, 4], [0.98, 1.0, 0.98], more_helps=False) == pytest.approx(3)


def _panel(knob: str, values: list[float], **curves: list[float]) -> dict[str, Any]:
    return {"knob": knob, "values": values, "curves": {"fair": curves}}


def test_gains_are_above_one_for_the_better_whatever_the_knob() -> None:
    gpus = _panel("gpus", [10, 20, 40], good=[0.99, 1, 1], bad=[0.5, 0.99, 1])
    assert gain(gpus, "fair", "good", "bad") == Gain(2.0, bound=False)
    rate = _panel("rate", [10, 20, 40], good=[1, 1, 0.99], bad=[0.99, 0.5, 0.4])
    gained = gain(rate, "fair", "good", "bad")
    assert gained is not None
    assert gained.times == pytest.approx(4.0)
    assert not gained.bound


def test_a_rival_that_meets_99_percent_nowhere_gives_a_bound() -> None:
    rate = _panel("rate", [10, 20, 40], good=[1, 1, 0.99], never=[0.9, 0.5, 0.4])
    assert str(gain(rate, "fair", "good", "never")) == "over 4.00x"
    assert gain(rate, "fair", "never", "good") is None


def test_figure12_the_most_of_the_sets_may_be_a_bound() -> None:
    """A set whose rival never meets 99 % is not passed over for one with a smaller gain."""
    easy = _panel("rate", [10, 20, 40], AlpaServe=[1, 0.99, 0.5], SR=[0.99, 0.5, 0.4])
    hard = _panel("rate", [10, 20, 40], AlpaServe=[1, 1, 0.99], SR=[0.9, 0.5, 0.4])
    panels = {"S1/rate": easy, "S2/rate": hard}
    (row,) = figure12._most({"panels": panels}, "fair", "rate", "SR", 10.0)
    assert row.ours == pytest.approx(4.0)
    assert row.paper is None
    assert row.what.endswith("at least")
    assert "10x" in row.note
    (row,) = figure12._most({"panels": {"S1/rate": easy}}, "fair", "rate", "SR", 10.0)
    assert row.ours == pytest.approx(2.0)
    assert row.paper == 10.0


def test_being_behind_is_more_than_noise() -> None:
    panels = {"p": _panel("cv", [1, 2, 3], ours=[0.9, 0.996, 0.5], one=[0.8, 0.9, 0.51], other=[0, 1.0, 0])}
    assert behind_of(panels, "fair", "ours", ("one", "other")) == (["p 3: 0.500 to 0.510"], 3)


def test_plans_know_a_longer_past_where_they_are_judged_fairly() -> None:
    case = Case(("bert-1.3b",) * 2, 2, 10.0, seconds=20.0)
    fair = known(case, "fair")
    published = known(case, "as published")
    assert 80 < fair.requests.times[-1] / 1e9 < 100
    assert published.requests.times[-1] / 1e9 < 20


def test_a_knob_changes_one_thing() -> None:
    case = Case(("bert-1.3b",) * 2, 2, 10.0)
    assert turned(case, "gpus", 4.0) == Case(("bert-1.3b",) * 2, 4, 10.0)
    assert turned(case, "slo", 3) == Case(("bert-1.3b",) * 2, 2, 10.0, slo=3.0)


def test_greedy_placement_has_groups_of_one_shape() -> None:
    (outcome,) = greedy(4)(Case(("bert-1.3b",) * 4, 8, 8.0, seconds=40.0), "fair", 1)
    assert {group.shape for group in groups_of(outcome.plan)} == {Shape(4)}
    assert {replica.model for replica in outcome.plan.replicas} == {0, 1, 2, 3}


def test_the_planner_hears_what_will_run() -> None:
    """Not worker queues, which wait for batches: what judges its plan in the end judges its drafts, too."""
    case = Case(("bert-1.3b",) * 3, 4, 20.0, seconds=40.0)
    (outcome,), posed = greedy(2)(case, "fair", 1), known(case, "fair")
    judged = what_runs(posed)(outcome.plan, posed.requests)
    past = replace(case, seconds=case.seconds * HISTORY)
    expected = attainment_of(past, groups_of(outcome.plan), replace(FAIR, trim=0))
    assert 0 < expected < 1
    assert np.average(judged, weights=np.bincount(posed.requests.models)) == pytest.approx(expected)


def test_a_plan_whose_groups_share_a_gpu_is_worth_nothing() -> None:
    case = Case(("bert-1.3b",) * 2, 2, 4.0, seconds=20.0)
    posed = known(case, "fair")
    (outcome,) = greedy(2)(case, "fair", 1)
    replica = outcome.plan.replicas[0]
    alone = replace(replica, gpus=replica.gpus[:1], shape=Shape(1))
    assert what_runs(posed)(replace(outcome.plan, replicas=(replica, alone)), posed.requests) == [0.0, 0.0]
    assert max(what_runs(posed)(replace(outcome.plan, replicas=(replica,)), posed.requests)) > 0


def test_points_that_two_sweeps_share_are_measured_once() -> None:
    asked: list[float] = []

    def placer(case: Case, ways: str, seeds: int) -> list[Any]:
        asked.append(case.rate)
        return greedy(1)(case, ways, seeds)

    case = Case(("bert-1.3b",), 1, 2.0, seconds=30.0)
    curves = [("one", "fair")]
    sweeps = {"rate": Sweep(case, "rate", (1, 2), curves), "cv": Sweep(case, "cv", (4,), curves)}
    data = swept(sweeps, {"one": placer}, QUICK)
    assert sorted(asked) == [1, 2]
    assert data["cv"]["curves"]["fair"]["one"] == data["rate"]["curves"]["fair"]["one"][1:]


def test_progress_says_how_far_it_is_and_what_is_asked() -> None:
    messages: list[str] = []
    sweep = Sweep(Case(("bert-1.3b",), 1, 2.0, seconds=30.0), "cv", (1, 2), [("one", "fair")])
    swept({"cv": sweep}, {"one": greedy(1)}, Effort(quick=True, progress=messages.append))
    assert messages == [
        "1 of 2: one, fair: 1 models, 1 GPUs, 2/s, CV 1, SLO 5x",
        "2 of 2: one, fair: 1 models, 1 GPUs, 2/s, CV 2, SLO 5x",
    ]


def test_recorded_numbers_are_points_of_the_sweep() -> None:
    for knob, systems in figure17.RECORDED.items():
        for system, values in systems.items():
            assert set(values) <= set(figure17.VALUES[knob]), system
            assert all(0 < low <= high <= 1 for low, high in values.values())


def test_the_page_says_whose_numbers_stand_in_the_papers_column() -> None:
    text = " ".join(page([], "astrarium reproduce all").split())
    assert "`elvinger/...` has the thesis's network" in text
    assert "authors' public code gives or records" in text
    assert "*Fair* rows are judged by requests that plans were not made with" in text
