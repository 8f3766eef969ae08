"""The A100 zoo simulated end to end by the command line, report included."""

from __future__ import annotations

import json
import tempfile

from _measure import Row, astrarium, main

ZOO = ["examples/zoo.yaml", "-o", "workload.rate=17000/s", "-o", "workload.duration=60s"]


def measure(repeats: int) -> list[Row]:
    costs = [simulate() for _ in range(repeats)]
    what = "simulate: 37 models, 64 GPUs, 17 000 requests/s, 60 s, report included"
    return [
        Row(what, "CPU-s", [cpu for cpu, _ in costs], bar=5.0, less_is_better=True),
        Row("of which simulating", "CPU-s", [inside for _, inside in costs], less_is_better=True),
    ]


def simulate() -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        cost = astrarium("simulate", *ZOO, "--json", "--out", f"{folder}/run")
    return cost.cpu_s, json.loads(cost.output)["cpu_s"]


if __name__ == "__main__":
    main(measure, repeats=5)
