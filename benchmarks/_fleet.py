"""Many models like ResNet50 on many GPUs, with arrivals made beforehand, for the schedulers alone."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from astrarium import _native
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

    def multicore(self, model_threads: int, quantum: int, lead: int, **options: bool) -> Timed:
        """From the start of the threads to the end of the last, by the scheduler's own clocks."""
        run = _native.schedule_multicore(
            self._setup, False, *self._columns, model_threads, quantum, lead, **options
        )
        return Timed(run["wall_ns"] / 1e9, sum(run["cpu_ns"]) / 1e9, bad(run))


def bad(run: dict[str, Any]) -> float:
    return float(np.mean(run["outcome"] != IN_TIME))
