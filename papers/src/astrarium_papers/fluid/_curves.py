"""How good the best is when, on 4, 8 and 16 GPUs, with and without Fluid: Figures 3.9 and 3.10."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from astrarium.core.quantities import SECOND
from astrarium.tuning.record import TuningRecord
from astrarium_papers.findings import Effort, Row
from astrarium_papers.fluid._runs import (
    ALONE,
    CIFAR,
    COLORS,
    DYNAMIC,
    NAMES,
    NO_NUMBER,
    over,
    searched,
    seeds,
    to_target,
)

GPUS = (4, 8, 16)
POINTS = 60
Settings = Callable[[int, str], Mapping[str, Any]]  # by GPUs and policy


def measured(search: str, settings: Settings, effort: Effort) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for policy in (ALONE, DYNAMIC):
        for gpus in GPUS:
            effort.say(f"{gpus} GPUs, {NAMES[policy]}")
            chosen = {**settings(gpus, policy), **effort.pick({"iterations": 27}, {})}
            records = [searched(CIFAR, search, policy, seed, chosen, gpus) for seed in seeds(effort)]
            times = [to_target(CIFAR, record) for record in records]
            data.setdefault(policy, {})[f"{gpus}"] = {
                "times": times,
                "curve": _curve(records, 2 * max(times)),
            }
    return data


def _curve(records: list[TuningRecord], until: float) -> list[tuple[float, float]]:
    """Return the mean of the best values so far at each instant."""
    instants = [until * point / POINTS for point in range(1, POINTS + 1)]
    return [(at, over(_best(record, at) for record in records).mean) for at in instants]


def _best(record: TuningRecord, at: float) -> float:
    """Return the best value so far; what a guess would have, before any trial has ended."""
    known = [point.value for point in record.best if point.at <= at * SECOND]
    return known[-1] if known else CIFAR.start


def mean_times(data: dict[str, Any], policy: str) -> dict[int, float]:
    return {int(gpus): over(numbers["times"]).mean for gpus, numbers in data[policy].items()}


def rows(data: dict[str, Any]) -> list[Row]:
    table = []
    for policy, by_gpus in data.items():
        for gpus, numbers in by_gpus.items():
            time = over(numbers["times"])
            what = f"{gpus} GPUs, {NAMES[policy]}: time to 90 %"
            table.append(Row(what, time.mean, None, "s", note=f"{time}; {NO_NUMBER}"))
    return table


def gpus_and_seconds(times: Mapping[int, float]) -> str:
    return ", ".join(f"{gpus} GPUs {time:.0f} s" for gpus, time in times.items())


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(GPUS), 4.0)
    for axis, gpus in zip(axes, GPUS, strict=True):
        for policy, by_gpus in data.items():
            curve = by_gpus[f"{gpus}"]["curve"]
            axis.plot(*zip(*curve, strict=True), color=COLORS[policy], label=NAMES[policy])
        axis.axhline(CIFAR.target, color="black", linestyle=":", linewidth=1)
        axis.set(xlabel="time (s)", ylabel="best accuracy (%)", title=f"{gpus} GPUs", ylim=(40, 100))
    axes[0].legend(fontsize=8)
    save(figure, path)
