"""The scheduler alone: in the simulator, and as servers run it."""

from __future__ import annotations

import time
from typing import Any

import astrarium._simulator as _simulator
import astrarium._testing as _testing
from _measure import Row, main
from astrarium.serving.scenario import build, parse
from astrarium.serving.twin import native, simulation

RESNET50 = {"profile": {"alpha": "1.053ms", "beta": "5.072ms"}, "slo": "25ms"}  # Symphony, table 2
APPLICATIONS = {
    f"{median}ms": {"time": {"lognormal": {"median": f"{median}ms", "sigma": 0.3}}} for median in (1, 3, 5, 7)
}
UNEQUAL = {
    "profile": {"dynamic": {"applications": APPLICATIONS, "c0": "2ms", "c1": 0.25}},
    "slo": "100ms",
    "max_batch": 16,
}


class Fleet:
    """Equal popularity, Poisson arrivals, no network delays; everything is built before a clock starts."""

    def __init__(
        self,
        models: int,
        gpus: int,
        rate: float,
        requests: int,
        policy: str = "deferred",
        model: dict[str, Any] = RESNET50,
    ) -> None:
        self.models = models
        self.gpus = gpus
        self.rate = rate
        scenario = parse(
            {
                "cluster": {"gpus": gpus},
                "models": {"model": {**model, "copies": models}},
                "policy": {"name": policy},
                "workload": {"arrivals": "poisson", "rate": f"{rate}/s", "duration": f"{requests / rate}s"},
                "profiling": {"history": 200},
                "seed": 1,
            }
        )
        setup = build.setup(scenario)
        arrivals = build.arrivals(scenario)
        chosen = build.policy(scenario, setup)
        self.count = len(arrivals)
        self._columns = (arrivals.time, build.deadlines(arrivals, setup), arrivals.model)
        self._work = arrivals.work
        self._setup = native.native_setup(_simulator, setup)
        self._truth = simulation.truth_for(_simulator, scenario, setup)
        self._parameters = _simulator.Parameters(chosen.native, *chosen.native_parameters())

    def __str__(self) -> str:
        return f"{self.models} models, {self.gpus} GPUs, {self.rate:,.0f} requests/s"

    def one_thread(self) -> float:
        """Return the CPU-seconds of the simulator's native loop: the scheduler, and GPUs that are objects."""
        cpu = time.process_time()
        _simulator.simulate_serving(
            self._setup, self._truth, self._parameters, *self._columns, self._work, 0, []
        )
        return time.process_time() - cpu

    def live(self) -> float:
        """The CPU-seconds of the server's scheduler for as many requests, evenly spaced: tickets through a
        ring, orders as bytes, what workers say as bytes, and of some what they would have taken alone."""
        cpu = time.process_time()
        _testing.feed(self._setup, self._parameters, REQUESTS, self.rate, TURN, PROFILED)
        return time.process_time() - cpu


# (models, GPUs, requests/s: about 90 % of the rate at which 1 % go bad)
FLEETS = [(32, 64, 37_600), (32, 1024, 670_000), (1000, 1024, 540_000), (1000, 4096, 2_570_000)]
# The same for models whose requests take unequal times, with the policy; orloj keeps batches small.
DYNAMIC_FLEETS = [
    ("astrarium", 32, 64, 36_000),
    ("astrarium", 32, 1024, 600_000),
    ("orloj", 32, 64, 26_000),
    ("orloj", 32, 1024, 400_000),
]
REQUESTS = 1_000_000
MILLION = 1e6
TURN = 10_000  # ns between two looks of the live scheduler into its ring
PROFILED = 0.1  # the share of requests whose own time is told


def measure(repeats: int) -> list[Row]:
    rows = []
    for setting in FLEETS:
        fleet = Fleet(*setting, requests=REQUESTS)
        speeds = [fleet.count / fleet.one_thread() / MILLION for _ in range(repeats)]
        rows.append(Row(f"one thread: {fleet}", "M requests/CPU-s", speeds, bar=1.0))
        rows.append(live_row(fleet, "", repeats))
    for policy, *setting in DYNAMIC_FLEETS:
        fleet = Fleet(*setting, requests=1, policy=policy, model=UNEQUAL)
        rows.append(live_row(fleet, f"{policy}, unequal times, ", repeats))
    return rows


def live_row(fleet: Fleet, what: str, repeats: int) -> Row:
    speeds = [REQUESTS / fleet.live() / MILLION for _ in range(repeats)]
    return Row(f"live scheduler, no network: {what}{fleet}", "M requests/CPU-s", speeds, bar=1.0)


if __name__ == "__main__":
    main(measure, repeats=7)
