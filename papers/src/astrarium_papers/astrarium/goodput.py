"""Goodput at zero delay, worst model at most 1 % bad, on the settings that have a bar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium_papers.astrarium._settings import (
    COLORS,
    OURS,
    POLICIES,
    RIVALS,
    Goodputs,
    Setting,
    best_rival,
    built_for,
    goodputs,
    over,
    span,
)
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "Goodput at zero delay beside deferred and eager batching"
# What a choice of drops that knows the future reaches, by an earlier simulator of ours that is not here.
CLAIRVOYANT = {"ResNet50, 8 GPUs": 5606, "InceptionResNetV2, 8 GPUs": 1005}


def run(effort: Effort) -> Findings:
    settings = built_for(effort)
    data = goodputs(settings, POLICIES, effort)
    return Findings(_rows(data), [_claim(setting, data) for setting in settings], dict(data))


def _rows(data: Goodputs) -> list[Row]:
    return [
        Row(f"{setting}: {policy}", numbers["goodput"], unit="r/s", note=_note(setting, policy, numbers))
        for setting, by_policy in data.items()
        for policy, numbers in by_policy.items()
    ]


def _note(setting: str, policy: str, numbers: dict[str, Any]) -> str:
    if policy != OURS or setting not in CLAIRVOYANT:
        return span(numbers)
    share = numbers["goodput"] / CLAIRVOYANT[setting]
    return f"{span(numbers)}; {share:.1%} of what drops chosen with the future known reach"


def _claim(setting: Setting, data: Goodputs) -> Claim:
    by_policy = data[setting.name]
    ratios = ", ".join(f"{over(by_policy, rival):.3f} x {rival}" for rival in RIVALS)
    return Claim(
        f"{setting.name}: at least {setting.bar:,.0f} requests/s",
        by_policy[OURS]["goodput"] >= setting.bar,
        f"{by_policy[OURS]['goodput']:,.0f}; {ratios}",
    )


def draw(data: dict[str, Any], path: Path) -> None:
    """Draw bars as shares of the best of the others."""
    from astrarium_papers.drawing import axes_row, save

    figure, (axis,) = axes_row(1, 9, 4)
    for place, policy in enumerate(POLICIES):
        at = [group + (place - 1.5) * 0.2 for group in range(len(data))]
        percents = [
            100 * by_policy[policy]["goodput"] / by_policy[best_rival(by_policy)]["goodput"]
            for by_policy in data.values()
        ]
        bars = axis.bar(at, percents, 0.19, label=policy, color=COLORS[policy])
        axis.bar_label(
            bars,
            [f"{by_policy[policy]['goodput']:,.0f}" for by_policy in data.values()],
            fontsize=6,
            padding=1,
        )
    axis.axhline(100, color="gray", linewidth=1, linestyle="--")
    axis.set_xticks(range(len(data)), list(data), fontsize=7)
    axis.set(ylabel="goodput, % of the best of the others", ylim=(50, 115))
    axis.legend(fontsize=8, ncol=4, loc="upper center")
    save(figure, path)
