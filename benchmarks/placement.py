"""Placement: simulated requests for each second of CPU, and what AlpaServe's searches take and reach."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from _measure import Row, child, main
from astrarium.placement.groups.layout import Group, GroupLayout, Tables
from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.groups.simulation import score, simulate_groups
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.problem import Shape
from astrarium_papers.alpaserve._common import cases, workloads
from astrarium_papers.alpaserve._common.cases import AS_PUBLISHED, Case
from astrarium_papers.alpaserve._common.served import TrimmedRequests, statistics, trimmed

SCORED = 20.0  # millions of requests a second of CPU
WHOLE = 10.0  # the same
SMALL = 0.5  # seconds of CPU
LARGE = 15.0  # seconds of CPU
SMALL_REACHED = 0.983  # by the authors' search, on the same requests
LARGE_REACHED = 0.953  # the same
ONE_FORM = ("bert-2.6b",) * 8
TWO_FORMS = ("bert-2.6b", "bert-1.3b") * 4
ALL = tuple(range(8))
PIPELINE = (Group(ALL, Shape(8), ALL),)
PAIRS = tuple(Group((2 * pair, 2 * pair + 1), Shape(2), ALL) for pair in range(4))
WAITING = GroupRuntime(dispatch="queue", another=True, order="deadline", max_batch=4)
FIRST = (
    "import sys, time; sys.path.insert(0, 'benchmarks'); import placement as bench; "
    "scene = bench.scene(bench.ONE_FORM, bench.PIPELINE, bench.GroupRuntime(), 1.0); "
    "began = time.perf_counter(); bench.score(*scene); print(time.perf_counter() - began)"
)


def measure(repeats: int) -> list[Row]:
    return [*kernels(repeats), *searches(repeats)]


def kernels(repeats: int) -> list[Row]:
    """8 models on 8 GPUs, about 100 000 requests at 20 a second and a CV of 3, as in AlpaServe's section
    3.2."""
    rows = [
        rate(
            repeats,
            "one pipeline of 8, models alike: score",
            ONE_FORM,
            PIPELINE,
            GroupRuntime(),
            scored,
            SCORED,
        ),
        rate(
            repeats,
            "one pipeline of 8, two kinds: score",
            TWO_FORMS,
            PIPELINE,
            GroupRuntime(),
            scored,
            SCORED,
        ),
        rate(repeats, "four of 2, two kinds: score", TWO_FORMS, PAIRS, GroupRuntime(), scored, SCORED),
        rate(
            repeats,
            "four of 2, shortest queue, second try: score",
            TWO_FORMS,
            PAIRS,
            GroupRuntime(dispatch="queue", another=True),
            scored,
            SCORED,
        ),
        rate(
            repeats,
            "one of 8, two kinds, doubles: score",
            TWO_FORMS,
            PIPELINE,
            AS_PUBLISHED.runtime,
            scored,
            SCORED,
        ),
        rate(
            repeats, "one of 8, two kinds: all statistics", TWO_FORMS, PIPELINE, GroupRuntime(), whole, WHOLE
        ),
        rate(repeats, "four of 2, two kinds: all statistics", TWO_FORMS, PAIRS, GroupRuntime(), whole, WHOLE),
        rate(
            repeats,
            "four of 2, deadlines and batches of 4: all statistics",
            TWO_FORMS,
            PAIRS,
            WAITING,
            whole,
            None,
        ),
    ]
    first = [float(child(sys.executable, "-c", FIRST).output) * 1000 for _ in range(min(3, repeats))]
    return [*rows, Row("placement: the first simulation of a process", "ms", first, less_is_better=True)]


def scene(
    names: tuple[str, ...], groups: tuple[Group, ...], runtime: GroupRuntime, seconds: float
) -> tuple[GroupLayout, TrimmedRequests]:
    case = Case(names, 8, 20.0, 3.0, 5.0, seconds, "uniform")
    ways = msgspec.structs.replace(AS_PUBLISHED, runtime=runtime)
    tables = Tables.of(cases.placed_models(names, case.rates(), case.slo), runtime)
    return GroupLayout.of(tables, groups), trimmed(*cases.columns(case, ways, 0), len(names), 0)


Work = Callable[[GroupLayout, TrimmedRequests], object]


def scored(layout: GroupLayout, workload: TrimmedRequests) -> object:
    """As a search asks."""
    return score(layout, workload)


def whole(layout: GroupLayout, workload: TrimmedRequests) -> object:
    """Return the latency of every request, attainment by model, mean and 99th percentile."""
    return statistics(simulate_groups(layout, workload), workload)


def rate(
    repeats: int,
    what: str,
    names: tuple[str, ...],
    groups: tuple[Group, ...],
    runtime: GroupRuntime,
    work: Work,
    bar: float | None,
) -> Row:
    layout, workload = scene(names, groups, runtime, 5000.0)
    work(layout, workload)
    values = [len(workload.arrivals) / 1e6 / cpu(lambda: work(layout, workload)) for _ in range(repeats)]
    return Row(f"placement, {what}", "M/s", values, bar=bar)


def cpu(work: Callable[[], object]) -> float:
    """Seconds of this process."""
    began = time.process_time_ns()
    work()
    return (time.process_time_ns() - began) / 1e9


def searches(repeats: int) -> list[Row]:
    small = Case(workloads.SETS["S1"], 16, 64.0, 4.0, 5.0, 468.0)
    large = Case(workloads.SETS["S3"], 32, 64.0, 4.0, 5.0, 200.0)
    return [
        *search(repeats, "32 models, 16 GPUs, 30 000 requests", small, SMALL, SMALL_REACHED),
        *search(repeats, "60 models, 32 GPUs, 12 900 requests, buckets", large, LARGE, LARGE_REACHED),
    ]


def search(repeats: int, what: str, case: Case, bar: float, reached: float) -> list[Row]:
    """Attainment of all requests that the plan was made with; and as the authors report it, without the first
    and last 10 s; and on requests that nobody planned with."""
    problem = cases.problem(case, AS_PUBLISHED)
    factory: Any = placement_policies.get("alpaserve")
    policy = factory(factory.Parameters())
    plan = policy.place(problem, Search())
    took = [cpu(lambda: policy.place(problem, Search())) for _ in range(repeats)]
    seen = cases.judge(case, plan, AS_PUBLISHED).attainment
    fresh = [cases.judge(case, plan, cases.FAIR, seed).attainment for seed in range(3)]
    name = f"placement search, {what}"
    return [
        Row(f"{name}: CPU", "s", took, bar=bar, less_is_better=True),
        Row(f"{name}: attainment of all requests planned with", "", [plan.attainment or 0.0]),
        Row(f"{name}: attainment as the authors report it", "", [seen], bar=reached),
        Row(f"{name}: attainment on fresh requests", "", fresh),
    ]


if __name__ == "__main__":
    main(measure, repeats=7)
