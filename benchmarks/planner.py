"""planner against the other placement policies: attainment on requests that nobody planned with, and CPU.

Each case is planned once by each policy and judged on as many fresh draws as there are repetitions; in
AlpaServe's cases the plan is also made anew from other requests each time. What planner must reach is the
median of the best of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import mean, median
from typing import Any

import msgspec

from _measure import Row, main
from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.core.random_streams import stream
from astrarium.placement.evaluation import evaluate
from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.igniter.model import WHOLE, GpuTraits, ModelTraits, TenantLoad, predict
from astrarium.placement.interference import IgniterInterference
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Judge, Search, placement_policies
from astrarium.placement.problem import ALONE, Form, PlacedModel, PlacementGpu, PlacementRequests, Problem
from astrarium.serving.planned.judge import PlanJudge
from astrarium.serving.planning import plans
from astrarium.serving.planning.clusters import sized
from astrarium.serving.planning.colocation import v100 as igniter_profile
from astrarium.serving.scenario import parse
from astrarium_papers.alpaserve._common import cases, workloads
from astrarium_papers.alpaserve._common.cases import FAIR, Case
from astrarium_papers.elvinger import _v100 as v100
from astrarium_papers.elvinger._world import poisson

VISION = ("alexnet", "densenet121", "efficientnet_b7", "resnet50", "vgg19")
SHARING = ("igniter", "usher", "wao-usher", "ao-milp", "wsm-milp")
GROUPS = ("alpaserve", "selective-replication", "round-robin")
ASKS = (("alexnet", 15, 500.0), ("resnet50", 40, 400.0), ("vgg19", 60, 200.0))  # ms, requests a second
SHOP = {
    "cluster": {"gpus": 8, "kind": "1080Ti", "memory": "11GiB"},
    "models": {
        "search": {"profile": "zoo:1080Ti/ResNet50", "slo": "30ms", "memory": "5GiB"},
        "upload": {"profile": "zoo:1080Ti/InceptionV3", "slo": "60ms", "memory": "4GiB"},
        "review": {"profile": "zoo:1080Ti/VGG16", "slo": "80ms", "memory": "6GiB"},
        "mobile": {"profile": "zoo:1080Ti/MobileNet", "slo": "25ms", "memory": "2GiB"},
        "archive": {"profile": "zoo:1080Ti/DenseNet169", "slo": "120ms", "memory": "4GiB"},
    },
    "workload": {
        "arrivals": "poisson",
        "rate": {
            "search": "900/s",
            "upload": "250/s",
            "review": "120/s",
            "mobile": "400/s",
            "archive": "40/s",
        },
        "duration": "10s",
        "warmup": "1s",
    },
}
DRAWS = range(0, 4000, 1000)  # of fresh requests for each plan: Gamma traffic varies more than Poisson's
QUICK = 3.0  # seconds of CPU
LARGE = 20.0  # seconds of CPU


def measure(repeats: int) -> list[Row]:
    rows = compared("iGniter's case, 1 GPU", igniter_case(1), SHARING[:1], repeats)
    for gpus in (3, 4, 5, 6):
        problem = v100.problem(VISION, 500, 200 * MILLISECOND, gpus)
        rows += compared(f"thesis 6.2.1, {gpus} GPUs", problem, SHARING[1:], repeats)
    rows += in_groups("AlpaServe's S1, 16 GPUs", Case(workloads.SETS["S1"], 16, 64.0, seconds=468.0), repeats)
    rows += in_groups("AlpaServe's S3, 32 GPUs", Case(workloads.SETS["S3"], 32, 64.0), repeats)
    return [*rows, *for_the_policy(repeats), *costs(repeats)]


def planned(policy: str, problem: Problem, judge: Judge | None = None, **parameters: Any) -> Plan:
    factory: Any = placement_policies.get(policy)
    plan: Plan = factory(factory.Parameters(**parameters)).place(problem, Search(judge))
    return plan


def rows_of(what: str, values: dict[str, list[float]]) -> list[Row]:
    """The last is ours."""
    *rivals, (_, ours) = values.items()
    best = max(median(attained) for _, attained in rivals)
    rows = [Row(f"{what}: {name}", "in time", attained) for name, attained in rivals]
    return [*rows, Row(f"{what}: planner", "in time", ours, bar=best)]


def igniter_case(gpus: int) -> Problem:
    profile = igniter_profile()
    models = tuple(
        PlacedModel(
            index,
            name,
            slo * MILLISECOND,
            rate,
            {ALONE: Form(ALONE, (whole_gpu_times(profile.gpu, profile.models[name]),), (2**20,))},
            igniter=profile.models[name],
        )
        for index, (name, slo, rate) in enumerate(ASKS)
    )
    return Problem(models, tuple(PlacementGpu(number, 2**34, igniter=profile.gpu) for number in range(gpus)))


def whole_gpu_times(gpu: GpuTraits, model: ModelTraits, max_batch: int = 64) -> tuple[Time, ...]:
    """Return the times of batches alone on a whole GPU, by iGniter's model, as a Form has them."""
    alone = (predict(gpu, [TenantLoad(model, batch, WHOLE)])[0].latency for batch in range(1, max_batch + 1))
    return (0, *(round(latency * MILLISECOND) for latency in alone))


def compared(what: str, problem: Problem, rivals: Sequence[str], repeats: int) -> list[Row]:
    """Compare on Poisson requests; whoever has no share of its own divides the GPU evenly with others at
    work."""
    draws = [fresh(problem, seed) for seed in range(repeats)]
    plans = {name: planned(name, problem) for name in (*rivals, "planner")}
    values = {name: [attained(problem, plan, requests) for requests in draws] for name, plan in plans.items()}
    return rows_of(what, values)


def fresh(problem: Problem, seed: int) -> PlacementRequests:
    return poisson(problem, 10 * SECOND, stream(seed, "fresh").random)


def attained(problem: Problem, plan: Plan, requests: PlacementRequests) -> float:
    evaluation = evaluate(problem, plan, requests, IgniterInterference(problem), warmup=SECOND)
    return evaluation.attainment or 0.0


def in_groups(what: str, case: Case, repeats: int) -> list[Row]:
    values: dict[str, list[float]] = {name: [] for name in (*GROUPS, "planner")}
    for seed in range(repeats):
        problem = cases.problem(case, FAIR, seed)
        for name, known in values.items():
            parameters = {"runtime": GroupRuntime()} if name == "planner" else {}
            plan = planned(name, problem, **parameters)
            known.append(mean(cases.judge(case, plan, FAIR, seed + draw).attainment for draw in DRAWS))
    return rows_of(what, values)


def for_the_policy(repeats: int, gpus: int = 6) -> list[Row]:
    """Compare the same planner with and without the judge of the scenario's batching policy."""
    scenario = sized(parse(SHOP, planning=True), gpus)
    whole = plans.problem(scenario)
    problem = msgspec.structs.replace(whole, gpus=whole.gpus[:gpus])
    judge = PlanJudge(scenario, problem, warmup=SECOND)
    draws = [fresh(problem, seed) for seed in range(repeats)]
    by_policy = {
        "selective-replication": planned("selective-replication", problem),
        "planner without a judge": planned("planner", problem),
        "planner": planned("planner", problem, judge),
    }
    values = {
        name: [overall(judge, plan, requests) for requests in draws] for name, plan in by_policy.items()
    }
    return rows_of(f"five models for the policy `astrarium`, {gpus} GPUs", values)


def overall(judge: Judge, plan: Plan, requests: PlacementRequests) -> float:
    counted = [index for at, index in zip(requests.times, requests.models, strict=True) if at >= SECOND]
    parts = judge(plan, requests)
    return sum(parts[index] for index in counted) / len(counted)


def costs(repeats: int) -> list[Row]:
    names = v100.models()
    rows = []
    for count, gpus, rate, bar in ((10, 8, 80.0, QUICK), (32, 16, 40.0, LARGE)):
        loads = [(names[place % len(names)], rate * (1 + place % 5)) for place in range(count)]
        slo = 200 * MILLISECOND
        models = tuple(v100.placed_model(place, name, load, slo) for place, (name, load) in enumerate(loads))
        problem = Problem(models, v100.v100s(gpus))
        values = [cpu(lambda problem=problem: planned("planner", problem)) for _ in range(min(3, repeats))]
        what = f"planner, {count} models on {gpus} GPUs: CPU"
        rows.append(Row(what, "s", values, bar=bar, less_is_better=True))
    return rows


def cpu(work: Callable[[], object]) -> float:
    began = time.process_time_ns()
    work()
    return (time.process_time_ns() - began) / 1e9


if __name__ == "__main__":
    main(measure, repeats=5)
