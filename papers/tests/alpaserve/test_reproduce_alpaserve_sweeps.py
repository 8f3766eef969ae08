"""AlpaServe's section 6 in its quick forms; Symphony's sub-clusters."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from papers.tests.reproductions import QUICK, explained

from astrarium_papers import registry
from astrarium_papers.alpaserve import figure12, figure14, figure15, figure16, figure17
from astrarium_papers.alpaserve._common import workloads
from astrarium_papers.alpaserve._common.cases import Case
from astrarium_papers.alpaserve._common.panels import ALPASERVE, CLOCKWORK, OURS, REPLICATION
from astrarium_papers.alpaserve._common.sweeps import known
from astrarium_papers.alpaserve._common.transformer import MODELS
from astrarium_papers.symphony import figure16 as subclusters

NAMES = [
    "alpaserve/table2",
    "alpaserve/figure12",
    "alpaserve/figure14",
    "alpaserve/figure15",
    "alpaserve/figure16",
    "alpaserve/figure17",
    "symphony/figure16",
]
reproduced = cache(lambda name: registry.run(name, QUICK))


def claim(name: str, words: str) -> bool:
    (verdict,) = [claim.holds for claim in reproduced(name).claims if words in claim.what]
    return verdict


TestReproductions = explained(reproduced, NAMES)


def test_table2_is_the_authors_within_three_percent() -> None:
    reproduction = reproduced("alpaserve/table2")
    assert {row.verdict for row in reproduction.rows} == {"agrees", "given"}
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


@pytest.mark.parametrize("sets", [("S1",), ("S1", "S2", "S3")])
def test_figure12_has_its_whole_legend_above_the_panels(
    sets: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one set the figure is narrow."""
    quick = reproduced("alpaserve/figure12").findings.data["panels"]
    panels = {f"{name}/{knob}": quick[f"S1/{knob}"] for name in sets for knob in figure12.VALUES}
    drawn: list[Any] = []

    def keep(figure: Any, path: Path, top: float) -> None:
        figure.tight_layout(rect=(0, 0, 1, top))
        drawn.append(figure)

    monkeypatch.setattr("astrarium_papers.drawing.save", keep)
    figure12.draw({"panels": panels}, Path("unused"))
    (figure,) = drawn
    figure.canvas.draw()
    legend = figure.legends[0].get_window_extent()
    assert 0 <= legend.x0 < legend.x1 <= figure.bbox.x1
    assert legend.y0 >= max(axis.title.get_window_extent().y1 for axis in figure.axes)


def test_figure16_what_was_measured_is_given() -> None:
    (uneven,) = [
        stated for stated in reproduced("alpaserve/figure16").claims if "uneven stages" in stated.what
    ]
    assert uneven.verdict == "given"


def test_figure12_model_parallelism_needs_fewer_gpus() -> None:
    (row,) = [
        row
        for row in reproduced("alpaserve/figure12").rows
        if "fewer GPUs than SR" in row.what and "fair" in row.what
    ]
    assert row.ours > 1.2


def test_figure14_deals_only_rename_models() -> None:
    case = Case(workloads.SETS["S2"][:6], 4, 12.0, seconds=20.0)
    plain = known(case, "fair")
    dealt = figure14.dealing(1)(case, "fair")
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
    single, several = (figure15.curve(ALPASERVE, batch) for batch in (1, 4))
    assert data["three quarters"][several][-1] > data["all"][several][-1] + 0.05
    assert data["three quarters"][single] == data["all"][single]


@pytest.mark.parametrize("model", MODELS)
def test_figure16_architectures_weigh_what_was_measured(model: str) -> None:
    alone = workloads.alone(model)
    assert alone is not None
    assert MODELS[model].weights == pytest.approx(alone.weights[0], rel=0.005)


@pytest.mark.parametrize("model", MODELS)
def test_figure16_cuts_lose_no_operator(model: str) -> None:
    alone = figure16.measured(model, 1)[0]
    for stages in figure16.STAGES:
        hand = figure16.by_hand(model, stages)
        program = figure16.by_program(model, stages)
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


def test_subclusters_are_the_same_for_a_seed_and_better_than_chance() -> None:
    assert subclusters.task(1, 40, 4) == subclusters.task(1, 40, 4) != subclusters.task(2, 40, 4)
    data = reproduced("symphony/figure16").findings.data
    for what in ("load", "memory"):
        assert max(data[what]["program"]) < 0.1 * min(data[what]["chance"])
