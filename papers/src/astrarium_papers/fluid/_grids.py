"""Grid search with parts of Fluid switched off: what its smaller figures measure.

To a policy, a grid is one group of trials of the same length. How many there are is what matters, so the
configurations are drawn at random here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrarium.tuning.runtime import Runtime
from astrarium.tuning.scenario.tasks import Task
from astrarium_papers.fluid._runs import ALONE, DYNAMIC, GPUS, Spread, searched, seconds, speedups

ITERATIONS = 27
PACKING_ONLY = {"spread": 1}
SCALING_ONLY = {"packed": 1}


def grid_times(
    task: Task,
    policy: str,
    trials: int,
    seeds: range,
    gpus: int = GPUS,
    parts: Mapping[str, Any] | None = None,
) -> list[float]:
    settings = {"candidates": trials, "iterations": ITERATIONS}
    return [seconds(searched(task, "random", policy, seed, settings, gpus, parts)) for seed in seeds]


def grid_speedup(
    task: Task, trials: int, seeds: range, gpus: int = GPUS, parts: Mapping[str, Any] | None = None
) -> Spread:
    """Return the speedup of the makespan by Fluid with only these *parts*."""
    alone = grid_times(task, ALONE, trials, seeds, gpus)
    return speedups(alone, grid_times(task, DYNAMIC, trials, seeds, gpus, parts))


def usual(task: Task) -> Runtime:
    return Runtime(task.iteration, task.packing, task.scaling)
