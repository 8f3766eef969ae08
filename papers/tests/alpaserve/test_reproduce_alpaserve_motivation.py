"""AlpaServe's Figures 1 to 10 in their quick forms, and what they are made of."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from papers.tests.reproductions import explained, listed, measured_once

from astrarium.core.quantities import SECOND
from astrarium.placement.groups.runtime import DEFAULT
from astrarium.placement.problem import ALONE, Shape
from astrarium_papers.alpaserve import figure4, figure8, figure10
from astrarium_papers.alpaserve._common import cases, queueing, two_models, utilization
from astrarium_papers.alpaserve._common.settings import (
    MODEL,
    PARALLEL,
    SIMPLE,
    crossing,
    outcome,
    pipelined,
    replicated,
    traffic,
)

NAMES = [f"figure{number}" for number in (1, 2, 4, 5, 6, 7, 8, 10)]
reproduced = measured_once("alpaserve")


def row(name: str, words: str) -> Any:
    (match,) = [row for row in reproduced(name).rows if words in row.what]
    return match


def holds(name: str, words: str) -> bool:
    (verdict,) = [claim.holds for claim in reproduced(name).claims if words in claim.what]
    return verdict


def test_they_are_listed_in_their_order() -> None:
    assert [name for name in listed("alpaserve") if name in NAMES] == NAMES


TestReproductions = explained(reproduced, NAMES)


def test_figure1_is_the_papers_sum_and_more_where_the_overhead_keeps_gpus_busy() -> None:
    assert reproduced("figure1").findings.data["latencies"][PARALLEL][:4] == [1.1, 1.6, 2.1, 2.6]
    assert row("figure1", "keeps GPUs busy").ours == pytest.approx(1.925)


def test_figure2_speedups_are_the_papers() -> None:
    assert all(row.verdict == "agrees" for row in reproduced("figure2").rows)
    assert holds("figure2", "M/D/1")
    assert holds("figure2", "our policies find")


def test_figure4_memory_decides() -> None:
    assert all(claim.holds for claim in reproduced("figure4").claims)
    assert figure4.needed(1, 2) < figure4.BOUND < figure4.needed(1, 3)  # two models fit on a V100


@pytest.mark.parametrize("name", ["figure5", "figure7"])
def test_the_authors_numbers_come_out_on_their_requests(name: str) -> None:
    theirs = [row for row in reproduced(name).rows if "on its requests" in row.what]
    assert len(theirs) >= 10
    assert all(row.verdict == "agrees" for row in theirs)


def test_figure5_replication_is_better_near_the_peak_only() -> None:
    assert all(claim.holds for claim in reproduced("figure5").claims)


def test_figure6_burstiness_decides() -> None:
    assert all(claim.holds for claim in reproduced("figure6").claims)


def test_figure7_the_slo_decides() -> None:
    assert 8 < row("figure7", "catches up").ours < 12
    assert holds("figure7", "with loose SLOs it stays behind")
    assert holds("figure7", "the larger the overhead")


def test_figure8_the_program_finds_what_was_measured() -> None:
    for stages in (2, 4, 8):
        stage_row = row("figure8", f"{stages} stages")
        assert stage_row.ours == pytest.approx(stage_row.paper, rel=0.05)
    assert [claim.verdict for claim in reproduced("figure8").claims] == ["given"] * 2 + ["holds"] * 3


def test_figure10_the_simulator_agrees_with_the_formulas() -> None:
    compared = [row for row in reproduced("figure10").rows if row.paper is not None]
    assert len(compared) == 2 * len(figure10.QUICK)
    assert all(row.verdict == "agrees" for row in compared)
    assert all(claim.holds for claim in reproduced("figure10").claims)


@pytest.mark.parametrize("share", [0.5, 0.35])
@pytest.mark.parametrize("load", [0.1, 0.7, 1.2, 1.5])
def test_at_the_bounds_both_placements_are_equally_fast(load: float, share: float) -> None:
    simple = queueing.simple(load, 1.0, share)
    alpha = queueing.most_communication(load, share)
    beta = queueing.most_unevenness(load, share)
    assert queueing.pipeline(load, alpha, alpha / 2) == pytest.approx(simple)
    assert queueing.pipeline(load, 1.0, beta / 2) == pytest.approx(simple)
    assert queueing.pipeline(load, alpha + 0.01, (alpha + 0.01) / 2) > simple


def test_the_bounds_at_both_ends() -> None:
    assert queueing.most_communication(0.0) == 1
    assert queueing.most_unevenness(0.0) == pytest.approx(math.sqrt(2))
    assert queueing.most_unevenness(1e-9) == pytest.approx(math.sqrt(2))
    assert queueing.most_communication(1.999) == pytest.approx(1, abs=1e-3)
    falling = [queueing.most_unevenness(load) for load in figure10.LOADS]
    assert all(first > second for first, second in pairwise(falling))


def test_nobody_is_served_beyond_the_peak() -> None:
    assert queueing.waiting(1.0, 1.0) == math.inf
    assert queueing.simple(1.5, 1.0, 0.2) == math.inf
    assert queueing.waiting(0.5, 1.0) == 0.5


def test_the_formula_has_the_simulators_overheads() -> None:
    alone = cases.forms("bert-6.7b")[ALONE].latency(1) / SECOND * (1 + DEFAULT.stage_overhead)
    expected = queueing.simple(two_models.RATE, alone) + DEFAULT.fixed_overhead / SECOND
    assert two_models.theory(SIMPLE, 0.5) == pytest.approx(expected)


@pytest.mark.parametrize("copies", [1, 2, 5, 8])
def test_every_model_has_as_many_replicas(copies: int) -> None:
    groups = replicated(8, copies)
    counted = Counter(model for group in groups for model in group.models)
    assert set(counted.values()) == {copies}
    assert all(len(set(group.models)) == copies for group in groups)
    assert len({group.gpus for group in groups}) == 8


def test_pipelines_share_all_gpus_and_have_all_models() -> None:
    groups = pipelined(8, 8, 4)
    assert [group.gpus for group in groups] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert all(group.models == tuple(range(8)) and group.shape == Shape(4) for group in groups)


def test_a_crossing_lies_between_two_points() -> None:
    assert crossing([1, 2, 4], [3, 1, -1]) == 3
    assert crossing([1, 2, 4], [3, -1, 1]) is None  # ahead in the end
    assert crossing([1, 2, 4], [-3, -1, 0]) == 1  # never ahead


def test_layers_take_what_was_measured_and_weigh_nearly_as_much() -> None:
    alone = cases.forms(MODEL)[ALONE]
    layers = figure8.layers(alone.latency(1))
    assert sum(layer.times[1] for layer in layers) == pytest.approx(alone.latency(1), abs=100)
    assert sum(layer.weights for layer in layers) == pytest.approx(alone.weights[0], rel=0.05)


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_a_partition_by_hand_has_every_layer_once(stages: int) -> None:
    layers = figure8.layers(SECOND)
    form = figure8.by_hand(layers, stages)
    assert sum(form.weights) == sum(layer.weights for layer in layers)
    sent = (stages - 1) * figure8.NVLINK.send(layers[0].output)
    assert form.latency(1) == sum(layer.times[1] for layer in layers) + sent


def test_levels_count_those_that_are_busy() -> None:
    times, count = utilization.levels(np.array([[0.0, 1.0], [1.0, 2.0], [1.5, 3.0]]))
    assert (times.tolist(), count.tolist()) == ([0, 1, 1.5, 2, 3], [1, 1, 2, 1, 0])
    shown = utilization.levels(np.array([[0.0, 1.0], [1.0, 2.0]]), (0.5, 2.0))
    assert [level.tolist() for level in shown] == [[1.0], [1.0]]


@pytest.mark.parametrize("name", [SIMPLE, PARALLEL])
def test_a_request_is_answered_when_its_last_stage_ends(name: str) -> None:
    models = two_models.placed(0.5)
    groups = two_models.GROUPS[name]
    workload = traffic([1.5, 1.5], 3.0, 100.0, seed=1)
    stages = groups[0].shape.stages
    ends = utilization.busy(models, groups, workload)[stages - 1 :: stages, 1]
    finish = (outcome(models, groups, workload).finish - DEFAULT.fixed_overhead) / SECOND
    assert ends == pytest.approx(finish, abs=1e-6)
