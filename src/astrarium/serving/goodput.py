"""Goodput, as Symphony defines it, is the highest rate at which every model's p99 is within its SLO.

Dropped and failed requests count as misses, so the condition is that no model has more than 1 % bad.
Eager batching is not monotone on a model zoo (it fails, passes and fails again as the rate grows), so the
search first scans upwards in coarse steps to the first rate that fails, then bisects below it. Each seed
is searched on its own; the interval spans what the seeds found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from threading import Event

import msgspec
import numpy as np

from astrarium.core.errors import InputError
from astrarium.core.quantities import Time, write_duration
from astrarium.run.pools import processes, threads
from astrarium.serving.contract import Setup
from astrarium.serving.ledger import Outcome
from astrarium.serving.level import run
from astrarium.serving.path_load import path_load, unmeasured
from astrarium.serving.scenario import Scenario, build
from astrarium.serving.scenario.rates import spans
from astrarium.serving.twin import simulation
from astrarium.serving.twin.native import has_twin

ALLOWED_BAD = 0.01
SCAN_STEPS = 12
FARTHEST = 100  # times the capacity: a search that gets there is not measuring anything
FEWEST = 10  # requests of a model, at capacity, under which nothing can be said about 1 %


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
    capacity: float  # every GPU always busy with the largest batches that the SLOs allow, by the estimates
    carried: float | None = None  # by the path of one server: the GPUs know nothing of it; None: unknown
    unmeasured: list[str] = []  # models whose calls nobody measured, so that this is unknown

    @property
    def limit(self) -> str:
        """Return what limits a server: its GPUs, or the path of its calls."""
        return "path" if self.carried is not None and self.carried < self.goodput else "GPUs"

    @property
    def promised(self) -> float:
        """Return what a server can promise: the lesser of what its GPUs and its path can do."""
        return self.goodput if self.carried is None else min(self.carried, self.goodput)


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
    _check_length(scenario, limit)
    threads = has_twin(build.policy(scenario, setup))
    heard = progress if threads or jobs == 1 else None  # another process could not be heard
    stop = Event() if threads else None
    search_one = partial(_search_seed, scenario, limit, tolerance, heard, stop)
    searches = _map(search_one, numbers, jobs, stop)
    per_seed = [rate for rate, _ in searches]
    parts = dict(zip(scenario.models, shares(scenario), strict=True))
    load = path_load(scenario, parts)
    return Goodput(
        goodput=float(np.mean(per_seed)),
        interval=(min(per_seed), max(per_seed)),
        seeds=numbers,
        per_seed=per_seed,
        probes=[probe for _, probes in searches for probe in probes],
        capacity=limit,
        carried=None if load is None else 1 / load,
        unmeasured=unmeasured(scenario, parts),
    )


def _check(scenario: Scenario, seeds: int, tolerance: float) -> None:
    if scenario.workload.arrivals == "trace":
        raise InputError("workload.arrivals", "trace", "arrivals with a rate to search over")
    if seeds < 1:
        raise InputError("seeds", seeds, "at least one seed")
    if not 0 < tolerance < 1:
        raise InputError("tolerance", tolerance, "a share between 0 and 1, such as 0.002")


def _check_length(scenario: Scenario, limit: float) -> None:
    """Check that every model that gets requests gets enough of them to be judged."""
    measured_s = (scenario.duration - scenario.workload.warmup) / 1e9
    for name, share in zip(scenario.models, shares(scenario), strict=True):
        if 0 < share * limit * measured_s < FEWEST:
            expected = (
                f"a longer run: at {limit:,.0f} requests/s, all that the GPUs can do, {name} would get "
                f"{share * limit * measured_s:.2g} requests after the warm-up, and {FEWEST} are the least"
            )
            raise InputError("workload.duration", write_duration(scenario.duration), expected)


def capacity(scenario: Scenario, setup: Setup) -> float:
    """Return the requests per second if every GPU always ran the largest batch that fits in each SLO.

    Dynamic models count by the estimates that policies are told, and may do better.
    """
    kind_of_gpu, tables = build.truth_tables(scenario, setup)
    parts = shares(scenario)
    best = [[_least(table) for table in of_kind] for of_kind in tables]
    if scenario.has_lengths:
        _by_length(scenario, setup, best)
    gpu_seconds = [sum(part * cost for part, cost in zip(parts, costs, strict=True)) / 1e9 for costs in best]
    return sum(1 / gpu_seconds[kind] for kind in kind_of_gpu)


def _least(table: Sequence[Time]) -> float:
    """Return the GPU time of a request at the best batch size, by a table that ends in FOREVER."""
    return min(table[size] / size for size in range(1, len(table) - 1))


def _by_length(scenario: Scenario, setup: Setup, best: list[list[float]]) -> None:
    """Put in what requests of the workload's lengths take, among their like: the mean over the buckets."""
    arrivals = build.arrivals(scenario)
    buckets = build.buckets(arrivals, setup)
    for spec, model in zip(setup.models, scenario.models.values(), strict=True):
        if spec.lengths is None:
            continue
        counts = np.bincount(buckets[arrivals.model == spec.index], minlength=len(spec.lengths.longest))
        by_kind = build.profiles_by_length(model.profile, scenario.cluster.kinds)
        for costs, profile in zip(best, by_kind, strict=True):
            rows = [
                profile.times(length)[: spec.lengths.max_batch(bucket)]
                for bucket, length in enumerate(spec.lengths.longest)
            ]
            least = [_least((0, *row, 0)) for row in rows]
            costs[spec.index] = float(np.average(least, weights=counts)) if counts.any() else least[-1]


def shares(scenario: Scenario) -> list[float]:
    """Return each model's part of all requests."""
    parts = spans(scenario.workload, list(scenario.models))
    sums = [
        sum(rate * (part.end - part.start) for part, rate in zip(parts, rates, strict=True))
        for rates in zip(*(part.rates for part in parts), strict=True)
    ]
    return [part / sum(sums) for part in sums]


def worst_bad(
    scenario: Scenario, allowed: float = ALLOWED_BAD, progress: Callable[[Time], None] | None = None
) -> float:
    """Return the largest share of bad requests of any model in one run."""
    setup = build.setup(scenario)
    policy = build.policy(scenario, setup)
    if has_twin(policy):
        return simulation.worst_bad(scenario, setup, policy, build.arrivals(scenario), allowed, progress)
    requests = run(scenario, "python", progress).requests
    measured = requests.arrival >= scenario.workload.warmup
    bad = measured & (requests.outcome != Outcome.IN_TIME)
    counts = [np.bincount(requests.model[some], minlength=len(setup.models)) for some in (bad, measured)]
    return simulation.worst_share(*counts)


def _search_seed(
    scenario: Scenario,
    limit: float,
    tolerance: float,
    progress: Callable[[Probe], None] | None,
    stop: Event | None,
    seed: int,
) -> tuple[float, list[Probe]]:
    probes: list[Probe] = []

    def stop_if_asked(now: Time = 0) -> None:
        """Stop if the main thread was interrupted: other threads look here, between probes and inside."""
        if stop is not None and stop.is_set():
            raise KeyboardInterrupt

    def passes(rate: float) -> bool:
        stop_if_asked()
        worst = worst_bad(scenario.with_seed(seed).with_rate(rate), progress=stop_if_asked)
        probes.append(Probe(rate, seed, worst, worst <= ALLOWED_BAD))
        if progress is not None:
            progress(probes[-1])
        return probes[-1].passed

    good, bad = scan(passes, limit)
    return bisect(passes, good, bad, tolerance), probes


def scan(passes: Callable[[float], bool], limit: float, steps: int = SCAN_STEPS) -> tuple[float, float]:
    """Return the last rate that passes before the first that fails, going up."""
    good = 0.0
    for rate in _rates(limit, steps):
        if not passes(rate):
            return good, rate
        good = rate
    raise InputError(
        "workload", None, f"one in which {good:,.0f} requests/s, {FARTHEST} times the capacity, are too many"
    )


def _rates(limit: float, steps: int) -> Iterator[float]:
    """Yield rates in equal steps up to the limit, and growing ones past it: policies may beat estimates."""
    yield from (limit * step / steps for step in range(1, steps + 1))
    rate = limit * (1 + 1 / steps)
    while rate < FARTHEST * limit:
        yield rate
        rate *= 1 + 1 / steps


def bisect(passes: Callable[[float], bool], good: float, bad: float, tolerance: float) -> float:
    """Narrow (good, bad) down by halving; a floor ends it for a policy that serves nothing."""
    floor = bad / 1000
    while bad - good > tolerance * bad and bad > floor:
        middle = (good + bad) / 2
        good, bad = (middle, bad) if passes(middle) else (good, middle)
    return good


def _map(
    search_one: Callable[[int], tuple[float, list[Probe]]], seeds: list[int], jobs: int, stop: Event | None
) -> list[tuple[float, list[Probe]]]:
    """Search the seeds in threads where they have a *stop*, else in processes.

    The native twin releases the interpreter's lock, so threads do; Python policies need processes.
    """
    if jobs <= 1:
        return [search_one(seed) for seed in seeds]
    with processes(jobs) if stop is None else threads(jobs) as pool:
        try:
            return list(pool.map(search_one, seeds))
        except BaseException:
            if stop is not None:
                stop.set()  # whoever is in the middle of a run leaves it
            raise
