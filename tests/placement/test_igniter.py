"""iGniter: its model from a profile, its allocation, and what it does when GPUs run out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.errors import InputError
from astrarium.core.plain_data import read_yaml
from astrarium.core.quantities import MILLISECOND
from astrarium.placement.igniter.fitting import fit_curve
from astrarium.placement.igniter.model import (
    GpuTraits,
    KernelCurve,
    LinearFit,
    ModelTraits,
    TenantLoad,
    predict,
    share_for,
)
from astrarium.placement.igniter.profile import shipped_profile
from astrarium.placement.plan import check
from astrarium.placement.problem import ALONE, Form, PlacedModel, PlacementGpu, Problem
from astrarium.serving.planning.colocation import Colocation, fitted, v100
from tests.support.placement.igniter_cases import (
    MEMORY,
    NOTES,
    Ask,
    model_of,
    placed,
    predictions,
    problem_of,
)

NAMES = ["alexnet", "resnet50", "ssd", "vgg19"]


# the fit


def grid() -> tuple[Any, Any]:
    batches, shares = np.meshgrid([1.0, 16.0, 32.0], [10.0, 50.0, 100.0], indexing="ij")
    return batches.ravel(), shares.ravel()


@pytest.mark.parametrize("k4", [-4.0, 0.05, 7.0, 60.0])
def test_a_curve_is_found_again_from_its_points(k4: float) -> None:
    truth = KernelCurve(0.02, 58.0, 12.0, k4, 1.5)
    batches, shares = grid()
    times = np.array([truth.time(b, r) for b, r in zip(batches, shares, strict=True)])
    found = fit_curve(batches, shares, times)
    expected = (truth.k1, truth.k2, truth.k3, truth.k4, truth.k5)
    assert (found.k1, found.k2, found.k3, found.k4, found.k5) == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_no_other_curve_is_closer_to_the_measured_points(name: str) -> None:
    """A general solver, started from ours and from the plain inverse, gains nothing."""
    from scipy.optimize import curve_fit

    raw = shipped_profile()
    measured = raw["models"][name]
    batches, shares = grid()
    speeds = np.array(measured["frequency"]).ravel() / raw["gpu"]["frequency"]
    times = np.array(measured["latency"]).ravel() * speeds - measured["idle"]

    def at(points: Any, k1: float, k2: float, k3: float, k4: float, k5: float) -> Any:
        b, r = points
        return (k1 * b * b + k2 * b + k3) / (r + k4) + k5

    def error(*k: float) -> float:
        return float(((at((batches, shares), *k) - times) ** 2).sum())

    curve = v100().models[name].active
    assert isinstance(curve, KernelCurve)
    ours = (curve.k1, curve.k2, curve.k3, curve.k4, curve.k5)
    for start in (ours, (0.0, 50.0, 10.0, 1.0, 0.0)):
        theirs, _ = curve_fit(at, (batches, shares), times, p0=start, maxfev=20_000)
        assert error(*ours) <= error(*theirs) * (1 + 1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_predictions_alone_are_close_to_what_was_measured(name: str) -> None:
    """Within 4 % for batches of 16 and 32 at full frequency; small batches are followed less well."""
    raw = shipped_profile()
    traits = v100().models[name]
    measured = raw["models"][name]
    for row, batch in enumerate(raw["batches"]):
        for column, share in enumerate(raw["shares"]):
            if batch >= 16 and measured["frequency"][row][column] == raw["gpu"]["frequency"]:
                [alone] = predict(GpuTraits(), [TenantLoad(traits, batch, share)])
                assert alone.gpu == pytest.approx(measured["latency"][row][column], rel=0.04)


def test_the_gpu_throttles_as_it_was_measured_to() -> None:
    """Four and five copies ran at 1485.6 and 1431.4 MHz; one line through the cap cannot meet both."""
    gpu = v100().gpu
    copies = shipped_profile()["gpu"]["copies"]
    step = (copies["power"][2] - copies["power"][0]) / 2
    for number in (3, 4):
        wanted = copies["power"][2] + step * (number - 2)
        assert gpu.speed(wanted) * gpu.frequency == pytest.approx(copies["frequency"][number], rel=0.01)
    assert gpu.speed(gpu.power_cap) == 1
    assert gpu.speed(1e9) > 0


def test_kernels_wait_longer_for_their_turn_the_more_models_there_are() -> None:
    gpu = v100().gpu
    waits = [gpu.turn_wait(count) for count in range(1, 6)]
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[4] == pytest.approx(0.0147, abs=0.0005)  # ms, for five


# the model


def test_a_latency_is_the_sum_of_its_parts() -> None:
    """By hand: two models, every source of interference at work."""
    gpu = GpuTraits(1000, -2.0, 50, 250, LinearFit(0.01, 0), 1000.0, 2.5)
    traits = ModelTraits(
        KernelCurve(0, 100, 0, 0, 1), 0.5, 10, 200, 100, LinearFit(0, 150), LinearFit(0, 20), 0.01
    )
    first, second = predict(gpu, [TenantLoad(traits, 4, 50), TenantLoad(traits, 4, 50)])
    active = (100 * 4 / 50 + 1) * (1 + 0.01 * 20)
    frequency = 1000 - 2 * (50 + 150 + 150 - 250)
    on_gpu = (10 * 0.02 + 0.5 + active) / (frequency / 1000)
    assert first.gpu == pytest.approx(on_gpu)
    assert first.latency == pytest.approx(on_gpu + 4 * (200 + 100) / 1000)
    assert first.throughput == pytest.approx(4000 / (on_gpu + 4 * 100 / 1000))
    assert first == second


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", NAMES)
def test_company_never_helps(name: str, other: str) -> None:
    gpu = v100().gpu
    models = v100().models
    mine = TenantLoad(models[name], 8, 40)
    theirs = TenantLoad(models[other], 8, 40)
    [alone] = predict(gpu, [mine])
    beside, _ = predict(gpu, [mine, theirs])
    crowded = predict(gpu, [mine, theirs, theirs])[0]
    assert alone.latency < beside.latency < crowded.latency


@pytest.mark.parametrize("name", NAMES)
@given(batch=st.integers(1, 32), budget=st.floats(3, 200))
def test_the_lower_bound_is_the_least_share_that_will_do(name: str, batch: int, budget: float) -> None:
    gpu = GpuTraits(bandwidth=v100().gpu.bandwidth)  # a bound does not know of throttling
    traits = v100().models[name]
    share = share_for(gpu, traits, batch, budget)
    if share <= 100:
        assert predict(gpu, [TenantLoad(traits, batch, share)])[0].latency <= budget * (1 + 1e-9)
    if gpu.unit < share <= 100:
        assert predict(gpu, [TenantLoad(traits, batch, share - gpu.unit)])[0].latency > budget


# the allocation


def test_the_published_case_comes_out() -> None:
    """AlexNet 15 ms 500/s, ResNet50 40 ms 400/s, VGG19 60 ms 200/s: one GPU."""
    problem = problem_of(NOTES, gpus=3)
    plan = placed(problem)
    check(plan, problem)
    found = {problem.models[r.model].name: (r.gpus, r.batch, r.share) for r in plan.replicas}
    assert found == {"vgg19": ((0,), 6, 0.375), "resnet50": ((0,), 8, 0.3), "alexnet": ((0,), 4, 0.1)}
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
    given = sum(e.throughput * (0.9 if r.share == 1 else 1) for r, _, e in predictions(plan, problem))
    assert given >= 1200


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


# when GPUs run out

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
    told = plan.missing[0]
    assert told.startswith("an objective of 12.31 ms")
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


# properties

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
    few, many = (placed(problem_of([(name, slo, each)], gpus=40)) for each in (rate, rate + more))
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


# files


def read_igniter(path: Path) -> Colocation:
    return fitted(read_yaml(path), str(path))


def written(tmp_path: Path, **changes: Any) -> Path:
    raw = shipped_profile() | changes
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(raw))
    return path


def test_a_profile_of_ones_own_is_read(tmp_path: Path) -> None:
    assert read_igniter(written(tmp_path)) == v100()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"shares": [10, 50]}, "batches: expected three batch sizes and three shares"),
        ({"batches": [1, 8, 16, 32]}, r"models\.alexnet\.latency: expected 4 rows .* of 3 numbers"),
        ({"gpu": {"frequency": 1530}}, r"gpu\.power_cap: expected a value"),
        ({"gpu": shipped_profile()["gpu"] | {"unit": 0}}, r"gpu\.unit: expected a number > 0"),
        ({"wattage": 1}, "wattage: expected one of source, batches"),
    ],
)
def test_a_profile_that_cannot_be_used_says_where(tmp_path: Path, changes: Any, told: str) -> None:
    with pytest.raises(InputError, match=rf"profile\.json: {told}"):
        read_igniter(written(tmp_path, **changes))


def test_models_of_the_profile_have_names() -> None:
    assert sorted(v100().models) == NAMES
    assert model_of(0, "ssd", 50, 1).name == "ssd"
