"""How fast arrivals are generated."""

from __future__ import annotations

import time

from _measure import ROOT, Row, main
from astrarium.serving.scenario import Scenario, build, load

WHOLE = "workload.warmup=0s"
KINDS = {
    "Poisson, one model": ("quickstart", ["workload.rate=50000/s", "workload.duration=100s", WHOLE]),
    "Poisson, A100 zoo": ("zoo", ["workload.rate=50000/s", "workload.duration=100s", WHOLE]),
    "gamma 0.3, A100 zoo": (
        "zoo",
        [
            "workload.arrivals=gamma",
            "workload.shape=0.3",
            "workload.rate=50000/s",
            "workload.duration=100s",
            WHOLE,
        ],
    ),
}


def measure(repeats: int) -> list[Row]:
    rows = []
    for name, (file, overrides) in KINDS.items():
        scenario = load(ROOT / f"examples/{file}.yaml", overrides)
        speeds = [speed(scenario) / 1e6 for _ in range(repeats)]
        rows.append(Row(f"arrivals: {name}", "M requests/CPU-s", speeds, bar=5.0))
    return rows


def speed(scenario: Scenario) -> float:
    began = time.process_time()
    count = len(build.arrivals(scenario))
    return count / (time.process_time() - began)


if __name__ == "__main__":
    main(measure, repeats=5)
