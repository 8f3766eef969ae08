"""Requests of every length: ours over each rival that batches like lengths, on 440 cases.

Rivals have the switch `batches: alike`, with which each bucket of lengths is a model of its own to them.
Whether all eleven buckets suit a rival better, or four wider ones, depends on the case: it has the better.
TurboTransformers' cut of the sorted queue knows lengths by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from astrarium.serving.goodput import search
from astrarium_papers.astrarium._length_cases import LengthCase, cases
from astrarium_papers.astrarium._settings import ASTRARIUM, OURS
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "Requests of every length: over rivals that batch like lengths"
SWITCHED = ("eager", "deferred", "timeout", "clipper", "nexus", "clockwork", "shepherd", "orloj")
BUCKETS: tuple[dict[str, Any], ...] = ({}, {"buckets": 4})
RIVALS: dict[str, list[dict[str, Any]]] = {
    **{name: [{"name": name, "batches": "alike", **buckets} for buckets in BUCKETS] for name in SWITCHED},
    "turbo": [{"name": "turbo"}],
}
SECONDS = 2.0
TOLERANCE = 0.005
AHEAD = 0.95  # the share of cases that is asked for
SETTINGS = {"every": "measure every so many-th case only (1)", "rivals": "with these rivals only, by commas"}


def run(effort: Effort) -> Findings:
    every = int(effort.settings.get("every", effort.pick(220, 1)))
    names = effort.settings.get("rivals", ",".join(RIVALS)).split(",")
    policies = {OURS: [ASTRARIUM], **{name: RIVALS[name] for name in names}}
    chosen = cases()[::every]
    measured = effort.map(lambda case: goodputs(case, policies, effort), chosen)
    data: list[dict[str, Any]] = [
        {"name": case.name, "goodput": found} for case, found in zip(chosen, measured, strict=True)
    ]
    ratios = {rival: [over(case["goodput"], rival) for case in data] for rival in names}
    rows = [row for rival in names for row in _rows(rival, ratios[rival], data)]
    return Findings(rows, [_claim(rival, ratios[rival]) for rival in names], {"cases": data})


def goodputs(
    case: LengthCase, policies: Mapping[str, Sequence[dict[str, Any]]], effort: Effort
) -> dict[str, float]:
    """Return the goodput of each policy, of one seed and with the better of its settings."""
    effort.say(case.name)
    return {
        name: max(goodput(case, policy, effort) for policy in settings) for name, settings in policies.items()
    }


def goodput(case: LengthCase, policy: dict[str, Any], effort: Effort) -> float:
    seconds, tolerance = effort.pick((0.3, 0.1), (SECONDS, TOLERANCE))
    return search(case.scenario(policy, seconds), seeds=1, tolerance=tolerance).goodput


def over(found: Mapping[str, float], rival: str) -> float:
    """Return our goodput over the rival's; one that serves nothing counts as one request/s."""
    return found[OURS] / max(found[rival], 1.0)


def _rows(rival: str, ratios: Sequence[float], data: Sequence[Mapping[str, Any]]) -> list[Row]:
    least = min(range(len(ratios)), key=lambda place: ratios[place])
    ahead = sum(ratio >= 1 for ratio in ratios)
    note = f"one seed, {len(ratios)} cases, median {median(ratios):.2f}"
    return [
        Row(f"{rival}: mean", mean(ratios), note=note),
        Row(
            f"{rival}: cases ahead",
            ahead / len(ratios),
            note=f"least {ratios[least]:.3f}: {data[least]['name']}",
        ),
    ]


def _claim(rival: str, ratios: Sequence[float]) -> Claim:
    share = sum(ratio >= 1 for ratio in ratios) / len(ratios)
    level = sum(ratio == 1 for ratio in ratios) / len(ratios)
    words = f"ahead of {rival} on the mean, and in {AHEAD:.0%} of cases"
    note = f"mean {mean(ratios):.2f}, ahead in {share:.1%}, of which level {level:.1%}"
    return Claim(words, mean(ratios) > 1 and share >= AHEAD, note)


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, (axis,) = axes_row(1, 7)
    found = [case["goodput"] for case in data["cases"]]
    for rival in (name for name in found[0] if name != OURS):
        ratios = sorted(over(one, rival) for one in found)
        share = [100 * (place + 1) / len(ratios) for place in range(len(ratios))]
        axis.plot(share, ratios, linewidth=1, label=rival)
    axis.axhline(1, color="gray", linewidth=1, linestyle="--")
    axis.set(xlabel="% of cases, sorted", ylabel="goodput of astrarium over that of", yscale="log")
    axis.legend(fontsize=8)
    save(figure, path)
