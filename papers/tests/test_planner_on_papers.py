"""planner on the cases of papers: it serves fresh requests no worse than the policies of their authors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from papers.tests.elvinger.thesis_cases import vision
from tests.support.placement.plans import planned

from astrarium.core.quantities import SECOND
from astrarium.core.random_streams import stream
from astrarium.placement.evaluation import evaluate
from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.interference import IgniterInterference, Interference, NoInterference
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Judge, Search
from astrarium.placement.policies.planner import Planner
from astrarium.placement.problem import Problem
from astrarium.testing.placement import Watched, examine
from astrarium_papers.alpaserve._common import cases, workloads
from astrarium_papers.alpaserve._common.cases import FAIR, Case
from astrarium_papers.elvinger._world import poisson

RIVALS = ("usher", "wao-usher", "ao-milp", "wsm-milp")


def placed(problem: Problem, judge: Judge | None = None, **parameters: Any) -> Plan:
    plan = Planner(Planner.Parameters(**parameters)).place(problem, Search(judge))
    examine(plan, problem)
    return plan


def fresh(
    problem: Problem, plan: Plan, interference: Callable[[Problem], Interference], seeds: int = 2
) -> list[float]:
    """Attainment on Poisson requests that nobody planned with."""
    attained = []
    for seed in range(seeds):
        requests = poisson(problem, 3 * SECOND, stream(seed, "fresh").random)
        seen = evaluate(problem, plan, requests, interference(problem), warmup=SECOND // 2)
        assert seen.attainment is not None
        attained.append(seen.attainment)
    return attained


def nothing(problem: Problem) -> Interference:
    return NoInterference()


@pytest.mark.thorough
@pytest.mark.parametrize("count", [4, 5, 6])
def test_the_thesis_vision_models_are_served_at_least_as_well(count: int) -> None:
    """6.2.1: by turns where GPUs are shared, and with no interference at all."""
    problem = vision(count)
    plan = placed(problem)
    rivals = [planned(name, problem) for name in RIVALS]
    for world in (IgniterInterference, nothing):
        ours = fresh(problem, plan, world)
        for rival in rivals:
            pairs = zip(ours, fresh(problem, rival, world), strict=True)
            assert all(mine >= theirs - 0.001 for mine, theirs in pairs), rival.policy
        assert min(ours) > 0.99


@pytest.mark.thorough
def test_alpaserves_case_is_served_at_least_as_well_on_fresh_requests() -> None:
    """32 models on 16 GPUs; the plan expects what it gets, and not what its own requests let it hope."""
    case = Case(workloads.SETS["S1"], 16, 64.0, 4.0, 5.0, 468.0)
    problem = cases.problem(case, FAIR)
    plan = placed(problem, runtime=GroupRuntime(), effort=60.0)
    theirs = planned("alpaserve", problem)
    ours, rivals = (
        [cases.judge(case, candidate, FAIR, seed).attainment for seed in range(4)]
        for candidate in (plan, theirs)
    )
    assert sum(ours) >= sum(rivals)
    assert plan.attainment == pytest.approx(sum(ours) / 4, abs=0.01)


def test_a_model_too_large_for_one_gpu_shares_pipelines_with_others() -> None:
    case = Case(("moe-7.1b", "bert-1.3b"), 3, 2.0, slo=5.0)
    plan = placed(cases.problem(case, FAIR), runtime=GroupRuntime(), effort=5.0)
    assert {replica.shape.gpus for replica in plan.of_model(0)} == {2}
    assert plan.missing == {}


def test_each_replica_says_why_it_is_there() -> None:
    plan = placed(vision(6))
    whys = {replica.model: replica.why for replica in plan.replicas}
    assert whys[3].startswith("for 500/s within 200 ms; batches of up to ")
    first, second = (replica.why for replica in plan.of_model(2))
    assert first.startswith("first of 2 replicas for 500/s within 200 ms")
    assert re.match(r"second replica: one alone served 0\.[45]\d of 500/s within 200 ms; batches of ", second)


def test_more_effort_is_not_worse_on_what_it_plans_with() -> None:
    case = Case(("bert-1.3b", "bert-2.6b") * 6, 6, 12.0, 4.0, 5.0, 100.0)
    problem = cases.problem(case, FAIR)
    attained = []
    for effort in (0.0, 40.0):
        search = Watched()
        Planner(Planner.Parameters(effort=effort, runtime=GroupRuntime())).place(problem, search)
        attained.append(max((plan.attainment or 0.0) for plan in search.plans))
    assert attained[0] < attained[1]
