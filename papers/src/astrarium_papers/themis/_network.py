"""Figures 15 and 16: more and more apps are network-intensive, on the simulator's 256 GPUs.

The paper says nothing of these six workloads but the share. Ours are workload 2, which has jobs wide enough
to be spread. Network-intensive: S of at least 1.15 (LangModel, VGG, AlexNet, DeepSpeech); the others have 1.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from astrarium.cluster.report.summary import DEFINITIONS
from astrarium_papers.findings import Effort
from astrarium_papers.themis._gpu_time import BIDS
from astrarium_papers.themis._runs import COLORS, RIVALS, THEMIS, Task, measured, over
from astrarium_papers.themis._workloads import Drawing

SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def swept(effort: Effort) -> dict[str, Any]:
    """By what is measured, system and share (in per cent): the number of each seed."""
    base = Drawing(workload=2, apps=effort.pick(8, 85))
    drawings = [replace(base, seed=seed) for seed in range(1, 1 + effort.pick(1, 2))]
    shares, where = effort.pick(((0.0, 1.0), "testbed"), (SHARES, "simulator"))  # few apps do not fill it
    tasks = {
        (name, share): [
            Task(replace(drawing, network_share=share), policy, BIDS if name == THEMIS else (), where)
            for drawing in drawings
        ]
        for name, policy in {THEMIS: "themis", **RIVALS}.items()
        for share in shares
    }
    runs = measured([task for each in tasks.values() for task in each], effort)
    data: dict[str, Any] = {what: {} for what in (*DEFINITIONS, "hours")}
    for (name, share), each in tasks.items():
        for what in data:
            found = [runs[task].gpu_hours if what == "hours" else runs[task].worst(what) for task in each]
            data[what].setdefault(name, {})[f"{100 * share:g}"] = found
    return data


def relative(systems: dict[str, Any], name: str, share: str) -> list[float]:
    """Over Themis's, seed by seed."""
    return [theirs / ours for theirs, ours in zip(systems[name][share], systems[THEMIS][share], strict=True)]


def draw_curves(axis: Any, systems: dict[str, Any], what: str) -> None:
    for name, shares in systems.items():
        places = [float(share) for share in shares]
        axis.plot(
            places, [over(each).median for each in shares.values()], "o-", color=COLORS[name], label=name
        )
    axis.set(xlabel="network-intensive apps (%)", ylabel=what)
