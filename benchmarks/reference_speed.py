"""The pure-Python reference path, and how much faster its native twin is on the same scenario."""

from __future__ import annotations

import time
from typing import Literal

from _measure import ROOT, Row, main
from astrarium.serving.level import run
from astrarium.serving.scenario import Scenario, load

SCENARIOS = {
    "one model": ("examples/quickstart.yaml", ["workload.rate=5000/s", "workload.duration=20s"]),
    "A100 zoo": ("examples/zoo.yaml", ["workload.rate=17000/s", "workload.duration=6s"]),
}

# Their twins only simulate: they stay for as long as they are worth it.
RIVALS = ("clipper", "clockwork", "nexus", "shepherd")


def measure(repeats: int) -> list[Row]:
    rows = []
    for name, (file, overrides) in SCENARIOS.items():
        scenario = load(ROOT / file, ["policy.name=deferred", *overrides])
        pairs = [(speed(scenario, "python"), speed(scenario, "native")) for _ in range(repeats)]
        rows.append(Row(f"reference, {name}", "requests/CPU-s", [slow for slow, _ in pairs], bar=30_000))
        rows.append(Row(f"native twin over reference, {name}", "x", [fast / slow for slow, fast in pairs]))
    for rival in RIVALS:
        file, overrides = SCENARIOS["A100 zoo"]
        scenario = load(ROOT / file, [f"policy.name={rival}", *overrides])
        ratios = [speed(scenario, "native") / speed(scenario, "python") for _ in range(repeats)]
        rows.append(Row(f"native twin over reference, A100 zoo, {rival}", "x", ratios))
    return rows


def speed(scenario: Scenario, engine: Literal["python", "native"]) -> float:
    """Return requests per CPU-second, arrivals included."""
    began = time.process_time()
    record = run(scenario, engine)
    return len(record.requests.arrival) / (time.process_time() - began)


if __name__ == "__main__":
    main(measure, repeats=5)
