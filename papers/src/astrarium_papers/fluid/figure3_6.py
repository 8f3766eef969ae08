"""Figures 3.2 and 3.6: who uses which GPU when, for four algorithms on CIFAR-10, to completion.

The paper draws what the hardware reports, of which a trial alone takes some 60 %. Here a GPU is used as far
as it is given to trials.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium.core.quantities import SECOND
from astrarium.tuning.record import TuningRecord
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.fluid._runs import ALONE, CIFAR, DYNAMIC, FIRST_SEED, NAMES, NO_NUMBER, searched
from astrarium_papers.fluid.figure3_7 import SETTINGS

TITLE = "Utilization of 8 GPUs over time, CIFAR-10 (Figures 3.2 and 3.6)"
SEARCHES = ("asha", "hyperband", "bohb", "sync-bohb")
WINDOW = 30 * SECOND


def run(effort: Effort) -> Findings:
    data: dict[str, Any] = {}
    for search in SEARCHES:
        settings = {**SETTINGS[search], **effort.pick({"iterations": 27}, {})}
        for policy in (ALONE, DYNAMIC):
            record = searched(CIFAR, search, policy, FIRST_SEED, settings)
            data.setdefault(search, {})[policy] = _facts(record)
    return Findings(_rows(data), _claims(data), data)


def _facts(record: TuningRecord) -> dict[str, Any]:
    windows = record.windows(max(1, round(record.end / WINDOW)))
    held = list(windows.values())
    empty = sum(part < 0.01 for row in held for part in row) / sum(map(len, held))
    return {
        "used": 100 * record.utilization(),
        "empty": 100 * empty,
        "end": record.end / SECOND,
        "windows": held,
    }


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for search, policies in data.items():
        for policy, numbers in policies.items():
            note = f"{numbers['empty']:.0f} % of the windows of 30 s are empty; "
            note += f"{numbers['end']:.0f} s; {NO_NUMBER}"
            what = f"{search}, {NAMES[policy]}: GPUs that trials hold"
            rows.append(Row(what, numbers["used"], None, "%", note=note))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    empty = {
        search: [by_policy[policy]["empty"] for policy in (ALONE, DYNAMIC)]
        for search, by_policy in data.items()
    }
    note = ", ".join(f"{search} {before:.0f} to {after:.0f} %" for search, (before, after) in empty.items())
    synchronous = min(empty["hyperband"][0], empty["sync-bohb"][0])
    return [
        Claim(
            "without Fluid, GPUs of synchronous algorithms are often empty",
            synchronous > 25,
            f"empty windows without and with: {note}",
        ),
        Claim(
            "asynchronous ones leave fewer empty",
            max(empty["asha"][0], empty["bohb"][0]) < synchronous,
            f"empty windows without and with: {note}",
        ),
        Claim(
            "with Fluid, fewer are empty under every algorithm",
            all(after < before for before, after in empty.values()),
            f"empty windows without and with: {note}",
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_column, save

    figure, axes = axes_column(2 * len(data), height=1.4)
    pairs = [(search, policy) for search in data for policy in data[search]]
    for axis, (search, policy) in zip(axes, pairs, strict=True):
        numbers = data[search][policy]
        extent = (0, numbers["end"], len(numbers["windows"]) - 0.5, -0.5)
        axis.imshow(numbers["windows"], aspect="auto", vmin=0, vmax=1, extent=extent, cmap="viridis")
        axis.set_title(f"{search}, {NAMES[policy]}", fontsize=8)
        axis.set_ylabel("GPU")
    axes[-1].set_xlabel("time (s)")
    save(figure, path)
