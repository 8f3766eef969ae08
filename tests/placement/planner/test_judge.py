"""The samples that the planner judges by, and the interference that it assumes."""

from __future__ import annotations

import numpy as np
import pytest

from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.placement.interference import IgniterInterference, Tenant
from astrarium.placement.policies.planner.judge import (
    CautiousInterference,
    long_enough,
    made_up,
    rearranged,
    samples,
)
from astrarium.placement.problem import PlacementRequests, Problem
from astrarium.testing.placement.problems import gpus, model
from tests.support.placement.igniter_cases import NOTES, problem_of
from tests.support.placement.planner_cases import five_models


def test_made_up_requests_are_poisson_at_the_rates() -> None:
    models = five_models(1).models
    requests = made_up(models, 0, 50_000)
    span = requests.times[-1] / SECOND
    assert list(requests.times) == sorted(requests.times)
    for spec in models:
        own = np.array(
            [at for at, index in zip(requests.times, requests.models, strict=True) if index == spec.index]
        )
        gaps = np.diff(own) / SECOND
        assert len(own) == pytest.approx(spec.rate * span, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.05)


def test_samples_differ_and_stay_the_same() -> None:
    problem = five_models(1)
    first, second = (samples(problem, 3, 1000) for _ in range(2))
    assert first == second
    assert len({requests.times for requests in first}) == 3


def test_rearranged_requests_keep_the_rate_and_the_bursts_of_each_model() -> None:
    problem = Problem((model(0, rate=50.0), model(1, rate=5.0)), gpus(1))
    bursts = [second * SECOND + place * MILLISECOND for second in range(100) for place in range(40)]
    calm = [place * SECOND // 5 for place in range(500)]
    both = sorted([(at, 0) for at in bursts] + [(at, 1) for at in calm])
    own = PlacementRequests(tuple(at for at, _ in both), tuple(index for _, index in both))
    other = rearranged(own, problem.models, 1)
    assert other != own
    assert other.models.count(0) == pytest.approx(5000, rel=0.02)  # 50 a second; the sample had 40
    assert other.models.count(1) == pytest.approx(500, rel=0.02)
    gaps = np.diff([at for at, index in zip(other.times, other.models, strict=True) if index == 0])
    assert np.median(gaps) == pytest.approx(0.8 * MILLISECOND, rel=0.01)


def test_a_sample_of_another_load_is_not_stretched() -> None:
    problem = Problem((model(0, rate=1000.0),), gpus(1))
    own = PlacementRequests(tuple(range(0, 10 * SECOND, SECOND)), (0,) * 10)
    assert len(rearranged(own, problem.models, 1).times) == 10


def test_judges_hear_long_enough_to_see_a_queue_grow() -> None:
    problem = five_models(1)
    requests = long_enough(problem, made_up(problem.models, 0, 30_000), 100)
    assert requests.times[-1] == pytest.approx(25 * problem.models[0].slo, rel=0.01)


def test_models_with_coefficients_are_slowed_as_igniter_says() -> None:
    problem = problem_of(NOTES, gpus=1)
    tenants = [Tenant(0, 4, 0.2), Tenant(1, 8, 0.4), Tenant(2, 4, 0.4, busy=False)]
    theirs = IgniterInterference(problem).slowdowns(problem.gpus[0], tenants)
    assert CautiousInterference(problem).slowdowns(problem.gpus[0], tenants) == theirs


def test_others_are_slowed_by_what_their_neighbours_use() -> None:
    problem = five_models(1)
    caution = CautiousInterference(problem)
    gpu = problem.gpus[0]
    alone, idle = caution.slowdowns(gpu, [Tenant(1, 8, 0.4), Tenant(3, 8, 0.6, busy=False)])
    small = caution.slowdowns(gpu, [Tenant(1, 8, 0.4), Tenant(1, 4, 0.6)])
    large = caution.slowdowns(gpu, [Tenant(1, 8, 0.4), Tenant(3, 8, 0.6)])
    assert (alone, idle) == (1.0, 1.0)
    assert 1 < small[0] < large[0] < 1.15


def test_whoever_may_use_all_of_a_gpu_shares_it_evenly() -> None:
    problem = five_models(1)
    slowed = CautiousInterference(problem).slowdowns(problem.gpus[0], [Tenant(1, 8), Tenant(3, 8)])
    assert min(slowed) >= 2
