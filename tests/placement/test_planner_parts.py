"""Parts of planner: samples of requests, options, the quick look and the company it fears."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from astrarium.core.quantities import GIB, MILLISECOND, SECOND
from astrarium.placement.evaluation import evaluate
from astrarium.placement.groups import simulation as group_simulation
from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.interference import IgniterInterference, Tenant
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Search
from astrarium.placement.policies.planner import GREEDY, Planner
from astrarium.placement.policies.planner.climb import Climb
from astrarium.placement.policies.planner.draft import Draft, FitCheck, Site, SiteMember, replicas
from astrarium.placement.policies.planner.explain import DraftExplainer
from astrarium.placement.policies.planner.finishing import trimmed
from astrarium.placement.policies.planner.judge import (
    CautiousInterference,
    long_enough,
    made_up,
    rearranged,
    samples,
)
from astrarium.placement.policies.planner.mending import DraftJudge
from astrarium.placement.policies.planner.moves import Moves, Reshaping
from astrarium.placement.policies.planner.options import BUSY, ModelOptions
from astrarium.placement.policies.planner.quick_simulation import QuickSimulation, worths
from astrarium.placement.problem import ALONE, PlacementRequests, Problem, Shape
from astrarium.placement.worker_queues import Batching
from astrarium.testing.placement.problems import gpus, model
from tests.support.placement.igniter_cases import NOTES, problem_of

# what is to no purpose


def five_models(count: int) -> Problem:
    """Models that use from little to half of a GPU."""
    used = enumerate((0.05, 0.1, 0.5, 0.2, 0.4))
    models = tuple(model(index, rate=50.0, slo=200 * MILLISECOND, use=use) for index, use in used)
    return Problem(models, gpus(count))


def benched(simulation: QuickSimulation, worth: Callable[[Draft], float]) -> DraftJudge:
    return DraftJudge(simulation, lambda draft: [worth(draft)] * len(simulation.problem.models), 40)


def looking(problem: Problem) -> Climb:
    options = ModelOptions(problem)
    weights = worths([each.rate for each in problem.models], 0.1)
    simulation = QuickSimulation(
        options, samples(problem, 2, 500), GREEDY, CautiousInterference(problem), weights
    )
    return Climb(simulation, Moves(options), Search(), 1e9)


def test_a_replica_goes_if_neither_the_quick_look_nor_the_judge_misses_it() -> None:
    climb = looking(Problem((model(0, rate=1.0),), gpus(2)))
    both = tuple(Site((gpu,), members=(SiteMember(0, 1),)) for gpu in range(2))
    assert trimmed(climb, both, benched(climb.simulation, lambda draft: 1.0)) == (both[0], Site((1,)))
    misses = benched(climb.simulation, lambda draft: 1.0 if draft == both else 0.99)
    assert trimmed(climb, both, misses) == both


def test_a_replica_without_which_the_others_were_too_busy_is_there_for_growth() -> None:
    """50 requests a second of 16 ms by two: one alone would be on the edge."""
    problem = Problem((model(0, alone=16 * MILLISECOND, each=2 * MILLISECOND, rate=50.0),), gpus(2))
    climb = looking(problem)
    both = tuple(Site((gpu,), members=(SiteMember(0, 1),)) for gpu in range(2))
    assert trimmed(climb, both, benched(climb.simulation, lambda draft: 1.0)) == both
    easy = PlacementRequests(tuple(range(0, 10 * SECOND, SECOND // 50)), (0,) * 500)
    weights = worths([50.0], 0.1)
    simulation = QuickSimulation(
        climb.simulation.options, [easy], GREEDY, CautiousInterference(problem), weights
    )
    _, second = DraftExplainer(climb.simulation.options).plan(both, 1.0, simulation).replicas
    assert second.why.startswith("second replica, for growth: one alone served 1.0000, 90% busy, of 50/s")


# samples


def test_made_up_requests_are_poisson_at_the_rates() -> None:
    models = five_models(1).models
    found = made_up(models, 0, 50_000)
    span = found.times[-1] / SECOND
    assert list(found.times) == sorted(found.times)
    for each in models:
        own = np.array(
            [at for at, index in zip(found.times, found.models, strict=True) if index == each.index]
        )
        gaps = np.diff(own) / SECOND
        assert len(own) == pytest.approx(each.rate * span, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.05)


def test_samples_differ_and_stay_the_same() -> None:
    problem = five_models(1)
    first, second = (samples(problem, 3, 1000) for _ in range(2))
    assert first == second
    assert len({each.times for each in first}) == 3


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
    heard = long_enough(problem, made_up(problem.models, 0, 30_000), 100)
    assert heard.times[-1] == pytest.approx(25 * problem.models[0].slo, rel=0.01)


# options


def test_a_share_carries_its_part_of_the_load_with_room_for_queues() -> None:
    problem = problem_of(NOTES, gpus=1)
    options = ModelOptions(problem)
    for place, each in enumerate(problem.models):
        for part in options.parts(place, 0):
            took = options.time(place, 0, part.batch, part.share)
            assert 2 * took <= each.slo
            assert part.rate * took / SECOND <= BUSY * part.batch
            assert (
                options.time(place, 0, part.batch, round(part.share - 0.05, 9)) > took or part.share <= 0.05
            )


def test_waiting_for_batches_leaves_room_for_smaller_ones_only() -> None:
    """Where a batch may wait to fill, it must be small enough to do so in time."""
    problem = problem_of([("resnet50", 40, 100)], gpus=1)
    at_once, patient = (ModelOptions(problem, wait).parts(0, 0)[0] for wait in (0, None))
    assert (patient.batch - 1) / 100 * SECOND < problem.models[0].slo
    assert patient.share >= at_once.share


# the quick look


def seen_by_glance(problem: Problem, site: Site, requests: PlacementRequests) -> list[float]:
    weights = worths([each.rate for each in problem.models], 0.0)
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


# interference


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


# changes


def test_every_change_is_possible() -> None:
    """All that is proposed for a crowded draft fits and is in time, alone."""
    problem = five_models(3)
    options = ModelOptions(problem)
    weights = worths([each.rate for each in problem.models], 0.0)
    simulation = QuickSimulation(
        options, [made_up(problem.models, 0, 500)], GREEDY, CautiousInterference(problem), weights
    )
    moves = Moves(options)
    beside = Site((0,), ALONE, (SiteMember(0, 4, 0.2), SiteMember(1, 8, 0.3), SiteMember(3, 4, 0.4)))
    draft = (beside, Site((1,), ALONE, (SiteMember(2, 8), SiteMember(4, 8))), Site((2,)))
    proposed = [each for place in range(5) for each in moves.all_for(draft, place, simulation(draft))]
    assert len(proposed) > 50
    assert draft not in proposed
    for change in proposed:
        assert all(moves.fits(site) for site in change)
        for site in change:
            assert not site.side or all(member.share < 1 for member in site.members)


def test_sites_are_cut_joined_and_turned() -> None:
    problem = Problem((model(0), model(1, weights=GIB)), gpus(4))
    draft = (
        Site((0, 1), Shape(2, 1), (SiteMember(0, 4), SiteMember(1, 4))),
        Site((2,)),
        Site((3,), ALONE, (SiteMember(1, 4),)),
    )
    found = list(Reshaping(ModelOptions(problem))(draft, [0, 1]))
    shapes = {tuple(sorted((site.shape, len(site.members)) for site in each)) for each in found}
    kept = [(ALONE, 0), (ALONE, 1)]
    assert tuple(sorted([*kept, (Shape(1, 2), 2)])) in shapes  # turned
    assert tuple(sorted([*kept, (ALONE, 2), (ALONE, 2)])) in shapes  # cut
    assert tuple(sorted([(Shape(2, 1), 2), (Shape(2, 1), 1)])) in shapes  # joined
    for each in found:
        assert sorted(gpu for site in each for gpu in site.gpus) == [0, 1, 2, 3]
        assert all(FitCheck(problem).holds(site) for site in each)


def test_batches_need_a_runtime_that_waits() -> None:
    """AlpaServe's own dispatch knows single requests only, and so does the plan then."""
    problem = Problem((model(0, rate=20.0),), gpus(1))
    plan = Planner(Planner.Parameters(runtime=GroupRuntime(), effort=1.0)).place(problem, Search())
    assert {replica.batch for replica in plan.replicas} == {1}


def test_without_the_native_simulation_the_plan_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = Planner.Parameters(samples=2, sample=400, effort=0.1, judged=4, heard=300)
    problem = problem_of(NOTES, gpus=2)
    native = Planner(parameters).place(problem, Search())
    monkeypatch.setattr(group_simulation, "extension", lambda name: None)
    assert Planner(parameters).place(problem, Search()) == native
