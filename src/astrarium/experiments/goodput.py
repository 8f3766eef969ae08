"""Goodput as Symphony defines it: the highest rate at which every model's p99 is within its SLO.

Dropped and failed requests count as misses, so the condition is that no model has more than 1 % bad.
Eager batching is not monotone on a model zoo (it fails, passes and fails again as the rate grows), so the
search first scans upwards in coarse steps to the first rate that fails, then bisects below it. Each seed
is searched on its own; the interval spans what the seeds found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import msgspec
import numpy as np

from astrarium.core.errors import InputError
from astrarium.experiments import native
from astrarium.experiments.run import run
from astrarium.scenario import Scenario, build
from astrarium.scenario.rates import spans
from astrarium.serving.ledger import Outcome
from astrarium.serving.setup import Setup

ALLOWED_BAD = 0.01
SCAN_STEPS = 12


class Probe(msgspec.Struct, frozen=True):
    rate: float
    seed: int
    worst_bad: float
    passed: bool


class Goodput(msgspec.Struct, frozen=True):
    goodput: float  # requests per second, the mean over the seeds
    interval: tuple[float, float]  # the smallest and the largest of the seeds
    seeds: list[int]
    per_seed: list[float]
    probes: list[Probe]
    capacity: float  # an upper bound: every GPU always busy with the largest batches the SLOs allow


def search(
    scenario: Scenario,
    seeds: int = 3,
    tolerance: float = 0.002,
    progress: Callable[[Probe], None] | None = None,
    jobs: int = 1,
) -> Goodput:
    """Search seeds scenario.seed, scenario.seed + 1, ... each to a relative *tolerance*."""
    _check(scenario, seeds, tolerance)
    numbers = [scenario.seed + i for i in range(seeds)]
    setup = build.setup(scenario)
    limit = capacity(scenario, setup)
    threads = native.has_twin(build.policy(scenario, setup))
    heard = progress if threads or jobs == 1 else None  # another process could not be heard
    search_one = partial(_search_seed, scenario, limit, tolerance, heard)
    found = list(_map(search_one, numbers, jobs, threads))
    per_seed = [rate for rate, _ in found]
    return Goodput(
        goodput=float(np.mean(per_seed)),
        interval=(min(per_seed), max(per_seed)),
        seeds=numbers,
        per_seed=per_seed,
        probes=[probe for _, probes in found for probe in probes],
        capacity=limit,
    )


def _check(scenario: Scenario, seeds: int, tolerance: float) -> None:
    if scenario.workload.arrivals == "trace":
        raise InputError("workload.arrivals", "trace", "arrivals with a rate to search over")
    if seeds < 1:
        raise InputError("seeds", seeds, "at least one seed")
    if not 0 < tolerance < 1:
        raise InputError("tolerance", tolerance, "a share between 0 and 1, such as 0.002")


def capacity(scenario: Scenario, setup: Setup) -> float:
    """Requests per second if every GPU always ran the largest batch that fits in each model's SLO."""
    gpu_seconds = sum(
        share * min(model.latency[size] / size for size in range(1, model.max_batch + 1)) / 1e9
        for share, model in zip(shares(scenario), setup.models, strict=True)
    )
    return len(setup.gpus) / gpu_seconds


def shares(scenario: Scenario) -> list[float]:
    """Each model's part of all requests."""
    parts = spans(scenario.workload, list(scenario.models))
    sums = [
        sum(rate * (part.end - part.start) for part, rate in zip(parts, rates, strict=True))
        for rates in zip(*(part.rates for part in parts), strict=True)
    ]
    return [part / sum(sums) for part in sums]


def worst_bad(scenario: Scenario, allowed: float = ALLOWED_BAD) -> float:
    """The largest share of bad requests of any model in one run."""
    setup = build.setup(scenario)
    policy = build.policy(scenario, setup)
    if native.has_twin(policy):
        return native.worst_bad(scenario, setup, policy, build.arrivals(scenario, setup), allowed)
    requests = run(scenario, "python").requests
    measured = requests.arrival >= scenario.workload.warmup
    totals = np.bincount(requests.model[measured], minlength=len(setup.models))
    bad = np.bincount(
        requests.model[measured & (requests.outcome != Outcome.IN_TIME)], minlength=len(setup.models)
    )
    return float(np.max(bad / np.maximum(totals, 1)))


def _search_seed(
    scenario: Scenario,
    limit: float,
    tolerance: float,
    progress: Callable[[Probe], None] | None,
    seed: int,
) -> tuple[float, list[Probe]]:
    probes: list[Probe] = []

    def passes(rate: float) -> bool:
        worst = worst_bad(scenario.with_seed(seed).with_rate(rate))
        probes.append(Probe(rate, seed, worst, worst <= ALLOWED_BAD))
        if progress is not None:
            progress(probes[-1])
        return probes[-1].passed

    good, bad = scan(passes, limit)
    return bisect(passes, good, bad, tolerance), probes


def scan(passes: Callable[[float], bool], limit: float, steps: int = SCAN_STEPS) -> tuple[float, float]:
    """The last rate that passes before the first that fails, going up in equal steps."""
    good = 0.0
    for step in range(1, steps + 1):
        rate = limit * step / steps
        if not passes(rate):
            return good, rate
        good = rate
    return good, limit * (1 + 1 / steps)


def bisect(passes: Callable[[float], bool], good: float, bad: float, tolerance: float) -> float:
    """Narrow (good, bad) down; the floor keeps a policy that serves nothing from halving for ever."""
    floor = bad / 1000
    while bad - good > tolerance * bad and bad > floor:
        middle = (good + bad) / 2
        good, bad = (middle, bad) if passes(middle) else (good, middle)
    return good


def _map(
    search_one: Callable[[int], tuple[float, list[Probe]]], seeds: list[int], jobs: int, threads: bool
) -> Iterable[tuple[float, list[Probe]]]:
    """The native twin lets go of the interpreter, so threads do; Python policies need processes."""
    if jobs <= 1:
        return [search_one(seed) for seed in seeds]
    pool: Executor = ThreadPoolExecutor(jobs) if threads else ProcessPoolExecutor(jobs)
    with pool:
        return list(pool.map(search_one, seeds))
