"""Workloads that nobody looked at while the policy was made."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from astrarium_papers.astrarium._settings import (
    COLORS,
    OURS,
    POLICIES,
    ZOO,
    Goodputs,
    Setting,
    best_rival,
    goodputs,
    over,
    resnet50,
    span,
)
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.symphony._settings import DELAYS

TITLE = "Goodput on workloads held back while the policy was made"
SECONDS = 12  # measured, for each of three seeds, unless there are few requests
DAY_S = SECONDS + 2  # one day, with its warm-up
NEARLY = 0.99


def day(hours: int = 22, swing: float = 0.3) -> dict[str, Any]:
    """Rates that fall and rise as over a day, pressed into one run; the goodput is that of the mean rate."""
    levels = [1 - swing * math.cos(2 * math.pi * (hour + 0.5) / hours) for hour in range(hours)]
    changes = [
        {"at": f"{DAY_S * hour / hours:.6g}s", "rate": f"{1000 * level:.6g}/s"}
        for hour, level in enumerate(levels)
        if hour
    ]
    return {"rate": 1000 * levels[0], "changes": changes}


def _zoo(
    name: str, gpus: int = 64, models: str = "zoo:A100", seconds: float = SECONDS, **workload: Any
) -> Setting:
    return Setting(name, models, gpus, seconds, workload=workload)


SETTINGS = (
    _zoo("1080Ti zoo, 64 GPUs", models="zoo:1080Ti"),
    _zoo("A100 zoo, 16 GPUs", gpus=16, seconds=60),  # few requests a model
    _zoo("A100 zoo, 128 GPUs", gpus=128),
    _zoo(f"{ZOO.name}, zipf 0.9", popularity={"zipf": 0.9}),
    _zoo(f"{ZOO.name}, gamma 0.3", arrivals="gamma", shape=0.3),
    _zoo(f"{ZOO.name}, network delays", network=DELAYS),
    _zoo(f"{ZOO.name}, a day", **day()),
    msgspec.structs.replace(
        resnet50(8, 0), name="ResNet50, 8 GPUs, network delays", workload={"network": DELAYS}
    ),
    msgspec.structs.replace(resnet50(16, 0), seconds=SECONDS),
)


def run(effort: Effort) -> Findings:
    settings = effort.pick([_small()], SETTINGS)
    data = goodputs(settings, POLICIES, effort)
    rows = [
        Row(f"{setting}: {policy}", numbers["goodput"], unit="r/s", note=span(numbers))
        for setting, by_policy in data.items()
        for policy, numbers in by_policy.items()
    ]
    return Findings(rows, _claims(data), dict(data))


def _small() -> Setting:
    return msgspec.structs.replace(resnet50(1, 0), name="ResNet50, a day", workload=_short_day())


def _short_day() -> dict[str, Any]:
    whole = day()
    return {**whole, "changes": whole["changes"][:3]}


def _claims(data: Goodputs) -> list[Claim]:
    usual = {}
    best = {}
    for setting, by_policy in data.items():
        usual[setting] = min(over(by_policy, "deferred"), over(by_policy, "eager"))
        best[setting] = over(by_policy, best_rival(by_policy))
    return [
        _never_under("deferred and eager", usual),
        _never_under("the best of deferred, eager and eager with fcfs", best),
    ]


def _never_under(rivals: str, ratios: dict[str, float]) -> Claim:
    note = "; ".join(f"{setting}: {ratio:.3f}" for setting, ratio in ratios.items())
    return Claim(f"never more than 1 % under {rivals}", min(ratios.values()) >= NEARLY, note)


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, (axis,) = axes_row(1, 8, 5)
    for place, policy in enumerate(POLICIES):
        at = [group + (place - 1.5) * 0.2 for group in range(len(data))]
        percents = [
            100 * by_policy[policy]["goodput"] / by_policy[OURS]["goodput"] for by_policy in data.values()
        ]
        axis.barh(at, percents, 0.19, label=policy, color=COLORS[policy])
    axis.axvline(100, color="gray", linewidth=1)
    axis.set_yticks(range(len(data)), list(data), fontsize=8)
    axis.invert_yaxis()
    axis.set(xlabel="goodput, % of astrarium's", xlim=(50, 108))
    figure.legend(*axis.get_legend_handles_labels(), loc="upper center", ncol=4, fontsize=8)
    save(figure, path, top=0.95)
