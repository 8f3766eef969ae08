"""Policies that place models on groups of GPUs: what they say, idle models, batch limits, odd clusters."""

from __future__ import annotations

from typing import Any

import pytest

from astrarium.core.quantities import GIB, MILLISECOND
from astrarium.placement.groups.layout import Group
from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.policies._search_context import MOST, SearchContext, plan_of, steady_requests
from astrarium.placement.problem import ALONE, PlacementGpu, Problem, Shape
from astrarium.testing.placement.problems import SPREAD, gpus, model


def test_words_for_every_shape_and_for_what_answers_nothing() -> None:
    problem = Problem((model(0), model(1, rate=0.0), model(2)), gpus(4))
    groups = (
        Group((0,), ALONE, (0,)),
        Group((1, 2), Shape(1, 2), (0, 1, 2)),
        Group((3,), ALONE, (2,)),
    )
    whys = [
        replica.why
        for replica in plan_of("x", SearchContext.of(problem, GroupRuntime()), groups, None).replicas
    ]
    assert whys[0].startswith("group 0 of 1 GPU, for it alone: answers ")
    assert ", its 2 replicas all; " in whys[0]
    assert whys[2].startswith("group 1 of 2 GPUs, each with a part of every layer, shared with 2 models: ")
    assert "nobody asked for it yet" in whys[2]


@pytest.mark.parametrize("name", ["alpaserve", "selective-replication", "clockwork++"])
@pytest.mark.parametrize("rates", [(0.0, 0.0), (5.0, 0.0), (0.0, 5.0), (1e-9, 5.0)])
def test_a_model_that_nobody_asks_for_is_placed_where_there_is_room(
    name: str, rates: tuple[float, ...]
) -> None:
    factory: Any = placement_policies.get(name)
    problem = Problem(tuple(model(place, rate=rate) for place, rate in enumerate(rates)), gpus(1))
    assert factory(factory.Parameters()).place(problem, Search()).missing == {}


def test_batch_limits_are_those_that_are_in_time() -> None:
    """A batch of 3 takes 14 ms and what the runtime adds, one of 4 is too late."""
    factory: Any = placement_policies.get("alpaserve")
    runtime = GroupRuntime(dispatch="queue", max_batch=64)
    problem = Problem((model(0, slo=26 * MILLISECOND, shapes=(ALONE,)),), gpus(1))
    [replica] = factory(factory.Parameters(runtime=runtime)).place(problem, Search()).replicas
    assert replica.batch == 3


def test_gpus_that_make_up_no_group_stay_free() -> None:
    """Two of three GPUs are large enough, and the third can run nothing."""
    factory: Any = placement_policies.get("alpaserve")
    machines = (PlacementGpu(0, 8 * GIB), PlacementGpu(1, 16 * GIB), PlacementGpu(2, 16 * GIB))
    problem = Problem((model(0, weights=24 * GIB, shapes=SPREAD),), machines)
    [replica] = factory(factory.Parameters()).place(problem, Search()).replicas
    assert set(replica.gpus) == {1, 2}


def test_a_shape_that_is_never_tried_is_no_less_than_nothing() -> None:
    factory: Any = placement_policies.get("alpaserve")
    problem = Problem((model(0, shapes=(Shape(3),)),), gpus(3))
    plan = factory(factory.Parameters(refine=0)).place(problem, Search())
    assert plan.attainment == 0
    assert plan.missing == {0: "groups that it can run on (op1pp3): none was made"}


def test_a_huge_load_is_made_up_for_a_shorter_time() -> None:
    assert len(steady_requests((model(0, rate=1e6), model(1, rate=1e6))).times) <= MOST
