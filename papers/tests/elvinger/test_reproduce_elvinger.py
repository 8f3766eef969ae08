"""The thesis's figures in their quick forms: the placements it prints, what it says of them, its cluster."""

from __future__ import annotations

from typing import Any

import pytest
from papers.tests.reproductions import (
    QUICK,
    explained,
    listed,
    measured_once,
    parameters,
)

from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.placement.interference import Tenant
from astrarium.placement.path import STAGES
from astrarium_papers.elvinger import _lines, _world, figure6_15
from astrarium_papers.elvinger._v100 import problem

NAMES = ["figure6_1", "figure6_6", "figure6_10", "figure6_15"]
PARAMETERS = parameters(NAMES, "figure6_1", "figure6_10", "figure6_15")
reproduced = measured_once("elvinger")


def row(name: str, what: str) -> Any:
    (match,) = [row for row in reproduced(name).rows if row.what == what]
    return match


def claim(name: str, beginning: str) -> Any:
    (match,) = [claim for claim in reproduced(name).claims if claim.what.startswith(beginning)]
    return match


def test_they_are_listed_in_their_order() -> None:
    assert listed("elvinger") == NAMES


TestReproductions = explained(reproduced, PARAMETERS)


@pytest.mark.parametrize(
    ("name", "beginning"),
    [
        ("figure6_1", "on six GPUs Usher places one replica of each model and two of EfficientNet-B7"),
        ("figure6_1", "Usher gains little from the third GPU"),
        ("figure6_1", "WAO-Usher stagnates"),
        ("figure6_1", "without shares of the SMs WAO-Usher serves more"),
        ("figure6_1", "AO-MILP is ahead of Usher on three and four GPUs"),
        ("figure6_1", "on six GPUs AO-MILP is behind Usher"),
        ("figure6_1", "on five GPUs WSM-MILP puts AlexNet and ResNet50"),
        ("figure6_1", "and serves most requests of both"),
        ("figure6_1", "not in the thesis: with ties broken towards smaller batches"),
        ("figure6_6", "AO-MILP's requests are longer on the way"),
        ("figure6_6", "Usher's requests wait longer in the worker's queue"),
        ("figure6_6", "AO-MILP's batches seldom reach 64"),
        ("figure6_6", "but AO-MILP loses many requests"),
        pytest.param("figure6_10", "on five GPUs WSM-MILP is far behind Usher", marks=pytest.mark.thorough),
        pytest.param("figure6_10", "queues at the workers vanish", marks=pytest.mark.thorough),
        pytest.param("figure6_15", "250 ms: WSM-MILP's goodput falls", marks=pytest.mark.thorough),
        pytest.param(
            "figure6_15",
            "with a batch of 64 DenseNet121's batches end by MAX_WAIT_TIME",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_what_the_thesis_says_is_seen(name: str, beginning: str) -> None:
    assert claim(name, beginning).holds, claim(name, beginning).note


@pytest.mark.thorough
def test_printed_placements_are_found() -> None:
    exact = [
        placement for name in NAMES for placement in reproduced(name).rows if placement.paper is not None
    ]
    counted = [
        placement for placement in exact if placement.tolerance == 0 and "iGniter" not in placement.what
    ]
    tied = [
        placement for placement in counted if "promise the same" in placement.note
    ]  # another solver may choose otherwise
    assert len(counted) >= 22
    assert len(tied) == 3
    assert [
        placement.what for placement in counted if placement.verdict != "agrees" and placement not in tied
    ] == []


def test_every_printed_placement_has_a_row_whether_it_agrees_or_not() -> None:
    whats = [placement.what for placement in reproduced("figure6_15").rows]
    for label, load, model in figure6_15.PRINTED:
        assert any(what.startswith(f"{label}, 250 ms, {load} r/s: replicas of {model}") for what in whats)
    assert row("figure6_1", "iGniter: GPUs in use, of 6").paper == 5


def test_goodput_is_never_more_than_throughput() -> None:
    for label in ("Usher", "AO-MILP"):
        numbers = reproduced("figure6_6").findings.data[label]
        assert numbers["goodput"] <= numbers["throughput"]
        assert numbers["goodput"] == pytest.approx(numbers["in_time"] * numbers["throughput"])
        assert row("figure6_6", f"{label}: throughput").verdict == "given"  # the client's rate was put in


def test_where_ours_is_behind_is_told() -> None:
    by_label = {system.label: {1000: 50.0} for system in figure6_15.SYSTEMS}
    behind = figure6_15._ours({"150": by_label | {"Usher": {1000: 80.0}}})
    assert not behind.holds
    assert "150 ms, 1000 r/s: 50 to 80 r/s (Usher)" in behind.note
    assert figure6_15._ours({"150": by_label}).holds


def test_all_of_the_way_is_told_for_each_model() -> None:
    for numbers in reproduced("figure6_6").findings.data.values():
        stages = [(model, stage) for model, stage, *_ in numbers["stages_ms"]]
        assert stages == [(model, stage) for model in _lines.VISION for stage in STAGES]
        assert all(p50 <= p95 <= p99 for _, _, _, p50, p95, p99 in numbers["stages_ms"])


def test_segments_of_mean_size_add_up_to_the_way() -> None:
    """The client reaches the router at once, and the answer takes a ping."""
    segments = reproduced("figure6_6").findings.data["Usher"]["segments_ms"]
    parts = sum(segments[segment][0] for segment in ("router to node", "node to worker", "worker"))
    assert parts == pytest.approx(segments["end to end"][0], rel=0.1)


def test_printed_batch_sizes_cost_the_program_nothing() -> None:
    """They are ties: with them it promises as much as without."""
    posed = problem(_lines.VISION, 500, 200 * MILLISECOND, 5)
    for printed, free in (
        (_lines.AO_PRINTED, _lines.AO_SMALLER),
        (_lines.WSM_PRINTED, _lines.WSM_SMALLER),
    ):
        ours, theirs = (_lines.planned(system, posed, QUICK).attainment for system in (free, printed))
        assert ours == pytest.approx(theirs)


# the thesis's cluster


def test_clients_achieve_what_was_measured() -> None:
    posed = problem(("resnet50", "bert"), 500, 200 * MILLISECOND, 1)
    requests = _world.clients(posed, 4000, seed=3)
    assert [_lines.submitted(posed, requests)[name] for name in ("resnet50", "bert")] == pytest.approx(
        [433.34, 433.34], rel=0.04
    )
    counted = [
        model for at, model in zip(requests.times, requests.models, strict=True) if at >= _world.WARMUP
    ]
    assert (counted.count(0), counted.count(1)) == (4000, 4000)
    assert requests == _world.clients(posed, 4000, seed=3) != _world.clients(posed, 4000, seed=4)


def test_sixteen_images_take_what_is_printed() -> None:
    path = _world.path(problem(("resnet50",), 500, SECOND, 1))
    assert path.transfer.of(16, 16 * path.payload("resnet50").input) == round(8.7 * MILLISECOND)
    assert path.payload("resnet50").input == 602_112


def test_resnet50_beside_alexnet_takes_8_ms() -> None:
    posed = problem(("alexnet", "resnet50"), 500, SECOND, 1)
    shared = _world.SharedSms(posed.models)
    alone = posed.models[1].forms[next(iter(posed.models[1].forms))].latency(4)
    both = shared.slowdowns(posed.gpus[0], [Tenant(0, 4), Tenant(1, 4)])
    assert both[1] * alone / MILLISECOND == pytest.approx(8, rel=0.001)
    assert shared.slowdowns(posed.gpus[0], [Tenant(0, 4, busy=False), Tenant(1, 4)]) == (1.0, 1.0)


def test_whoever_asks_for_more_sms_than_there_are_waits_in_proportion() -> None:
    posed = problem(("vgg19", "bert"), 100, SECOND, 1)
    shared = _world.SharedSms(posed.models)
    free = shared.slowdowns(posed.gpus[0], [Tenant(0, 128), Tenant(1, 128)])
    halved = shared.slowdowns(posed.gpus[0], [Tenant(0, 128, 0.5), Tenant(1, 128, 0.5)])
    assert free[0] == pytest.approx(2.0, abs=0.01)  # 0.9976 and 0.9989 of the SMs
    assert 1.0 < halved[0] < 1.4
