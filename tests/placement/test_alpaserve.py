"""AlpaServe's searches, by hand: the papers' tests compare them with what the authors recorded."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np

from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.placement.groups.layout import Group, GroupLayout
from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.groups.simulation import score
from astrarium.placement.policies import Search
from astrarium.placement.policies._divisions import device_buckets
from astrarium.placement.policies._search_context import SearchContext, grouped
from astrarium.placement.policies._selection import GroupAssignment, whole
from astrarium.placement.problem import (
    ALONE,
    Form,
    PlacedModel,
    PlacementGpu,
    PlacementRequests,
    Problem,
    Shape,
)

GIB = 2**30


def test_the_whole_algorithm_with_a_wide_beam_finds_the_best_selection() -> None:
    """Against all ways to put three models on two GPUs that hold two each."""
    form = Form(ALONE, ((0, 10 * MILLISECOND),), (GIB,))
    models = tuple(PlacedModel(i, f"m{i}", (25 + 10 * i) * MILLISECOND, 1.0, {ALONE: form}) for i in range(3))
    chance = np.random.default_rng(4)
    times = np.sort(chance.integers(0, SECOND, 150)).tolist()
    problem = Problem(
        models,
        tuple(PlacementGpu(gpu, 2 * GIB) for gpu in range(2)),
        PlacementRequests(tuple(times), tuple(chance.integers(0, 3, 150).tolist())),
    )
    context = SearchContext.of(problem, GroupRuntime(stage_overhead=0, fixed_overhead=0))
    subsets = [subset for size in range(3) for subset in combinations(range(3), size)]
    best = max(
        score(
            GroupLayout.of(context.tables, [Group((0,), ALONE, a), Group((1,), ALONE, b)]), context.workload
        ).served
        for a, b in product(subsets, subsets)
    )
    assignment = GroupAssignment(context, [Group((0,), ALONE), Group((1,), ALONE)], np.ones(3, bool))
    best_found = whole(assignment, context.workload, Search(), beam=50)
    assert best_found.served == best
    narrow = GroupAssignment(context, [Group((0,), ALONE), Group((1,), ALONE)], np.ones(3, bool))
    assert whole(narrow, context.workload, Search(), beam=1).served <= best


def test_gpus_are_shared_out_by_demand() -> None:
    assert device_buckets([1.0, 3.0], 4, imbalance=1.0, most=100) == [(1, 3)]
    assert device_buckets([1.0, 1.0], 5, imbalance=1.5, most=100) == [(2, 3), (3, 2)]
    assert len(device_buckets([1.0, 1.0, 1.0], 12, imbalance=9.0, most=5)) == 5


def test_what_is_left_over_makes_up_smaller_pipelines() -> None:
    gpus = [PlacementGpu(gpu, GIB, node=gpu // 7) for gpu in range(14)]
    groups = grouped(gpus, Shape(2, 2))
    assert [(len(group.gpus), str(group.shape)) for group in groups] == [
        (4, "op2pp2"), (2, "op1pp2"), (1, "op1pp1")
    ] * 2  # fmt: skip
    assert [gpu for group in groups for gpu in group.gpus] == list(range(14))
