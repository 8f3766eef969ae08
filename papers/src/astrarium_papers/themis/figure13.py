"""Figure 13: placement scores on the testbed, workload 2. A score is 1/S of an allocation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.themis._runs import COLORS, RIVALS, THEMIS, Measured, Task, measured, over
from astrarium_papers.themis._runs import SETTINGS as SETTINGS
from astrarium_papers.themis._testbed.gpu_time import BIDS
from astrarium_papers.themis._workloads import Drawing

TITLE = "Placement scores of workload 2 on 64 GPUs (Figure 13)"
CLOSEST = ("Gandiva", "Optimus")


def run(effort: Effort) -> Findings:
    base = Drawing(workload=2, apps=effort.pick(10, 85))
    drawings = [replace(base, seed=seed) for seed in range(1, 1 + effort.pick(1, 3))]
    tasks = {
        name: [Task(drawing, policy, BIDS if name == THEMIS else ()) for drawing in drawings]
        for name, policy in {THEMIS: "themis", **RIVALS}.items()
    }
    runs = measured([task for of_system in tasks.values() for task in of_system], effort)
    data = {
        name: {
            "mean": [_mean(runs[task]) for task in of_system],
            "whole": [_whole(runs[task]) for task in of_system],
            "scores": {f"{score:g}": list(ratios) for score, ratios in runs[of_system[0]].scores.items()},
        }
        for name, of_system in tasks.items()
    }
    return Findings(_rows(data), _claims(data), data)


def _mean(run: Measured) -> float:
    """Return the mean by GPU time: many allocations of one GPU say nothing of placement."""
    return sum(score * hours for score, (_, hours) in run.scores.items()) / sum(
        hours for _, hours in run.scores.values()
    )


def _whole(run: Measured) -> float:
    """Return the share of allocations with the best score."""
    return run.scores.get(1.0, (0, 0.0))[0] / sum(count for count, _ in run.scores.values())


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for name, numbers in data.items():
        mean = over(numbers["mean"])
        whole = over(100 * share for share in numbers["whole"])
        rows.append(Row(f"{name}: mean score by GPU time", mean.median, note=f"{mean}"))
        rows.append(Row(f"{name}: allocations with a score of 1", whole.median, unit="%", note=f"{whole}"))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    medians = {name: over(numbers["mean"]).median for name, numbers in data.items()}
    order = sorted(medians, key=lambda name: -medians[name])
    note = ", ".join(f"{name} {medians[name]:.3f}" for name in order)
    return [
        Claim("Themis's scores are the best", order[0] == THEMIS, note),
        Claim("Gandiva and Optimus come closest to it", set(order[:3]) == {THEMIS, *CLOSEST}, note),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, (axis,) = axes_row(1, 6.0)
    for name, numbers in data.items():
        scores = sorted(float(score) for score in numbers["scores"])
        counts = [numbers["scores"][f"{score:g}"][0] for score in scores]
        shares = [sum(counts[: place + 1]) / sum(counts) for place in range(len(counts))]
        axis.step([min(scores), *scores], [0, *shares], where="post", color=COLORS[name], label=name)
    axis.set(xlabel="placement score (1/S)", ylabel="fraction of allocations")
    axis.legend(fontsize=8)
    save(figure, path)
