"""The quick simulation of drafts is close to worker queues."""

from __future__ import annotations

import pytest

from astrarium.placement.evaluation import evaluate
from astrarium.placement.interference import IgniterInterference
from astrarium.placement.plan import Plan
from astrarium.placement.policies.planner import GREEDY
from astrarium.placement.policies.planner.draft import Site, SiteMember, replicas
from astrarium.placement.policies.planner.judge import (
    CautiousInterference,
    made_up,
)
from astrarium.placement.policies.planner.options import ModelOptions
from astrarium.placement.policies.planner.quick_simulation import QuickSimulation, worths
from astrarium.placement.problem import ALONE, PlacementRequests, Problem
from astrarium.placement.worker_queues import Batching
from tests.support.placement.igniter_cases import NOTES, problem_of


def seen_by_glance(problem: Problem, site: Site, requests: PlacementRequests) -> list[float]:
    weights = worths([model.rate for model in problem.models], 0.0)
    simulation = QuickSimulation(
        ModelOptions(problem), [requests], GREEDY, CautiousInterference(problem), weights
    )
    attained: list[float] = simulation((site,)).attained.tolist()
    return attained


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_quick_look_is_close_to_queues_that_do_not_wait(share: float) -> None:
    problem = problem_of([("resnet50", 40, 300)], gpus=1)
    requests = made_up(problem.models, 5, 3000)
    site = Site((0,), ALONE, (SiteMember(0, 8, share),))
    [quick] = seen_by_glance(problem, site, requests)
    plan = Plan("x", replicas(problem, (site,)))
    whole = evaluate(problem, plan, requests, IgniterInterference(problem), Batching(max_wait=0))
    assert quick == pytest.approx(whole.attainment, abs=0.01)


def test_limits_on_batches_are_kept() -> None:
    problem = problem_of([("resnet50", 40, 420)], gpus=1)  # one by one it would take 2.6 ms each
    requests = made_up(problem.models, 5, 3000)
    one, many = (
        seen_by_glance(problem, Site((0,), ALONE, (SiteMember(0, b),)), requests)[0] for b in (1, 16)
    )
    assert one < many
    assert many > 0.99


def test_company_is_felt() -> None:
    problem = problem_of(NOTES, gpus=1)
    requests = made_up(problem.models, 5, 3000)
    own = SiteMember(1, 8, 0.3)
    alone = seen_by_glance(problem, Site((0,), ALONE, (own,)), requests)[1]
    beside = seen_by_glance(
        problem, Site((0,), ALONE, (own, SiteMember(2, 8, 0.6), SiteMember(0, 8, 0.1))), requests
    )[1]
    assert beside < alone
