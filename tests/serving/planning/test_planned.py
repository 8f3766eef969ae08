"""Scenarios run by a plan: the same run where every model is everywhere, and no request lost where not."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec
import numpy as np
import pytest

from astrarium.core.errors import BrokenBooks, InputError
from astrarium.core.quantities import MILLISECOND, Time
from astrarium.placement.interference import Interference, Tenant
from astrarium.placement.plan import Plan, Replica
from astrarium.placement.problem import ALONE, PlacementGpu, Problem, Shape
from astrarium.run.tables import ranges
from astrarium.serving.ledger import Fate, Outcome
from astrarium.serving.level import run
from astrarium.serving.planned.judge import PlanJudge
from astrarium.serving.planned.parts import NO_REPLICA
from astrarium.serving.planned.run import PlannedRun, Routes, run_planned
from astrarium.serving.planning import plans
from astrarium.serving.record import ServingRecord
from astrarium.serving.report.planned import summarize_plan
from astrarium.serving.report.summary import busy_time, summarize
from astrarium.serving.scenario import Scenario, build, parse
from tests.support.pipelines import halved

HALVES = Shape(stages=2)
SCENARIO: dict[str, Any] = {
    "cluster": {"gpus": 4, "memory": "10GiB"},
    "models": {
        "bert": {"profile": {"alpha": "2ms", "beta": "4ms"}, "slo": "50ms", "memory": "4GiB"},
        "vgg": {"profile": {"alpha": "1ms", "beta": "5ms"}, "slo": "30ms", "memory": "3GiB"},
        "alex": {"profile": {"alpha": "1ms", "beta": "1ms"}, "slo": "20ms", "memory": "2GiB"},
    },
    "workload": {"arrivals": "poisson", "rate": "1200/s", "duration": "3s", "warmup": "500ms"},
    "network": {"control": "100us", "data": "20us", "response": "50us"},
    "policy": {"name": "deferred"},
    "seed": 5,
}
TALK = {"time": {"lognormal": {"median": "4ms", "sigma": 0.3}}}
DYNAMIC = {"profile": {"dynamic": {"applications": {"chat": TALK}, "c0": "1ms", "c1": 0.4}}}


def scenario(**changes: Any) -> Scenario:
    return parse({**SCENARIO, **changes}, planning=True)


def posed(case: Scenario) -> Problem:
    return halved(plans.problem(case))


def everywhere(problem: Problem) -> Plan:
    """Every model on every GPU, with the largest batches that it can run."""
    largest = {model.index: model.forms[ALONE].max_batch for model in problem.models}
    replicas = (
        Replica(index, (gpu.id,), batch=most) for gpu in problem.gpus for index, most in largest.items()
    )
    return Plan("by hand", tuple(replicas))


APART = Plan(
    "by hand",
    (
        Replica(0, (0,), batch=8),
        Replica(0, (1,), batch=8),
        Replica(1, (1,), batch=4),
        Replica(1, (2,), batch=4),
    ),
    {2: "a GPU with 2GiB or more left"},
)
BESIDE = Plan(
    "by hand",
    (
        Replica(0, (0, 1), HALVES, batch=8),
        Replica(1, (2,), batch=4, share=0.6),
        Replica(2, (2,), batch=4, share=0.4),
        Replica(2, (3,), batch=8),
    ),
)


def same(one: ServingRecord, other: ServingRecord) -> bool:
    pairs: list[tuple[Any, Any]] = [(one.requests, other.requests), (one.batches, other.batches)]
    columns = [(getattr(a, f.name), getattr(b, f.name)) for a, b in pairs for f in fields(a)]
    alike = all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in columns)
    runs = [
        (r.policy, r.setup, r.seed, tuple(r.reasons), r.warmup, r.duration, r.engine) for r in (one, other)
    ]
    return alike and runs[0] == runs[1]


@pytest.mark.parametrize("policy", ["deferred", "astrarium", "eager", "shepherd"])
@pytest.mark.parametrize("engine", ["native", "python"])
def test_every_model_everywhere_is_the_plain_run(policy: str, engine: Any) -> None:
    workload = {**SCENARIO["workload"], "duration": "1s"}
    case = scenario(policy={"name": policy}, workload=workload)
    assert same(run_planned(case, everywhere(posed(case)), engine=engine).record, run(case, engine))


def test_every_model_everywhere_is_the_plain_run_on_two_kinds() -> None:
    slow = {"alpha": "3ms", "beta": "6ms"}
    fast = {"alpha": "1ms", "beta": "2ms"}
    groups = [{"kind": "T4", "count": 1, "memory": "10GiB"}, {"kind": "A100", "count": 2, "memory": "20GiB"}]
    models = {
        **SCENARIO["models"],
        "bert": {**SCENARIO["models"]["bert"], "profile": {"kinds": {"T4": slow, "A100": fast}}},
    }
    case = scenario(cluster={"gpus": groups}, models=models)
    assert same(run_planned(case, everywhere(posed(case))).record, run(case))


def check_books(done: PlannedRun, case: Scenario) -> None:
    """Every request ends once, in the cell that it went to, in a batch of its own model."""
    record = done.record
    arrivals = build.arrivals(case)
    requests = record.requests
    batches = record.batches
    assert np.array_equal(requests.arrival, arrivals.time)
    assert not (requests.outcome == Outcome.OPEN).any()
    dealt = np.concatenate([part.numbers for part in done.parts])
    assert len(np.unique(dealt)) == len(dealt)
    nowhere = np.setdiff1d(np.arange(len(arrivals)), dealt)
    assert np.isin(requests.model[nowhere], list(done.plan.missing)).all()
    assert (requests.outcome[nowhere] == Outcome.DROPPED).all()
    ran = requests.batch >= 0
    assert np.array_equal(batches.model[requests.batch[ran]], requests.model[ran])
    answered = np.isin(requests.outcome, (Outcome.IN_TIME, Outcome.LATE))
    numbers, sizes = np.unique(requests.batch[answered], return_counts=True)
    assert np.array_equal(sizes, batches.size[numbers])
    in_time = requests.done <= requests.deadline
    assert np.array_equal(requests.outcome[answered] == Outcome.IN_TIME, in_time[answered])
    assert (np.diff(batches.dispatched) >= 0).all()


@pytest.mark.parametrize("policy", ["deferred", "astrarium", "nexus", "clipper"])
def test_every_request_ends_once(policy: str) -> None:
    case = scenario(policy={"name": policy})
    done = run_planned(case, APART)
    check_books(done, case)
    summary = summarize(done.record)
    assert summary.models["alex"].outcomes.dropped == summary.models["alex"].requests > 0
    assert summary.dropped_reasons[NO_REPLICA] == summary.models["alex"].requests
    assert summary.models["bert"].attainment != 0


def test_a_plan_without_replicas_answers_nobody() -> None:
    case = scenario()
    problem = posed(case)
    nothing = Plan("", (), {0: "", 1: "", 2: ""})
    done = run_planned(case, nothing, problem)
    assert (done.record.requests.outcome == Outcome.DROPPED).all()
    assert done.parts == ()
    assert summarize(done.record).attainment == 0
    assert PlanJudge(case, problem)(nothing, problem.requests) == [0.0, 0.0, 0.0]


def test_replicas_stay_within_their_gpus_and_limits() -> None:
    case = scenario()
    batches = run_planned(case, APART).record.batches
    homes = {(replica.model, replica.gpus[0]): replica.batch for replica in APART.replicas}
    rows = zip(batches.model.tolist(), batches.gpu.tolist(), batches.size.tolist(), strict=True)
    seen: dict[tuple[int, int], int] = {}
    for model, gpu, size in rows:
        assert size <= homes[model, gpu]
        seen[model, gpu] = max(size, seen.get((model, gpu), 0))
    assert seen.keys() == homes.keys()


def test_the_same_again() -> None:
    case = scenario()
    assert same(run_planned(case, APART).record, run_planned(case, APART).record)
    problem = posed(case)
    assert same(run_planned(case, BESIDE, problem).record, run_planned(case, BESIDE, problem).record)


def test_arrivals_are_divided_as_the_routes_say() -> None:
    case = scenario()
    problem = posed(case)
    done = run_planned(case, APART, problem)
    routes = Routes.of(APART, problem)
    total = np.bincount(done.record.requests.model, minlength=3)
    for place, part in enumerate(done.parts):
        got = np.bincount(done.record.requests.model[part.numbers], minlength=3)
        expected = total * routes.parts[place] / 1000
        assert np.abs(got - expected).max() <= 2
    assert 0 < routes.parts[1, 0] < routes.parts[0, 0]  # the first GPU has bert alone


def test_a_cell_knows_its_own_kind_of_gpu() -> None:
    """Alone on the fast GPU a request takes 3 ms; the slow one is another cell."""
    kinds = {"T4": {"alpha": "3ms", "beta": "6ms"}, "A100": {"alpha": "1ms", "beta": "2ms"}}
    models = {"bert": {"profile": {"kinds": kinds}, "slo": "50ms", "memory": "4GiB"}}
    groups = [{"kind": "T4", "count": 1, "memory": "10GiB"}, {"kind": "A100", "count": 1, "memory": "9GiB"}]
    workload = {**SCENARIO["workload"], "rate": "20/s"}
    case = scenario(
        models=models, cluster={"gpus": groups}, workload=workload, policy={"name": "eager"}, network={}
    )
    done = run_planned(case, Plan("", (Replica(0, (1,), batch=4),)))
    batches = done.record.batches
    assert set(batches.gpu.tolist()) == {1}
    assert set((batches.finished - batches.started)[batches.size == 1].tolist()) == {3 * MILLISECOND}
    [spec] = done.parts[0].record.setup.models
    assert spec.latency[1:3] == (3 * MILLISECOND, 4 * MILLISECOND)


def test_shared_gpus_have_worker_queues() -> None:
    case = scenario()
    problem = posed(case)
    done = run_planned(case, BESIDE, problem)
    check_books(done, case)
    parts = [(part.run_by, part.cell.gpus, part.cell.limits) for part in done.parts]
    assert parts == [
        ("deferred", (3,), ((2, 8),)),
        ("worker queues", (0, 1), ((0, 8),)),
        ("worker queues", (2,), ((1, 4), (2, 4))),
    ]
    batches = done.record.batches
    assert set(batches.gpu[batches.model == 0].tolist()) == {0, 1}  # a row for each stage
    assert set(batches.gpu[batches.model == 1].tolist()) == {2}
    first, second = ((batches.model == 0) & (batches.gpu == gpu) for gpu in (0, 1))
    assert (batches.started[second] >= batches.finished[first]).all()


def test_worker_queues_feel_the_network() -> None:
    workload = {**SCENARIO["workload"], "rate": {"bert": "5/s", "vgg": "0/s", "alex": "0/s"}}
    case = scenario(workload=workload)
    plan = Plan("", (Replica(0, (0,), batch=8, share=0.5),), {1: "", 2: ""})
    requests = run_planned(case, plan, posed(case)).record.requests
    latency = requests.done - requests.arrival
    # 6 ms on a whole GPU, 12 on half of one; 100 + 20 us there, 50 us back
    assert int(np.median(latency)) == 12 * MILLISECOND + 170_000
    assert (requests.outcome == Outcome.IN_TIME).all()


def test_who_cannot_be_answered_in_time_is_dropped_by_worker_queues() -> None:
    workload = {**SCENARIO["workload"], "rate": {"bert": "900/s", "vgg": "0/s", "alex": "0/s"}}
    case = scenario(workload=workload)
    done = run_planned(case, Plan("", (Replica(0, (0,), batch=8, share=0.5),), {1: "", 2: ""}), posed(case))
    check_books(done, case)
    summary = summarize(done.record)
    assert summary.outcomes.dropped == summary.dropped_reasons["expired"] > 0
    # on half a GPU: batches of 4, which take 24 ms, so that who just missed one finds the next in time
    assert summary.goodput_rate == pytest.approx(4 / 0.024, rel=0.02)
    assert summary.outcomes.late == 0


def test_replicas_that_have_the_same_gpus_whole_share_them() -> None:
    """Each of the two could do with them alone; together they ask for much more than there is."""
    rates = {"bert": "500/s", "vgg": "500/s", "alex": "0/s"}
    case = scenario(workload={**SCENARIO["workload"], "rate": rates})
    problem = posed(case)
    pair = (Replica(0, (0, 1), HALVES, batch=8), Replica(1, (0, 1), HALVES, batch=8))
    for one in pair:
        alone = run_planned(case, Plan("", (one,), {1 - one.model: "", 2: ""}), problem).record
        assert list(summarize(alone).models.values())[one.model].attainment == pytest.approx(1, abs=0.1)
    both = summarize(run_planned(case, Plan("", pair, {2: ""}), problem).record)
    # half of 2 b + 4 ms and of b + 5 ms, in batches of 8: what a request takes of a stage
    costs = {"bert": 0.010 / 8, "vgg": 0.0065 / 8}
    work = sum(both.models[name].goodput_rate * cost for name, cost in costs.items())
    assert 0.3 < work <= 1
    assert both.models["bert"].goodput_rate < 450


class Doubling:
    """Company makes everything twice as slow."""

    def slowdowns(self, gpu: PlacementGpu, tenants: list[Tenant]) -> tuple[float, ...]:
        crowded = sum(tenant.busy for tenant in tenants) > 1
        return tuple(2.0 if tenant.busy and crowded else 1.0 for tenant in tenants)


def test_company_slows_and_time_counts_once() -> None:
    case = scenario()
    problem = posed(case)
    slowing = Doubling()
    calm = run_planned(case, BESIDE, problem)
    slowed = run_planned(case, BESIDE, problem, interference=as_interference(slowing))
    good = [summarize(done.record).models["vgg"].goodput_rate for done in (calm, slowed)]
    assert good[1] < good[0]
    span: Time = slowed.record.duration - slowed.record.warmup
    assert (busy_time(slowed.record)[0] <= span).all()
    batches = slowed.record.batches
    inside = (batches.gpu == 2) & (batches.fate == Fate.FINISHED)
    clipped = [
        np.clip(times[inside], slowed.record.warmup, slowed.record.duration)
        for times in (batches.started, batches.finished)
    ]
    assert busy_time(slowed.record)[0][2] < (clipped[1] - clipped[0]).sum()  # they ran side by side


def as_interference(slowing: Any) -> Interference:
    interference: Interference = slowing
    return interference


def test_dynamic_models_in_cells() -> None:
    models = {**SCENARIO["models"], "alex": {**SCENARIO["models"]["alex"], **DYNAMIC, "slo": "60ms"}}
    case = scenario(models=models, policy={"name": "orloj"})
    assert same(run_planned(case, everywhere(posed(case))).record, run(case))
    check_books(run_planned(case, APART), case)
    shared = Plan("", (Replica(2, (0,), share=0.5),), {0: "", 1: ""})
    with pytest.raises(InputError, match=r"models\.alex\.profile"):
        run_planned(case, shared)


def test_a_plan_that_is_impossible_is_refused() -> None:
    with pytest.raises(BrokenBooks, match="on GPU 0"):
        run_planned(
            scenario(cluster={"gpus": 1, "memory": "5GiB"}),
            Plan("", (*APART.replicas[:1], Replica(1, (0,))), {2: ""}),
        )


@pytest.mark.parametrize("plan", [APART, BESIDE])
def test_the_judge_says_what_the_run_says(plan: Plan) -> None:
    case = scenario()
    problem = posed(case)
    arrivals = build.arrivals(case)
    requests = msgspec.structs.replace(
        problem.requests, times=tuple(arrivals.time.tolist()), models=tuple(arrivals.model.tolist())
    )
    summary = summarize(run_planned(case, plan, problem).record)
    judgement = PlanJudge(case, problem, warmup=case.workload.warmup)(plan, requests)
    assert list(judgement) == [summary.models[name].attainment for name in case.models]


def test_the_judge_remembers_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    case = scenario()
    problem = posed(case)
    ran = []
    judge = PlanJudge(case, problem)
    original = Routes.run

    def counted(self: Routes, place: int, *rest: Any) -> Any:
        ran.append(place)
        return original(self, place, *rest)

    monkeypatch.setattr(Routes, "run", counted)
    first = judge(APART, problem.requests)
    assert ran == [0, 1, 2]
    moved = Plan(
        "",
        tuple(msgspec.structs.replace(one, gpus=(3 - one.gpus[0],)) for one in APART.replicas),
        APART.missing,
    )
    assert sorted(judge(moved, problem.requests)) != [0.0] * 3
    ran.clear()
    assert judge(APART, problem.requests) == first
    more = Plan("", (*APART.replicas, Replica(2, (3,), batch=4)))
    assert judge(more, problem.requests)[:2] == first[:2]
    assert ran == [3]  # the others are as they were
    queued = judge(BESIDE, problem.requests)
    ran.clear()
    explained = tuple(msgspec.structs.replace(one, why="better words") for one in BESIDE.replicas)
    assert judge(Plan("", explained), problem.requests) == queued
    assert ran == []  # words change nothing
    other = plans.problem(case.with_seed(77)).requests
    assert judge(APART, other) != first
    assert judge(APART, other) == PlanJudge(case, problem)(APART, other)


def test_a_model_nobody_asks_for_is_content() -> None:
    case = scenario(workload={**SCENARIO["workload"], "rate": {"bert": "5/s", "vgg": "0/s", "alex": "9/s"}})
    problem = posed(case)
    assert PlanJudge(case, problem)(APART, problem.requests) == [1.0, 1.0, 0.0]


def test_cells_in_numbers() -> None:
    case = scenario()
    done = run_planned(case, APART)
    plan_summary = summarize_plan("by hand", 4, {"alex": "no room"}, done.parts, done.record)
    assert [(cell.gpus, cell.models) for cell in plan_summary.cells] == [
        ([0], {"bert": 8}),
        ([1], {"bert": 8, "vgg": 4}),
        ([2], {"vgg": 4}),
    ]
    summary = summarize(done.record)
    in_time = sum(cell.goodput_rate for cell in plan_summary.cells)
    assert in_time == pytest.approx(summary.goodput_rate)
    lost = summary.models["alex"].requests
    assert sum(cell.requests for cell in plan_summary.cells) == summary.requests - lost
    assert len(plan_summary.gpu_busy) == 4
    assert plan_summary.gpu_busy[3] == 0
    assert np.mean(plan_summary.gpu_busy) == pytest.approx(summary.gpus.busy_fraction)


def test_ranges() -> None:
    assert ranges([5, 0, 1, 2, 7, 8]) == "0-2, 5, 7-8"
    assert ranges([]) == ""
