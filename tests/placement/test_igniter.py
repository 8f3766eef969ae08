"""iGniter's allocation, and what it does when GPUs run out."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.quantities import MILLISECOND
from astrarium.placement.plan import check
from astrarium.placement.problem import ALONE, Form, PlacedModel, PlacementGpu, Problem
from astrarium.serving.planning.colocation import v100
from tests.support.placement.igniter_cases import (
    MEMORY,
    NAMES,
    NOTES,
    Ask,
    model_of,
    placed,
    predictions,
    problem_of,
)


def test_the_published_case_comes_out() -> None:
    """AlexNet 15 ms 500/s, ResNet50 40 ms 400/s, VGG19 60 ms 200/s: one GPU."""
    problem = problem_of(NOTES, gpus=3)
    plan = placed(problem)
    check(plan, problem)
    replicas = {problem.models[r.model].name: (r.gpus, r.batch, r.share) for r in plan.replicas}
    assert replicas == {"vgg19": ((0,), 6, 0.375), "resnet50": ((0,), 8, 0.3), "alexnet": ((0,), 4, 0.1)}
    assert plan.missing == {}
    assert plan.attainment == 1


def test_shares_grow_by_company_alone() -> None:
    """Each of the three would do with less if it had a GPU to itself, or just as much."""
    least = {}
    for ask in NOTES:
        [replica] = placed(problem_of([ask], gpus=1)).replicas
        least[ask[0]] = replica.share
    assert least == {"vgg19": 0.35, "resnet50": 0.275, "alexnet": 0.1}


def test_a_model_too_large_for_one_gpu_fills_whole_ones_first() -> None:
    problem = problem_of([("vgg19", 60, 1200)], gpus=4)
    plan = placed(problem)
    check(plan, problem)
    assert [replica.share for replica in plan.replicas[:2]] == [1.0, 1.0]
    assert plan.replicas[2].share < 1
    assert len(plan.replicas) == 3
    throughput = sum(e.throughput * (0.9 if r.share == 1 else 1) for r, _, e in predictions(plan, problem))
    assert throughput >= 1200


def test_memory_bounds_batches_and_company() -> None:
    one = problem_of([("resnet50", 40, 400)], gpus=1)
    [free] = placed(one).replicas
    form = one.models[0].forms[ALONE]
    heavy = Form(ALONE, form.stage_times, (1000,), (100,))
    model = PlacedModel(
        0, "resnet50", one.models[0].slo, 100.0, {ALONE: heavy}, igniter=one.models[0].igniter
    )
    gpu = PlacementGpu(0, 1200, igniter=v100().gpu)
    problem = Problem((model,), (gpu,))
    plan = placed(problem)
    check(plan, problem)
    assert [replica.batch for replica in plan.replicas] == [2]
    assert free.batch == 8
    twins = Problem((model, PlacedModel(1, "b", model.slo, 10.0, model.forms, igniter=model.igniter)), (gpu,))
    assert len(placed(twins).replicas) == 1
    assert "the whole load takes 2 GPUs" in placed(twins).missing[1]


def test_a_batch_that_is_smaller_than_the_rate_asks_for_must_be_faster() -> None:
    """Two at a time, 250 a second: a batch every 8 ms, whose inputs (0.12 ms) are loaded meanwhile."""
    whole = model_of(0, "resnet50", 40, 250)
    times = whole.forms[ALONE].stage_times[0][:3]
    model = msgspec.structs.replace(whole, forms={ALONE: Form(ALONE, (times,), (1,))})
    problem = Problem((model,), (PlacementGpu(0, MEMORY, igniter=v100().gpu),))
    [(replica, _, expected)] = predictions(placed(problem), problem)
    assert replica.batch == 2
    assert expected.throughput >= 250
    assert f"of 8.12 ms; alone {replica.share * 100:g} % would do" in replica.why


CROWD: list[Ask] = [("alexnet", 15, 5000), ("resnet50", 40, 1400), ("vgg19", 60, 2000), ("ssd", 50, 10)]


def test_what_is_left_is_done_in_part_where_nobody_is_made_late() -> None:
    problem = problem_of(CROWD, gpus=3)
    squeezed = placed(problem)
    truncated = placed(problem, leftovers="truncate")
    for plan in (squeezed, truncated):
        check(plan, problem)
        assert in_time(plan, problem)
    assert squeezed.attainment is not None
    assert truncated.attainment is not None
    assert squeezed.attainment > 0.8 > 0.2 > truncated.attainment
    partly = [replica.why for replica in squeezed.replicas if "of 2000.0 requests a second" in replica.why]
    assert partly
    assert set(truncated.missing) == {0, 1, 3}
    assert "the whole load takes 6 GPUs" in truncated.missing[3]


def test_with_as_many_gpus_as_it_asked_for_nothing_is_missing() -> None:
    plan = placed(problem_of(CROWD, gpus=6))
    assert plan.missing == {}
    assert len(plan.gpus()) == 6
    assert plan == placed(problem_of(CROWD, gpus=6), leftovers="truncate")


def test_an_objective_below_what_one_request_takes_is_named() -> None:
    plan = placed(problem_of([("ssd", 5, 10), ("alexnet", 20, 10)], gpus=1))
    assert [replica.model for replica in plan.replicas] == [1]
    reason = plan.missing[0]
    assert reason.startswith("an objective of 12.31 ms")
    assert placed(problem_of([("ssd", 12.32, 10)], gpus=1)).missing == {}


def test_what_does_not_fit_in_memory_is_named() -> None:
    plan = placed(problem_of([("alexnet", 20, 10)], gpus=1, memory=1000))
    assert plan.missing == {0: "1048576 bytes on one GPU; the largest has 1000 bytes"}


def test_without_gpus_or_without_a_profile_on_one_everything_is_missing() -> None:
    assert placed(problem_of(NOTES, gpus=0)).missing.keys() == {0, 1, 2}
    spread = PlacedModel(0, "large", 10**9, 1.0, {})
    assert "a profile on one GPU" in placed(Problem((spread,), (PlacementGpu(0, MEMORY),))).missing[0]


def test_a_model_without_coefficients_is_taken_to_need_time_in_inverse_proportion() -> None:
    times = (0, *(round((1 + b) * MILLISECOND) for b in range(1, 9)))
    model = PlacedModel(0, "plain", 40 * MILLISECOND, 100.0, {ALONE: Form(ALONE, (times,), (1,))})
    plan = placed(Problem((model,), (PlacementGpu(0, MEMORY),)))
    [replica] = plan.replicas
    assert (replica.batch, replica.share) == (2, 0.15)  # 3 ms on the whole, 20 ms to spare
    assert "without coefficients" in replica.why


asks = st.lists(
    st.tuples(st.sampled_from(NAMES), st.floats(5, 150), st.floats(0, 3000)), min_size=1, max_size=6
)


def in_time(plan: Any, problem: Problem) -> bool:
    return all(
        expected.latency <= model.slo / MILLISECOND / 2 for _, model, expected in predictions(plan, problem)
    )


@settings(max_examples=60)
@given(asks, st.integers(1, 5), st.sampled_from(["squeeze", "truncate"]))
def test_every_plan_is_possible_and_keeps_its_own_promises(
    drawn: list[Ask], gpus: int, leftovers: str
) -> None:
    problem = problem_of(drawn, gpus)
    plan = placed(problem, leftovers=leftovers)
    check(plan, problem)
    for gpu in problem.gpus:
        assert math.fsum(replica.share for replica in plan.on_gpu(gpu.id)) <= 1 + 1e-9
    assert in_time(plan, problem)
    assert plan == placed(problem, leftovers=leftovers)
    assert all(plan.missing.values())
    if plan.attainment == 1 and not plan.missing:  # whoever has hardly any load may be missing
        rates = dict.fromkeys(range(len(drawn)), 0.0)
        for replica, _, expected in predictions(plan, problem):
            rates[replica.model] += expected.throughput
        assert all(rates[m.index] >= m.rate * (1 - 1e-9) for m in problem.models)


@settings(max_examples=30)
@given(asks)
def test_only_the_order_of_equals_depends_on_how_models_are_numbered(drawn: list[Ask]) -> None:
    distinct = list({ask[0]: ask for ask in drawn}.values())
    forth, back = (placed(problem_of(order, gpus=8)) for order in (distinct, distinct[::-1]))
    names = [ask[0] for ask in distinct]
    by_name = [
        sorted((order[r.model], r.batch, r.share) for r in plan.replicas)
        for plan, order in ((forth, names), (back, names[::-1]))
    ]
    lower = [share for _, _, share in by_name[0]]
    if len(set(lower)) == len(lower):
        assert by_name[0] == by_name[1]


@settings(max_examples=60)
@given(st.sampled_from(NAMES), st.floats(15, 150), st.floats(0, 4000), st.floats(0, 500))
def test_more_load_of_one_model_never_needs_fewer_gpus(
    name: str, slo: float, rate: float, more: float
) -> None:
    few, many = (placed(problem_of([(name, slo, tried_rate)], gpus=40)) for tried_rate in (rate, rate + more))
    assert len(few.gpus()) <= len(many.gpus())


def test_more_load_of_many_models_may_need_fewer_gpus() -> None:
    """Greedy choices have such cases (a random search found this one). With ten more requests a second VGG19
    needs a larger share; beside it, the rest of SSD would now cost more than beside the other VGG19, so it
    goes there, and what comes after fits into the room that is left."""
    crowd: list[Ask] = [
        ("ssd", 30, 300),
        ("alexnet", 100, 400),
        ("resnet50", 100, 20),
        ("resnet50", 30, 80),
        ("vgg19", 40, 400),
        ("resnet50", 30, 150),
    ]
    less, more = (placed(problem_of([*crowd, ("vgg19", 80, rate)], gpus=12)) for rate in (300, 310))
    assert less.attainment == more.attainment == 1
    assert (len(less.gpus()), len(more.gpus())) == (4, 3)
