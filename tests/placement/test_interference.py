"""Replicas that share a GPU slow each other, in evaluations of plans, by whichever model is plugged in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.decode import Decoder
from astrarium.core.errors import InputError
from astrarium.core.plain_data import read_yaml
from astrarium.core.quantities import FOREVER, MILLISECOND, SECOND, Time
from astrarium.core.random_streams import stream
from astrarium.placement.evaluation import TimeSpread, evaluate
from astrarium.placement.gpu_share import share_factor
from astrarium.placement.igniter.model import (
    GpuTraits,
    KernelCurve,
    LinearFit,
    ModelTraits,
    Prediction,
    TenantLoad,
    predict,
)
from astrarium.placement.interference import (
    IgniterInterference,
    Interference,
    MeasuredInterference,
    NoInterference,
    Pair,
    SlowdownTable,
    SumPoint,
    Sums,
    Tenant,
)
from astrarium.placement.plan import Plan, Replica, check
from astrarium.placement.problem import (
    ALONE,
    Form,
    GpuDemand,
    PlacedModel,
    PlacementGpu,
    PlacementRequests,
    Problem,
)
from astrarium.placement.worker_queues import Batching
from astrarium.serving.planning.colocation import v100
from astrarium.serving.planning.known import interference_named
from tests.support.placement.igniter_cases import NOTES, form_of, placed, predictions, problem_of, uniform
from tests.support.placement.plans import poisson

MS = MILLISECOND
GPU = PlacementGpu(0, 1000)


def model(index: int, name: str, times: tuple[Time, ...], **fields: Any) -> PlacedModel:
    form = Form(ALONE, ((0, *times),), (fields.pop("weights", 1),))
    defaults = {"slo": 100 * MS, "rate": 10.0} | fields
    return PlacedModel(index, name, forms={ALONE: form}, **defaults)


def requests(*arrivals: tuple[Time, int]) -> PlacementRequests:
    return PlacementRequests(tuple(at for at, _ in arrivals), tuple(model for _, model in arrivals))


def two(first: float | None = None, second: float | None = None) -> Problem:
    demands = [{1: GpuDemand(memory_bandwidth=use)} for use in (first, second)]
    models = (model(0, "a", (MS,), demands=demands[0]), model(1, "b", (MS,), demands=demands[1]))
    return Problem(models, (GPU,))


def test_nothing_slows_nobody() -> None:
    both = [Tenant(0, 1), Tenant(1, 1)]
    assert NoInterference().slowdowns(GPU, both) == (1.0, 1.0)


def test_pairs_multiply_and_only_those_at_work_count() -> None:
    table = SlowdownTable(pairs=(Pair("a", "b", 1.5), Pair("b", "a", 1.2), Pair("b", "b", 2.0)))
    measured = MeasuredInterference(two(), table)
    a = Tenant(0, 1)
    b = Tenant(1, 1)
    assert measured.slowdowns(GPU, [a, b]) == (1.5, 1.2)
    assert measured.slowdowns(GPU, [a, b, b]) == pytest.approx((2.25, 2.4, 2.4))
    assert measured.slowdowns(GPU, [a, Tenant(1, 1, busy=False)]) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("uses", "slowdown"), [((0.2, 0.2), 1.0), ((0.5, 0.75), 1.25), ((1.0, 1.0), 2.0), ((2.0, 1.0), 3.0)]
)
def test_sums_lie_on_lines_between_what_was_measured(uses: tuple[float, float], slowdown: float) -> None:
    points = (SumPoint(1.0, 1.0), SumPoint(1.5, 1.5), SumPoint(2.0, 2.0))
    table = SlowdownTable(sums=Sums("memory_bandwidth", points))
    measured = MeasuredInterference(two(*uses), table)
    assert measured.slowdowns(GPU, [Tenant(0, 1), Tenant(1, 1)]) == pytest.approx((slowdown, slowdown))


def test_a_pair_goes_before_the_sum() -> None:
    sums = Sums("memory_bandwidth", (SumPoint(0.0, 3.0), SumPoint(1.0, 3.0)))
    table = SlowdownTable(pairs=(Pair("a", "b", 1.1),), sums=sums)
    slowed = MeasuredInterference(two(0.5, 0.5), table).slowdowns(GPU, [Tenant(0, 1), Tenant(1, 1)])
    assert slowed == (1.1, 3.0)


def test_what_was_not_measured_is_named() -> None:
    both = [Tenant(0, 1), Tenant(1, 1)]
    pairs = (Pair("a", "b", 1.5),)
    with pytest.raises(InputError, match=r"this pair among the measured ones.*'b beside a'"):
        MeasuredInterference(two(), SlowdownTable(pairs=pairs)).slowdowns(GPU, both)
    otherwise = SlowdownTable(pairs=pairs, otherwise=1.1)
    assert MeasuredInterference(two(), otherwise).slowdowns(GPU, both) == (1.5, 1.1)
    sums = SlowdownTable(sums=Sums("occupancy", (SumPoint(0, 1), SumPoint(1, 2))))
    with pytest.raises(InputError, match=r"a model whose occupancy was measured.*'a'"):
        MeasuredInterference(two(), sums).slowdowns(GPU, both)


def test_igniters_slowdown_is_its_prediction_over_that_alone() -> None:
    problem = problem_of(NOTES, gpus=1)
    plan = placed(problem)
    tenants = [Tenant(replica.model, replica.batch, replica.share) for replica in plan.replicas]
    slowed = IgniterInterference(problem).slowdowns(problem.gpus[0], tenants)
    for (replica, _, together), slowdown in zip(predictions(plan, problem), slowed, strict=True):
        alone = alone_on(problem, replica)
        assert slowdown == pytest.approx(together.latency / alone.latency)
        assert (
            1.03 < slowdown < 1.1
        )  # 6.94 ms instead of 6.45, 18.98 instead of 17.79, 28.85 instead of 27.69


def alone_on(problem: Problem, replica: Replica) -> Prediction:
    [(_, _, alone)] = predictions(Plan("", (replica,)), problem)
    return alone


def test_shares_beyond_the_gpu_are_cut_in_proportion() -> None:
    problem = problem_of([("vgg19", 100, 10), ("vgg19", 100, 10)], gpus=1)
    slowed = IgniterInterference(problem).slowdowns(problem.gpus[0], [Tenant(0, 8), Tenant(1, 8)])
    assert min(slowed) > 1.7


def test_without_coefficients_a_model_neither_slows_nor_is_slowed() -> None:
    both = [Tenant(0, 1, 0.5), Tenant(1, 1, 0.5)]
    assert IgniterInterference(two()).slowdowns(GPU, both) == (1.0, 1.0)


tenants = st.lists(
    st.builds(Tenant, st.integers(0, 2), st.integers(1, 16), st.sampled_from([0.1, 0.3, 1.0]), st.booleans()),
    min_size=1,
    max_size=5,
)


@given(tenants)
def test_company_never_speeds_anybody_up(company: list[Tenant]) -> None:
    problem = problem_of(NOTES, gpus=1)
    slowed = IgniterInterference(problem).slowdowns(problem.gpus[0], company)
    assert all(slowdown >= 1 for slowdown in slowed)
    assert all(
        slowdown == 1 for slowdown, neighbour in zip(slowed, company, strict=True) if not neighbour.busy
    )
    if sum(neighbour.busy for neighbour in company) == 1:
        assert set(slowed) == {1.0}


def test_a_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text(
        "source: measured on Monday\n"
        "pairs: [{model: alexnet, beside: vgg19, slowdown: 1.3}]\n"
        "sums: {of: sm_utilization, points: [{sum: 1, slowdown: 1}, {sum: 2, slowdown: 1.9}]}\n"
    )
    table = Decoder().decode_struct(SlowdownTable, read_yaml(path), "")
    assert table.pairs == (Pair("alexnet", "vgg19", 1.3),)
    assert table.sums is not None
    assert table.sums.at(1.5) == pytest.approx(1.45)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", r"pairs: expected pairs or sums"),
        ("pairs: [{model: a, beside: b}]", r"pairs\[0\]\.slowdown: expected a value"),
        ("pairs: [{model: a, beside: b, slowdown: 0.5}]", r"pairs\[0\]\.slowdown: expected a number >= 1"),
        ("pairs: [{model: a, besides: b, slowdown: 1}]", "did you mean 'beside'"),
        (
            "pairs: [{model: a, beside: b, slowdown: 1}, {model: a, beside: b, slowdown: 2}]",
            r"pairs\[1\]: expected a pair that stands only once \(got 'a beside b'\)",
        ),
        ("sums: {of: sm_utilisation, points: []}", "did you mean 'sm_utilization'"),
        (
            "sums: {of: occupancy, points: [{sum: 1, slowdown: 1}]}",
            r"sums\.points: expected two sums at least",
        ),
        (
            "sums: {of: occupancy, points: [{sum: 1, slowdown: 2}, {sum: 2, slowdown: 1}]}",
            r"sums\.points: expected slowdowns that never fall",
        ),
    ],
)
def test_a_table_that_cannot_be_used_says_where(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "slow.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"slow\.yaml: .*{message}|{message}") as caught:
        interference_named(str(path))
    assert str(caught.value).startswith(str(path))


def test_a_share_costs_what_is_known_of_the_model() -> None:
    plain = model(0, "plain", (MS,))
    uses = {4: GpuDemand(sm_utilization=0.5), 8: GpuDemand(sm_utilization=1.0)}
    half_used = model(0, "half", (MS,), demands=uses)
    profiled = problem_of([("vgg19", 60, 1)], gpus=1)
    assert share_factor(plain, GPU, 1, 0.25) == 4
    assert share_factor(half_used, GPU, 1, 0.5) == 1
    assert [share_factor(half_used, GPU, batch, 0.25) for batch in (4, 5, 8, 9)] == [2, 4, 4, 4]
    assert 1.8 < share_factor(profiled.models[0], profiled.gpus[0], 16, 0.5) < 2.0
    assert share_factor(plain, GPU, 1, 1.0) == 1


def alone(times: tuple[Time, ...], batch: int, **fields: Any) -> tuple[Problem, Plan]:
    problem = Problem((model(0, "a", times, **fields),), (GPU,))
    return problem, Plan("hand", (Replica(0, (0,), batch=batch),))


def test_time_is_told_apart_to_the_nanosecond() -> None:
    """Batches of two in 10 ms. 0 and 3 fill one, which starts at 3; 4 and 5 wait for it to end; 6 finds no
    second, and leaves half an objective later."""
    problem, plan = alone((6 * MS, 10 * MS), batch=2, slo=40 * MS)
    arrivals = requests(*((at * MS, 0) for at in (0, 3, 4, 5, 6)))
    result = evaluate(problem, plan, arrivals).of("a")
    # latencies: 13, 10 | 19, 18 | from 6 until 26, then 6 ms
    assert result.latency == TimeSpread.of([13 * MS, 10 * MS, 19 * MS, 18 * MS, 26 * MS])
    assert result.stages["gather"] == TimeSpread.of([3 * MS, 0, 1 * MS, 0, 20 * MS])
    assert result.stages["queue"] == TimeSpread.of([0, 0, 8 * MS, 8 * MS, 0])
    assert result.stages["execution"] == TimeSpread.of([10 * MS] * 4 + [6 * MS])
    assert result.mean_batch == pytest.approx(9 / 5)
    assert result.attainment == 1


def test_without_waiting_whatever_is_there_leaves() -> None:
    problem, plan = alone((6 * MS, 10 * MS), batch=2)
    result = evaluate(problem, plan, requests((0, 0), (3 * MS, 0)), batching=Batching(max_wait=0)).of("a")
    assert result.latency == TimeSpread.of([6 * MS, 9 * MS])
    assert result.mean_batch == 1


def test_who_comes_in_the_last_instant_of_a_wait_still_joins() -> None:
    problem, plan = alone((6 * MS, 10 * MS, 14 * MS), batch=3)
    result = evaluate(problem, plan, requests((0, 0), (3 * MS, 0)), batching=Batching(max_wait=3 * MS)).of(
        "a"
    )
    assert result.latency == TimeSpread.of([13 * MS, 10 * MS])


def test_who_is_late_is_answered_late_or_dropped() -> None:
    problem, plan = alone((10 * MS,), batch=1, slo=15 * MS)
    arrivals = requests(*((0, 0) for _ in range(4)))
    kept = evaluate(problem, plan, arrivals).of("a")
    dropping = evaluate(problem, plan, arrivals, batching=Batching(drop_expired=True)).of("a")
    assert (kept.in_time, kept.late, kept.dropped) == (1, 3, 0)
    assert (dropping.in_time, dropping.late, dropping.dropped) == (1, 1, 2)


def test_a_model_without_a_replica_loses_every_request() -> None:
    problem = Problem((model(0, "a", (MS,)),), (GPU,))
    result = evaluate(problem, Plan("hand", (), {0: "room"}), requests((0, 0))).of("a")
    assert (result.requests, result.dropped, result.attainment, result.latency) == (1, 1, 0, None)


def test_requests_go_where_least_is_to_be_done_for_the_speed() -> None:
    """The second GPU has twice the share: it gets two of three."""
    problem = Problem((model(0, "a", (MS,), slo=FOREVER // 4),), (GPU, PlacementGpu(1, 1000)))
    plan = Plan("hand", (Replica(0, (0,), share=0.5), Replica(0, (1,), share=1.0)))
    result = evaluate(problem, plan, requests(*((0, 0) for _ in range(300)))).of("a")
    assert result.latency is not None
    assert result.latency.mean == pytest.approx(100.5 * MS, rel=0.01)  # both end after 200 ms


class Halved:
    """Everybody at half the pace while there is company."""

    def slowdowns(self, gpu: PlacementGpu, company: Any) -> tuple[float, ...]:
        busy = sum(tenant.busy for tenant in company)
        return tuple(2.0 if tenant.busy and busy > 1 else 1.0 for tenant in company)


def test_the_pace_changes_when_company_comes_and_goes() -> None:
    """The first runs alone for 4 of its 10 ms, then shares: 12 ms for the other 6. The second has done 6 of
    its 10 by then, and ends 4 ms later."""
    problem = Problem((model(0, "a", (10 * MS,)), model(1, "b", (10 * MS,))), (GPU,))
    plan = Plan("hand", (Replica(0, (0,)), Replica(1, (0,))))
    report = evaluate(problem, plan, requests((0, 0), (4 * MS, 1)), Halved(), Batching(max_wait=0))
    first, second = (report.of(name).stages["execution"] for name in ("a", "b"))
    assert (first.mean, second.mean) == (16 * MS, 16 * MS)


def test_requests_that_are_not_in_order_or_of_no_model_are_refused() -> None:
    problem, plan = alone((MS,), batch=1)
    with pytest.raises(InputError, match="instants in rising order"):
        evaluate(problem, plan, requests((5, 0), (4, 0)))
    with pytest.raises(InputError, match="models of the problem"):
        evaluate(problem, plan, requests((5, 7)))


def test_what_arrives_before_the_end_of_the_warmup_is_not_counted() -> None:
    problem, plan = alone((10 * MS,), batch=1, slo=15 * MS)
    result = evaluate(problem, plan, requests((0, 0), (MS, 0), (2 * MS, 0)), warmup=MS).of("a")
    assert (result.requests, result.in_time, result.late) == (2, 0, 2)  # behind the first, all the same


@pytest.mark.parametrize(("utilization", "tolerance"), [(0.5, 0.02), (0.8, 0.04)])
def test_one_replica_is_md1(utilization: float, tolerance: float) -> None:
    """Mean time in system = D + lambda D^2 / (2 (1 - lambda D)); 40 000 requests, tolerance as stated."""
    service = 0.01
    rate = utilization / 0.01
    problem, plan = alone((10 * MS,), batch=1, rate=rate, slo=FOREVER // 4)
    arrivals = poisson(problem, round(40_000 / rate * SECOND), stream(3, "arrivals").random)
    result = evaluate(problem, plan, arrivals, batching=Batching(max_wait=0), warmup=10 * SECOND).of("a")
    assert result.latency is not None
    expected = service + rate * service**2 / (2 * (1 - utilization))
    assert result.latency.mean / SECOND == pytest.approx(expected, rel=tolerance)


def test_poisson_requests_come_at_their_rates() -> None:
    problem = problem_of(NOTES, gpus=1)
    arrivals = poisson(problem, 40 * SECOND, stream(1, "arrivals").random)
    assert list(arrivals.times) == sorted(arrivals.times)
    for spec in problem.models:
        assert arrivals.models.count(spec.index) / 40 == pytest.approx(spec.rate, rel=0.05)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 1)), max_size=40),
    st.integers(1, 4),
    st.integers(0, 50),
    st.booleans(),
)
def test_every_request_ends_once_and_its_time_adds_up(
    drawn: list[tuple[int, int]], batch: int, wait: int, drop: bool
) -> None:
    models = tuple(model(i, n, tuple((4 + b) * MS for b in range(1, 5))) for i, n in enumerate("ab"))
    problem = Problem(models, (GPU,))
    plan = Plan("hand", (Replica(0, (0,), batch=batch), Replica(1, (0,), batch=batch)))
    arrivals = requests(*sorted((at * MS, index) for at, index in drawn))
    report = evaluate(problem, plan, arrivals, Halved(), Batching(wait * MS, drop))
    assert report == evaluate(problem, plan, arrivals, Halved(), Batching(wait * MS, drop))
    for model_report in report.models:
        assert (
            model_report.in_time + model_report.late + model_report.dropped
            == model_report.requests
            == arrivals.models.count(model_report.model)
        )
        assert drop or model_report.dropped == 0
        if model_report.latency:
            assert model_report.latency.mean == pytest.approx(
                sum(spread.mean for spread in model_report.stages.values())
            )
            execution = model_report.stages["execution"]
            assert 5 * MS <= execution.p50 <= execution.p99 <= 2 * 8 * MS


def packed_by_memory(problem: Problem) -> Plan:
    """First fit by memory, half of a GPU for each: that keeps up, if nobody disturbs it."""
    room = {gpu.id: gpu.memory for gpu in problem.gpus}
    replicas = []
    for spec in problem.models:
        size = spec.forms[ALONE].memory(0, 6)
        gpu = next(id_ for id_, free in room.items() if free >= size)
        room[gpu] -= size
        replicas.append(Replica(spec.index, (gpu,), batch=6, share=0.5))
    return Plan("by memory", tuple(replicas))


def rivals() -> Problem:
    """Two models that fit on a GPU together, each in half of it, and displace all of each other's cache."""
    gpu = GpuTraits()
    traits = ModelTraits(KernelCurve(0, 100, 100, 0, 0), l2_use=LinearFit(0, 20), contention=0.05)
    models = tuple(
        PlacedModel(index, name, 40 * MS, 290.0, {ALONE: form_of(traits, gpu, 100)}, igniter=traits)
        for index, name in enumerate(["left", "right"])
    )
    return Problem(models, tuple(PlacementGpu(id_, 1000, igniter=gpu) for id_ in range(2)))


TWICE = SlowdownTable(pairs=(Pair("left", "right", 2.0), Pair("right", "left", 2.0)))


@pytest.mark.parametrize(
    "slowing", [IgniterInterference, lambda problem: MeasuredInterference(problem, TWICE)]
)
def test_models_that_fit_by_memory_slow_each_other_and_a_policy_that_knows_keeps_them_apart(
    slowing: Callable[[Problem], Interference],
) -> None:
    problem = rivals()
    packed = packed_by_memory(problem)
    knowing = placed(problem)
    arrivals = uniform(problem, 20 * SECOND)
    world = slowing(problem)

    def attained(plan: Plan, interference: Interference) -> float:
        check(plan, problem)
        report = evaluate(problem, plan, arrivals, interference).attainment
        assert report is not None
        return report

    assert packed.gpus() == {0}
    assert knowing.gpus() == {0, 1}
    assert attained(packed, NoInterference()) == 1
    assert attained(packed, world) < 0.1
    assert attained(knowing, world) == 1


def test_lower_bounds_that_ignore_company_fall_behind_on_the_published_case() -> None:
    """Uniform arrivals, iGniter's V100. Its plan keeps every objective; with the shares that would do alone,
    VGG19 and ResNet50 do less than arrives, and nearly everybody is late in the end."""
    problem = problem_of(NOTES, gpus=1)
    arrivals = uniform(problem, 10 * SECOND)
    world = IgniterInterference(problem)
    plan = placed(problem)
    least = {ask[0]: placed(problem_of([ask], gpus=1)).replicas[0].share for ask in NOTES}
    shrunk = tuple(
        Replica(r.model, r.gpus, batch=r.batch, share=least[problem.models[r.model].name])
        for r in plan.replicas
    )
    assert evaluate(problem, plan, arrivals, world).attainment == 1
    assert evaluate(problem, Plan("alone", shrunk), arrivals).attainment == 1  # were there no interference
    report = evaluate(problem, Plan("alone", shrunk), arrivals, world)
    assert report.of("alexnet").attainment == 1
    assert max(report.of(name).attainment or 0 for name in ("resnet50", "vgg19")) < 0.2


def test_batches_of_the_published_plan_take_hardly_less_than_predicted() -> None:
    """The model takes everybody to be busy all the time; here each is idle now and then."""
    problem = problem_of(NOTES, gpus=1)
    plan = placed(problem)
    report = evaluate(problem, plan, uniform(problem, 5 * SECOND), IgniterInterference(problem))
    for _, prediction, expected in predictions(plan, problem):
        execution = report.of(prediction.name).stages["execution"]
        assert 0.99 * expected.latency < execution.p99 / MS < expected.latency * (1 + 1e-6)


def test_the_profile_on_the_whole_gpu_is_the_models_own() -> None:
    """So that evaluations and predictions speak of the same times."""
    traits = v100().models["vgg19"]
    gpu = v100().gpu
    [whole] = predict(gpu, [TenantLoad(traits, 16, 100)])
    assert form_of(traits, gpu).latency(16) / MS == pytest.approx(whole.latency, rel=1e-6)
