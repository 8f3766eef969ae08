"""Sweeps on the simulator's 256 GPUs vary the share of network-intensive apps, or a setting of Themis.

Figures 15 and 16 sweep the share. The paper says nothing else of their six workloads; ours are workload 2,
which has jobs wide enough to be spread. Network-intensive: S of at least 1.15 (LangModel, VGG, AlexNet,
DeepSpeech); the others have 1. Figures 17 and 19 sweep settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from astrarium.cluster.report.summary import DEFINITIONS
from astrarium_papers.findings import Effort
from astrarium_papers.themis._runs import COLORS, RIVALS, THEMIS, Parameters, Task, bids, measured, over
from astrarium_papers.themis._workloads import Drawing

SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def over_shares(effort: Effort) -> dict[str, Any]:
    """Return the numbers of each seed, by what is measured, system and share in per cent. The GPU-hours of
    Themis are of `share`."""
    base = Drawing(workload=2, apps=effort.pick(8, 85))
    drawings = [replace(base, seed=seed) for seed in range(1, 1 + effort.pick(1, 2))]
    shares, where = effort.pick(((0.0, 1.0), "testbed"), (SHARES, "simulator"))  # few apps do not fill it
    tasks = {
        (definition, name, share): [
            Task(replace(drawing, network_share=share), policy, bids(name, definition), where)
            for drawing in drawings
        ]
        for definition in DEFINITIONS
        for name, policy in {THEMIS: "themis", **RIVALS}.items()
        for share in shares
    }
    runs = measured([task for of_setting in tasks.values() for task in of_setting], effort)
    data: dict[str, Any] = {what: {} for what in (*DEFINITIONS, "hours")}
    for (definition, name, share), of_setting in tasks.items():
        percent = f"{100 * share:g}"
        data[definition].setdefault(name, {})[percent] = [runs[task].worst(definition) for task in of_setting]
        if definition == "share":
            data["hours"].setdefault(name, {})[percent] = [runs[task].gpu_hours for task in of_setting]
    return data


def relative(systems: dict[str, Any], name: str, share: str) -> list[float]:
    """Return a system's numbers over those of Themis, seed by seed."""
    return [theirs / ours for theirs, ours in zip(systems[name][share], systems[THEMIS][share], strict=True)]


def draw_curves(axis: Any, systems: dict[str, Any], what: str) -> None:
    for name, shares in systems.items():
        places = [float(share) for share in shares]
        axis.plot(
            places, [over(values).median for values in shares.values()], "o-", color=COLORS[name], label=name
        )
    axis.set(xlabel="network-intensive apps (%)", ylabel=what)


def over_settings(
    settings: Iterable[dict[str, Any]], effort: Effort, workload: int = 2, seeds: int = 3
) -> list[dict[str, list[float]]]:
    """Return, for each setting of Themis, the largest rho by definition and GPU-hours of each seed. Themis
    bids by the definition that it is measured by; the GPU-hours are of `share`."""
    drawn = Drawing(workload=workload, apps=effort.pick(10, 85))
    drawings = [replace(drawn, seed=seed) for seed in range(1, 1 + effort.pick(1, seeds))]
    where = effort.pick("testbed", "simulator")  # which few apps would not fill
    tasks = [
        {
            name: [Task(drawing, "themis", _with(name, setting), where) for drawing in drawings]
            for name in DEFINITIONS
        }
        for setting in settings
    ]
    runs = measured(
        [task for by_definition in tasks for seeds_tasks in by_definition.values() for task in seeds_tasks],
        effort,
    )
    sweeps = []
    for by_definition in tasks:
        numbers: dict[str, list[float]] = {"hours": [runs[task].gpu_hours for task in by_definition["share"]]}
        sweeps.append(
            numbers
            | {
                name: [runs[task].worst(name) for task in seeds_tasks]
                for name, seeds_tasks in by_definition.items()
            }
        )
    return sweeps


def _with(definition: str, setting: dict[str, Any]) -> Parameters:
    return ("definition", definition), *setting.items()
