"""Figures 11 and 12: GPU time that it takes to run a whole workload, on the testbed.

GPU time is what is leased, with starts in it. Themis here bids by `share`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from astrarium_papers.findings import Effort
from astrarium_papers.themis._runs import COLORS, RIVALS, THEMIS, Over, Task, measured, over
from astrarium_papers.themis._workloads import Drawing

BIDS = (("definition", "share"),)  # as in Figures 9 and 10, whose runs these are


def hours(workload: int, effort: Effort) -> dict[str, Any]:
    """Return, by system, GPU-hours of each seed."""
    base = Drawing(workload=workload, apps=effort.pick(10, 85))
    drawings = [replace(base, seed=seed) for seed in range(1, 1 + effort.pick(1, 3))]
    tasks = {
        name: [Task(drawing, policy, BIDS if name == THEMIS else ()) for drawing in drawings]
        for name, policy in {THEMIS: "themis", **RIVALS}.items()
    }
    runs = measured([task for of_system in tasks.values() for task in of_system], effort)
    by_name = {name: [runs[task].gpu_hours for task in of_system] for name, of_system in tasks.items()}
    return {"hours": by_name, "work": base.gpu_hours}


def more_than_themis(data: dict[str, Any], name: str) -> Over:
    """Return how much more GPU time a rival takes than Themis, in per cent, seed by seed."""
    pairs = zip(data["hours"][name], data["hours"][THEMIS], strict=True)
    return over(100 * (theirs / ours - 1) for theirs, ours in pairs)


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, (axis,) = axes_row(1, 6.5)
    spreads = {name: over(hours) for name, hours in data["hours"].items()}
    heights = [spread.median for spread in spreads.values()]
    ends = [
        [spread.median - spread.least for spread in spreads.values()],
        [spread.most - spread.median for spread in spreads.values()],
    ]
    axis.bar(list(spreads), heights, yerr=ends, capsize=3, color=[COLORS[name] for name in spreads])
    axis.axhline(data["work"], color="black", linewidth=1, linestyle=":")
    axis.set_ylabel("GPU time (hours); dotted: the work")
    save(figure, path)
