"""What the tables and figures of Fluid share: searches simulated on several seeds, with and without it.

The text prints no budgets. Those of the authors' public code are taken: 81 iterations and eta 3 for Hyperband
and both BOHBs, a population of 8 for PBT. Its ASHA has 1000 iterations; ours has 81, as the others. The tasks
are ours, after Table 3.3 (`workloads.tuning_tasks`). A seed draws the configurations, how long their
iterations take and how well they do, all alike with and without Fluid. The text averages over 5 runs.

The rule by which `dynamic-fluid` plans who joins a running group was chosen among three by its times to
target on seeds 0 to 4. Figures are told of others, which had no part in that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import mean, stdev
from typing import Any, NamedTuple

from astrarium.core.quantities import SECOND
from astrarium.testing.tuning_runs import run
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.scenario.tasks import TASKS, Task
from astrarium_papers.findings import Effort

ALONE = "fifo"
STATIC = "static-fluid"
DYNAMIC = "dynamic-fluid"
NAMES = {ALONE: "without Fluid", STATIC: "StaticFluid, as printed", DYNAMIC: "Fluid"}
COLORS = {ALONE: "#D55E00", STATIC: "#56B4E9", DYNAMIC: "#0072B2"}
SHORT = {"cifar10-alexnet": "CIFAR-10", "wlm-rnn": "WLM", "dcgan-cnn": "DCGAN"}
CIFAR = TASKS["cifar10-alexnet"]
WLM = TASKS["wlm-rnn"]
DCGAN = TASKS["dcgan-cnn"]
GPUS = 8
FIRST_SEED = 101
NO_NUMBER = "drawn, not printed"


class Spread(NamedTuple):
    """A number that was measured with several seeds."""

    mean: float
    deviation: float
    least: float
    most: float

    def __str__(self) -> str:
        least, most, deviation = map(_rounded, (self.least, self.most, self.deviation))
        return f"{least} to {most} over the seeds, deviation {deviation}"


def _rounded(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def over(values: Iterable[float]) -> Spread:
    numbers = list(values)
    deviation = stdev(numbers) if len(numbers) > 1 else 0.0
    return Spread(mean(numbers), deviation, min(numbers), max(numbers))


def seeds(effort: Effort, full: int = 5) -> range:
    return range(FIRST_SEED, FIRST_SEED + effort.pick(2, full))


def searched(
    task: Task,
    search: str,
    policy: str,
    seed: int,
    settings: Mapping[str, Any],
    gpus: int = GPUS,
    policy_settings: Mapping[str, Any] | None = None,
) -> TuningRecord:
    return run(task, search, policy, gpus, seed, settings, policy_settings)


def seconds(record: TuningRecord) -> float:
    return record.end / SECOND


def to_target(task: Task, record: TuningRecord) -> float:
    """Return seconds to the target, or to the end of the search where no candidate came so far."""
    reached = record.reached(task.target, task.goal)
    return (record.end if reached is None else reached) / SECOND


def speedups(alone: Iterable[float], with_it: Iterable[float]) -> Spread:
    """Return the speedups, seed by seed."""
    return over(before / after for before, after in zip(alone, with_it, strict=True))
