"""What the policy `astrarium` costs on static models: its speed over that of `deferred`, in both engines."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from _measure import Row, main
from astrarium.core.level import Watching
from astrarium.run.simulate import simulate
from astrarium.serving import level
from astrarium.serving.scenario import Scenario, build, parse
from astrarium.serving.twin import simulation

RESNET50 = {"profile": {"alpha": "1.053ms", "beta": "5.072ms"}, "slo": "25ms"}  # Symphony, table 2
BAR = 0.8


class Load(NamedTuple):
    """About 90 % of what the GPUs carry."""

    what: str
    models: Any
    gpus: int
    rate: int


FLEETS = [
    Load("32 models, 64 GPUs", {"resnet50": {**RESNET50, "copies": 32}}, 64, 37_600),
    Load("32 models, 1024 GPUs", {"resnet50": {**RESNET50, "copies": 32}}, 1024, 670_000),
    Load("1000 models, 1024 GPUs", {"resnet50": {**RESNET50, "copies": 1000}}, 1024, 540_000),
]
COMMON = [
    Load("one model, 8 GPUs", {"resnet50": RESNET50}, 8, 5_000),
    Load("A100 zoo, 64 GPUs", "zoo:A100", 64, 16_500),
]
NATIVE = 600_000  # requests
PYTHON = 60_000  # requests


def measure(repeats: int) -> list[Row]:
    rows = []
    for engine, loads, requests in (("native", COMMON + FLEETS, NATIVE), ("python", COMMON, PYTHON)):
        for load in loads:
            ratios = [ratio(engine, load, requests, seed) for seed in range(1, repeats + 1)]
            rows.append(Row(f"astrarium over deferred, {engine}: {load.what}", "x", ratios, bar=BAR))
    return rows


def ratio(engine: str, load: Load, requests: int, seed: int) -> float:
    """Return the ratio of requests per CPU-second; arrivals are made before the clock starts, and who goes
    first changes."""
    spent = {}
    for policy in ("astrarium", "deferred")[:: 1 if seed % 2 else -1]:
        scenario = scenario_of(load, policy, requests, seed)
        setup = build.setup(scenario)
        arrivals = build.arrivals(scenario)
        built = build.policy(scenario, setup)
        began = time.process_time()
        if engine == "native":
            simulation.simulate(scenario, setup, built, arrivals)
        else:
            ready = level.prepared(scenario, setup, built, arrivals, Watching())
            ready.record(simulate(ready.engine, ready.arrivals, ready.world))
        spent[policy] = time.process_time() - began
    return spent["deferred"] / spent["astrarium"]


def scenario_of(load: Load, policy: str, requests: int, seed: int) -> Scenario:
    return parse(
        {
            "cluster": {"gpus": load.gpus},
            "models": load.models,
            "policy": {"name": policy},
            "workload": {
                "arrivals": "poisson",
                "rate": f"{load.rate}/s",
                "duration": f"{requests / load.rate:.9g}s",
            },
            "seed": seed,
        }
    )


if __name__ == "__main__":
    main(measure, repeats=7)
