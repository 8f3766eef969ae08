"""AlpaServe's section 6 in its quick forms, and what its sweeps are made of; Symphony's sub-clusters."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astrarium.experiments.alpaserve import Case
from astrarium.reproduce import registry
from astrarium.reproduce.alpaserve import figure14, figure16, figure17
from astrarium.reproduce.alpaserve._sweeps import (
    ALPASERVE,
    CLOCKWORK,
    OURS,
    REPLICATION,
    Gain,
    Sweep,
    behind_of,
    gain,
    greedy,
    known,
    reach,
    swept,
    turned,
)
from astrarium.reproduce.findings import Effort
from astrarium.reproduce.symphony import figure16 as subclusters
from astrarium.serving.placement.groups import groups_of
from astrarium.serving.placement.problem import Shape
from astrarium.workloads import alpaserve

QUICK = Effort(quick=True)
NAMES = [
    "alpaserve/table2",
    "alpaserve/figure12",
    "alpaserve/figure14",
    "alpaserve/figure15",
    "alpaserve/figure16",
    "alpaserve/figure17",
    "symphony/figure16",
]
_done: dict[str, registry.Reproduction] = {}


def reproduced(name: str) -> registry.Reproduction:
    """Each is measured once for all the tests here."""
    if name not in _done:
        _done[name] = registry.run(name, QUICK)
    return _done[name]


def claim(name: str, words: str) -> bool:
    (found,) = [claim.holds for claim in reproduced(name).claims if words in claim.what]
    return found


# all of them


@pytest.mark.parametrize("name", NAMES)
def test_findings_are_complete_and_plain(name: str) -> None:
    assert name in registry.names()
    found = reproduced(name)
    assert found.rows
    assert found.claims
    assert all(math.isfinite(row.ours) and row.what for row in found.rows)
    assert len({row.what for row in found.rows}) == len(found.rows)
    assert all(claim.note for claim in found.claims)
    assert msgspec.json.decode(msgspec.json.encode(found.shown()))["data"]


@pytest.mark.parametrize("name", NAMES)
def test_draw_writes_a_picture_from_decoded_data(name: str, tmp_path: Path) -> None:
    found = reproduced(name)
    found.module.draw(msgspec.json.decode(msgspec.json.encode(found.findings.data)), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_differs_says_why(name: str) -> None:
    for row in reproduced(name).rows:
        assert row.verdict in ("agrees", "given", "no number") or row.note, row.what


# what sweeps are made of


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
    assert gain(rate, "fair", "good", "bad") == (pytest.approx(4.0), False)


def test_a_rival_that_meets_99_percent_nowhere_gives_a_bound() -> None:
    rate = _panel("rate", [10, 20, 40], good=[1, 1, 0.99], never=[0.9, 0.5, 0.4])
    assert str(gain(rate, "fair", "good", "never")) == "over 4.00x"
    assert gain(rate, "fair", "never", "good") is None


def test_being_behind_is_more_than_noise() -> None:
    panels = {"p": _panel("cv", [1, 2, 3], ours=[0.9, 0.996, 0.5], one=[0.8, 0.9, 0.51], other=[0, 1.0, 0])}
    assert behind_of(panels, "fair", "ours", ("one", "other")) == (["p 3: 0.500 to 0.510"], 3)


def test_plans_know_a_longer_past_where_they_are_judged_fairly() -> None:
    case = Case(("bert-1.3b",) * 2, 2, 10.0, seconds=20.0)
    fair, published = known(case, "fair"), known(case, "as published")
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


# the tables and figures


def test_table2_is_the_authors_within_three_percent() -> None:
    found = reproduced("alpaserve/table2")
    assert {row.verdict for row in found.rows} == {"agrees", "given"}
    assert claim("alpaserve/table2", "testbed")


def test_figure12_curves_follow_the_knobs() -> None:
    """But for the rate: where few requests come, a few late ones weigh much."""
    panels = reproduced("alpaserve/figure12").findings.data["panels"]
    for knob in ("gpus", "cv", "slo"):
        for curves in panels[f"S1/{knob}"]["curves"].values():
            for system, shares in curves.items():
                easy, hard = (shares[0], shares[-1]) if knob == "cv" else (shares[-1], shares[0])
                assert 0 <= hard < easy <= 1, (knob, system)
    tight = panels["S1/slo"]["curves"]["fair"]
    assert tight[CLOCKWORK][0] == tight[REPLICATION][0] == 0  # shorter than a model takes on one GPU
    assert tight[ALPASERVE][0] > 0.1
    assert tight[OURS][0] > 0.1
    assert claim(
        "alpaserve/figure12",
        "splits operators where objectives are tight, and layers where they are loose (fair)",
    )


def test_figure12_model_parallelism_needs_fewer_gpus() -> None:
    (row,) = [
        row
        for row in reproduced("alpaserve/figure12").rows
        if "fewer GPUs than SR" in row.what and "fair" in row.what
    ]
    assert row.ours > 1.2


def test_figure14_deals_only_rename_models() -> None:
    case = Case(alpaserve.SETS["S2"][:6], 4, 12.0, seconds=20.0)
    plain, dealt = known(case, "fair"), figure14.dealing(1)(case, "fair")
    assert dealt.requests.times == plain.requests.times
    assert sorted(model.rate for model in dealt.models) == sorted(model.rate for model in plain.models)
    assert [model.rate for model in dealt.models] != [model.rate for model in plain.models]
    for old, new in zip(plain.requests.models, dealt.requests.models, strict=True):
        assert plain.models[old].rate == dealt.models[new].rate


def test_figure14_replication_suffers_more() -> None:
    assert claim("alpaserve/figure14", "AlpaServe loses less than replication does")


def test_figure15_batches_that_gain_nothing_bring_nothing() -> None:
    data = reproduced("alpaserve/figure15").findings.data["curves"]
    assert claim(
        "alpaserve/figure15", "batches of more than 2 bring nothing more (a further request takes all)"
    )
    assert data["three quarters"]["AlpaServe, 4"][-1] > data["all"]["AlpaServe, 4"][-1] + 0.05
    assert data["three quarters"]["AlpaServe, 1"] == data["all"]["AlpaServe, 1"]


@pytest.mark.parametrize("model", figure16.MODELS)
def test_figure16_architectures_weigh_what_was_measured(model: str) -> None:
    alone = alpaserve.alone(model)
    assert alone is not None
    assert figure16.MODELS[model].weights == pytest.approx(alone.weights[0], rel=0.005)


@pytest.mark.parametrize("model", figure16.MODELS)
def test_figure16_cuts_lose_no_operator(model: str) -> None:
    alone = figure16.measured(model, 1)[0]
    for stages in figure16.STAGES:
        hand, program = figure16.by_hand(model, stages), figure16.by_program(model, stages)
        assert len(hand) == len(program) == stages
        assert sum(hand) == pytest.approx(alone)
        assert sum(program) == pytest.approx(alone)
        assert max(program) <= max(hand) * (1 + 1e-6)


def test_figure17_round_robin_is_the_weakest_as_published() -> None:
    assert claim("alpaserve/figure17", "Greedy is nowhere behind Round robin (as published)")
    data = reproduced("alpaserve/figure17").findings.data["panels"]
    for panel in data.values():
        assert set(panel["curves"]["as published"]) == set(figure17.PAPER)
        assert set(panel["curves"]["fair"]) == {*figure17.PAPER, figure17.EXCHANGES, OURS}


def test_recorded_numbers_are_points_of_the_sweep() -> None:
    for knob, systems in figure17.RECORDED.items():
        for system, values in systems.items():
            assert set(values) <= set(figure17.VALUES[knob]), system
            assert all(0 < low <= high <= 1 for low, high in values.values())


def test_subclusters_are_the_same_for_a_seed_and_better_than_chance() -> None:
    assert subclusters.task(1, 40, 4) == subclusters.task(1, 40, 4) != subclusters.task(2, 40, 4)
    data = reproduced("symphony/figure16").findings.data
    for what in ("load", "memory"):
        assert max(data[what]["program"]) < 0.1 * min(data[what]["chance"])
