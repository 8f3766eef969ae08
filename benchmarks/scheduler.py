"""The scheduler alone: in the simulator, and as servers run it."""

from __future__ import annotations

import time

from _measure import Row, main
from astrarium import _front, _native
from astrarium.serving import twin
from astrarium.serving.scenario import build, parse

RESNET50 = {"profile": {"alpha": "1.053ms", "beta": "5.072ms"}, "slo": "25ms"}  # Symphony, table 2


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

    def one_thread(self) -> float:
        """The CPU-seconds of the simulator's native loop: the scheduler, and GPUs that are objects."""
        cpu = time.process_time()
        _native.simulate_serving(
            self._setup, self._truth, self._parameters, *self._columns, self._work, 0, []
        )
        return time.process_time() - cpu

    def live(self) -> float:
        """The CPU-seconds of the server's scheduler for as many requests, evenly spaced: tickets through a
        ring, orders as bytes, what workers say as bytes."""
        cpu = time.process_time()
        _front.feed(self._setup, self._parameters, REQUESTS, self.rate, TURN)
        return time.process_time() - cpu


# (models, GPUs, requests/s: about 90 % of the rate at which 1 % go bad)
FLEETS = [(32, 64, 37_600), (32, 1024, 670_000), (1000, 1024, 540_000), (1000, 4096, 2_570_000)]
REQUESTS = 1_000_000
MILLION = 1e6
TURN = 10_000  # ns between two looks of the live scheduler into its ring


def measure(repeats: int) -> list[Row]:
    rows = []
    for setting in FLEETS:
        fleet = Fleet(*setting, requests=REQUESTS)
        speeds = [fleet.count / fleet.one_thread() / MILLION for _ in range(repeats)]
        rows.append(Row(f"one thread: {fleet}", "M requests/CPU-s", speeds, bar=1.0))
        live = [REQUESTS / fleet.live() / MILLION for _ in range(repeats)]
        rows.append(Row(f"live scheduler, no network: {fleet}", "M requests/CPU-s", live, bar=1.0))
    return rows


if __name__ == "__main__":
    main(measure, repeats=7)
