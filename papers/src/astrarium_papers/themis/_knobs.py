"""One knob of Themis turned, on the simulator's 256 GPUs: Figures 17 and 19."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from astrarium.cluster.report.summary import DEFINITIONS
from astrarium_papers.findings import Effort
from astrarium_papers.themis._runs import Parameters, Task, measured
from astrarium_papers.themis._workloads import Drawing


def turned(
    settings: Iterable[dict[str, Any]], effort: Effort, workload: int = 2, seeds: int = 3
) -> list[dict[str, list[float]]]:
    """For each setting, numbers of each seed: the largest rho by definition, and GPU-hours. Themis bids by
    the definition that it is measured by; the GPU-hours are of `share`."""
    drawn = Drawing(workload=workload, apps=effort.pick(10, 85))
    drawings = [replace(drawn, seed=seed) for seed in range(1, 1 + effort.pick(1, seeds))]
    where = effort.pick("testbed", "simulator")  # which few apps would not fill
    asked = [
        {
            name: [Task(each, "themis", _with(name, setting), where) for each in drawings]
            for name in DEFINITIONS
        }
        for setting in settings
    ]
    runs = measured([task for by in asked for each in by.values() for task in each], effort)
    found = []
    for by in asked:
        numbers: dict[str, list[float]] = {"hours": [runs[task].gpu_hours for task in by["share"]]}
        found.append(numbers | {name: [runs[task].worst(name) for task in each] for name, each in by.items()})
    return found


def _with(definition: str, setting: dict[str, Any]) -> Parameters:
    return ("definition", definition), *setting.items()
