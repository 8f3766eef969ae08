"""The scheduler alone: one thread, and model threads with one rank thread on two cores."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import numpy as np

from _measure import Row, main
from astrarium import _front, _native
from astrarium.serving import twin
from astrarium.serving.scenario import build, parse

IN_TIME = 1
RESNET50 = {"profile": {"alpha": "1.053ms", "beta": "5.072ms"}, "slo": "25ms"}  # Symphony, table 2


class Timed(NamedTuple):
    wall_s: float
    cpu_s: float
    bad: float  # share of requests dropped or late


class Fleet:
    """Equal popularity, Poisson arrivals, no network delays; everything is built before a clock starts."""

    def __init__(self, models: int, gpus: int, rate: float, requests: int) -> None:
        self.models, self.gpus, self.rate, self.requests = models, gpus, rate, requests
        scenario = parse(
            {
                "cluster": {"gpus": gpus},
                "models": {"resnet50": {**RESNET50, "copies": models}},
                "policy": {"name": "deferred"},
                "workload": {"arrivals": "poisson", "rate": f"{rate}/s", "duration": f"{requests / rate}s"},
                "seed": 1,
            }
        )
        setup = build.setup(scenario)
        arrivals = build.arrivals(scenario)
        policy = build.policy(scenario, setup)
        self.count = len(arrivals)
        self._columns = (arrivals.time, build.deadlines(arrivals, setup), arrivals.model)
        self._work = arrivals.work
        specs = [_native.Model(model.slo, model.latency) for model in setup.models]
        self._setup = _native.Setup(specs, gpus, _native.Network(0, 0, 0), 0)
        self._truth = twin.truth_for(_native, scenario, setup)
        self._parameters = _native.Parameters(policy.native, *policy.native_parameters())

    def __str__(self) -> str:
        return f"{self.models} models, {self.gpus} GPUs, {self.rate:,.0f} requests/s"

    def one_thread(self) -> Timed:
        """The simulator's native loop: the scheduler, and GPUs that are objects in the same thread."""
        wall, cpu = time.perf_counter(), time.process_time()
        run = _native.simulate_serving(
            self._setup, self._truth, self._parameters, *self._columns, self._work, 0, []
        )
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return Timed(wall, cpu, bad(run))

    def live(self) -> float:
        """The CPU-seconds of the server's scheduler for as many requests, evenly spaced: tickets through a
        ring, orders as bytes, what workers say as bytes."""
        cpu = time.process_time()
        _front.feed(self._setup, self._parameters, REQUESTS, self.rate, TURN)
        return time.process_time() - cpu

    def multicore(self, model_threads: int, quantum: int, lead: int, **options: bool) -> Timed:
        """From the start of the threads to the end of the last, by the scheduler's own clocks."""
        run = _native.schedule_multicore(
            self._setup, False, *self._columns, model_threads, quantum, lead, **options
        )
        return Timed(run["wall_ns"] / 1e9, sum(run["cpu_ns"]) / 1e9, bad(run))


def bad(run: dict[str, Any]) -> float:
    return float(np.mean(run["outcome"] != IN_TIME))


# (models, GPUs, requests/s: about 90 % of the rate at which 1 % go bad)
FLEETS = [(32, 64, 37_600), (32, 1024, 670_000), (1000, 1024, 540_000), (1000, 4096, 2_570_000)]
REQUESTS = 1_000_000
QUANTUM, LEAD = 100_000, 4  # ns: candidates are at most 0.4 ms old when they are matched
MILLION = 1e6
TURN = 10_000  # ns between two looks of the live scheduler into its ring
ONE, TWO = "1 model thread + rank thread", "2 model threads + rank thread"
SAME = "the same work in one thread"
RATIOS = [
    (TWO, "one thread", 1.6),
    (TWO, SAME, 1.6),
    (TWO, ONE, None),
    (f"{TWO}, not pinned", "one thread", None),
    (f"{TWO}, not pinned", SAME, None),
]


def measure(repeats: int) -> list[Row]:
    rows = []
    for setting in FLEETS:
        fleet = Fleet(*setting, requests=REQUESTS)
        speeds = [fleet.count / fleet.one_thread().cpu_s / MILLION for _ in range(repeats)]
        rows.append(Row(f"one thread: {fleet}", "M requests/CPU-s", speeds, bar=1.0))
        live = [REQUESTS / fleet.live() / MILLION for _ in range(repeats)]
        rows.append(Row(f"live scheduler, no network: {fleet}", "M requests/CPU-s", live, bar=1.0))
    return rows + multicore(Fleet(*FLEETS[-1], requests=2 * REQUESTS), repeats)


def multicore(fleet: Fleet, repeats: int) -> list[Row]:
    """Every repetition runs all ways one after the other, and ratios are taken within it."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:2])
    try:
        runs = [all_ways(fleet) for _ in range(repeats)]
    finally:
        os.sched_setaffinity(0, allowed)
    ways = {way: [run[way] for run in runs] for way in runs[0]}
    return [*speed_rows(fleet, ways), *ratio_rows(ways), *quality_rows(ways)]


def all_ways(fleet: Fleet) -> dict[str, Timed]:
    return {
        "one thread": fleet.one_thread(),
        ONE: fleet.multicore(1, QUANTUM, LEAD, pin=True),
        TWO: fleet.multicore(2, QUANTUM, LEAD, pin=True),
        f"{TWO}, not pinned": fleet.multicore(2, QUANTUM, LEAD),
        SAME: fleet.multicore(2, QUANTUM, LEAD, alone=True),
    }


def speed_rows(fleet: Fleet, ways: dict[str, list[Timed]]) -> list[Row]:
    rows = []
    for way, runs in ways.items():
        walls = [fleet.count / run.wall_s / MILLION for run in runs]
        rows.append(Row(f"{way}: wall clock", "M requests/s", walls))
        rows.append(Row(f"{way}: CPU", "CPU-s", [run.cpu_s for run in runs], less_is_better=True))
    return rows


def ratio_rows(ways: dict[str, list[Timed]]) -> list[Row]:
    """Wall clock. The bar holds against the simulator's loop, which also carries the GPUs' events, and
    against the very work of the threads."""
    rows = []
    for fast, slow, bar in RATIOS:
        pairs = zip(ways[fast], ways[slow], strict=True)
        ratios = [other.wall_s / run.wall_s for run, other in pairs]
        rows.append(Row(f"{fast}, over {slow}", "x", ratios, bar=bar))
    return rows


def quality_rows(ways: dict[str, list[Timed]]) -> list[Row]:
    return [
        Row(f"{way}: bad requests", "%", [100 * run.bad for run in ways[way]], less_is_better=True)
        for way in ("one thread", TWO)
    ]


if __name__ == "__main__":
    main(measure, repeats=7)
