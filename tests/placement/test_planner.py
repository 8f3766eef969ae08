"""planner: its plans keep the contract, serve fresh requests better than the others', and say why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from astrarium.core.quantities import GIB, SECOND
from astrarium.core.random_streams import stream
from astrarium.placement.evaluation import evaluate
from astrarium.placement.interference import IgniterInterference, Interference, NoInterference
from astrarium.placement.plan import Plan, check
from astrarium.placement.policies import Judge, Search, placement_policies
from astrarium.placement.policies.planner import Planner
from astrarium.placement.problem import ALONE, PlacedModel, PlacementGpu, PlacementRequests, Problem
from astrarium.testing.placement import Watched, examine
from astrarium.testing.placement.problems import SPREAD, gpus, model
from tests.support.placement.igniter_cases import NOTES, problem_of
from tests.support.placement.plans import planned, poisson


def placed(problem: Problem, judge: Judge | None = None, **parameters: Any) -> Plan:
    plan = Planner(Planner.Parameters(**parameters)).place(problem, Search(judge))
    examine(plan, problem)
    return plan


def fresh(
    problem: Problem, plan: Plan, interference: Callable[[Problem], Interference], seeds: int = 2
) -> list[float]:
    """Attainment on Poisson requests that nobody planned with."""
    attainments = []
    for seed in range(seeds):
        requests = poisson(problem, 3 * SECOND, stream(seed, "fresh").random)
        seen = evaluate(problem, plan, requests, interference(problem), warmup=SECOND // 2)
        assert seen.attainment is not None
        attainments.append(seen.attainment)
    return attainments


def bare(known: PlacedModel) -> PlacedModel:
    """What it uses of a GPU is not known."""
    return msgspec.structs.replace(known, demands={})


def nothing(problem: Problem) -> Interference:
    return NoInterference()


def test_it_knows_of_queues_where_igniter_does_not() -> None:
    """iGniter's own case, one GPU, with Poisson requests in the place of even ones."""
    problem = problem_of(NOTES, gpus=1)
    theirs = fresh(problem, planned("igniter", problem), IgniterInterference)
    plan = placed(problem)
    ours = fresh(problem, plan, IgniterInterference)
    assert max(theirs) < 0.75
    assert min(ours) > 0.95
    assert plan.attainment == pytest.approx(sum(ours) / len(ours), abs=0.02)


def test_the_judge_that_is_brought_decides() -> None:
    """Two judges that see nothing but whether GPUs are shared by turns or side by side."""
    problem = problem_of(NOTES, gpus=2)

    def sides(plan: Plan, requests: PlacementRequests) -> Sequence[float]:
        return [float(any(replica.share < 1 for replica in plan.of_model(index))) for index in range(3)]

    def turns(plan: Plan, requests: PlacementRequests) -> Sequence[float]:
        return [1 - side for side in sides(plan, requests)]

    assert all(replica.share < 1 for replica in placed(problem, sides).replicas)
    assert all(replica.share == 1 for replica in placed(problem, turns).replicas)


def test_what_the_judge_sees_fail_is_mended() -> None:
    """A judge that wants small batches of one model: no simulation would ask for that."""
    problem = problem_of(NOTES, gpus=2)

    def wary(plan: Plan, requests: PlacementRequests) -> Sequence[float]:
        largest = max(replica.batch for replica in plan.of_model(0))
        return [1 / largest, 1.0, 1.0]

    assert {replica.batch for replica in placed(problem, wary).of_model(0)} == {1}


def test_what_was_confirmed_is_expected() -> None:
    problem = problem_of(NOTES, gpus=1)
    assert placed(problem, lambda plan, requests: [0.5] * 3).attainment == pytest.approx(0.5)


def test_it_is_confirmed_with_requests_that_it_was_not_chosen_with() -> None:
    judged: list[PlacementRequests] = []

    def judge(plan: Plan, requests: PlacementRequests) -> Sequence[float]:
        judged.append(requests)
        return [0.9] * 3

    problem = problem_of(NOTES, gpus=1)
    requests = poisson(problem, 2 * SECOND, stream(7, "own").random)
    placed(msgspec.structs.replace(problem, requests=requests), judge, judged=8)
    distinct = {sample.times for sample in judged}
    assert len(distinct) == 2
    assert requests.times not in distinct


def test_nothing_is_shared_side_by_side_without_measurements() -> None:
    plan = placed(Problem(tuple(bare(model(index, rate=40.0)) for index in range(4)), gpus(2)))
    assert {replica.share for replica in plan.replicas} == {1.0}
    assert plan.missing == {}


def test_small_models_run_side_by_side_where_turns_would_not_do() -> None:
    """Each is busy for most of the time and uses little of a GPU."""
    small = tuple(model(index, rate=55.0, shapes=(ALONE,), use=0.1) for index in range(3))
    problem = Problem(small, gpus(1))
    plan = placed(problem, sample=3000)
    assert all(replica.share < 1 for replica in plan.replicas)
    assert min(fresh(problem, plan, IgniterInterference)) > 0.99


def test_batches_are_no_larger_than_memory_allows() -> None:
    heavy = model(0, rate=20.0, weights=8 * GIB, activations=3 * GIB, shapes=(ALONE,))
    problem = Problem((heavy,), gpus(1))
    [replica] = placed(problem).replicas
    assert replica.batch <= 2


def test_without_models_there_is_nothing_to_place() -> None:
    assert placed(Problem((), gpus(2))).replicas == ()


@pytest.mark.parametrize("sizes", [(8, 16, 16), (16, 8, 16), (16, 8, 8, 16)])
def test_a_large_model_finds_the_gpus_that_are_large_enough(sizes: tuple[int, ...]) -> None:
    """No single GPU holds it, and GPUs that lie beside each other do not either."""
    large = model(0, weights=24 * GIB, shapes=SPREAD)
    machines = tuple(PlacementGpu(place, size * GIB) for place, size in enumerate(sizes))
    plan = placed(Problem((large,), machines))
    assert [{sizes[gpu] for gpu in replica.gpus} for replica in plan.replicas] == [{16}]


def test_an_idle_model_is_placed_where_there_is_room() -> None:
    plan = placed(Problem((model(0), model(1, rate=0.0)), gpus(1)))
    assert plan.missing == {}


def test_neighbours_are_named() -> None:
    plan = placed(problem_of(NOTES, gpus=1))
    assert any("vgg19" in replica.why and "resnet50" in replica.why for replica in plan.of_model(0))


def test_what_is_missing_says_what_it_takes() -> None:
    late = placed(Problem((model(0, slo=1000), model(1)), gpus(1)))
    assert late.missing[0].startswith("an objective of 5.5 ms, which one request takes: not 0.001 ms")
    large = placed(Problem((model(0, weights=90 * GIB, shapes=(ALONE,)), model(1)), gpus(1)))
    assert large.missing == {0: "90.01 GiB on a GPU"}
    full = placed(Problem(tuple(model(i, weights=10 * GIB, shapes=(ALONE,)) for i in range(2)), gpus(1)))
    assert [why.split(" beside")[0] for why in full.missing.values()] == ["10.01 GiB on a GPU"]


def test_a_model_that_makes_all_others_late_is_given_up() -> None:
    def jealous(plan: Plan, requests: PlacementRequests) -> Sequence[float]:
        return [0.0, 0.0 if any(plan.of_model(0)) else 1.0]

    models = (bare(model(index, rate=rate, shapes=(ALONE,))) for index, rate in enumerate((30.0, 300.0)))
    plan = placed(Problem(tuple(models), gpus(1)), jealous)
    assert plan.missing == {0: "time: all models keep 1.2 GPUs busy, 1 are there, others' requests need them"}
    assert plan.attainment == pytest.approx(10 / 11)


def test_reports_only_get_better() -> None:
    search = Watched()
    Planner(Planner.Parameters()).place(problem_of(NOTES, gpus=2), search)
    attainments = [plan.attainment or 0.0 for plan in search.plans]
    assert attainments
    assert attainments[-1] == max(attainments)
    assert len({plan.replicas for plan in search.plans}) == len(attainments)


@pytest.mark.parametrize("looks", [0, 5, 40, 200])
def test_an_ended_search_answers_with_the_best_so_far(looks: int) -> None:
    problem = problem_of(NOTES, gpus=2)
    search = Watched(looks)
    plan = Planner(Planner.Parameters()).place(problem, search)
    check(plan, problem)
    best = max((plan.attainment or 0.0 for plan in search.plans), default=0.0)
    if looks >= 40:
        assert best > 0.5
        assert (plan.attainment or 0.0) > 0.5


def test_models_go_by_their_index_not_their_place() -> None:
    problem = problem_of(NOTES, gpus=2)
    other = msgspec.structs.replace(
        problem,
        models=tuple(msgspec.structs.replace(spec, index=90 - spec.index) for spec in problem.models),
    )
    forth = placed(problem)
    back = placed(other)
    assert [90 - replica.model for replica in back.replicas] == [replica.model for replica in forth.replicas]
    assert forth.attainment == back.attainment


def test_nothing_stays_that_nobody_misses() -> None:
    """A judge that likes every model everywhere, and does not mind if one replica of the second goes."""

    def crowds(plan: Plan, requests: PlacementRequests) -> Sequence[float]:
        return [min(1.0, len(list(plan.of_model(0))) / 3), 1.0]

    problem = Problem((bare(model(0, shapes=(ALONE,))), bare(model(1, shapes=(ALONE,)))), gpus(3))
    plan = placed(problem, crowds)
    assert [len(list(plan.of_model(index))) for index in range(2)] == [3, 1]


def test_it_is_registered() -> None:
    assert placement_policies.get("planner") is Planner
