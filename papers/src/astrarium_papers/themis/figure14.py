"""Figure 14: the largest rho on the testbed, on half and on a quarter of it, workload 1.

Apps and their arrivals stay as they are. Rows are of all definitions; Themis bids by that of the row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from astrarium.cluster.report.summary import DEFINITIONS
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.themis._runs import COLORS, RIVALS, THEMIS, Task, bids, measured, over
from astrarium_papers.themis._runs import SETTINGS as SETTINGS
from astrarium_papers.themis._workloads import Drawing

TITLE = "The largest rho with more contention, workload 1 (Figure 14)"
SIZES = {"1x": "testbed", "2x": "half of the testbed", "4x": "quarter of the testbed"}
SHARING = 1.2  # Table 5 calls so much "better sharing incentive"; the paper prints no largest rho


def run(effort: Effort) -> Findings:
    base = Drawing(apps=effort.pick(8, 85))
    drawings = [replace(base, seed=seed) for seed in range(1, 1 + effort.pick(1, 3))]
    systems = {THEMIS: "themis", **RIVALS}
    tasks = {
        (definition, name, size): [
            Task(drawing, policy, bids(name, definition), where, _whole(where)) for drawing in drawings
        ]
        for definition in DEFINITIONS
        for name, policy in systems.items()
        for size, where in SIZES.items()
    }
    runs = measured([task for of_case in tasks.values() for task in of_case], effort)
    data: dict[str, Any] = {definition: {name: {} for name in systems} for definition in DEFINITIONS}
    for (definition, name, size), of_case in tasks.items():
        data[definition][name][size] = [runs[task].worst(definition) for task in of_case]
    return Findings(_rows(data), _claims(data), data)


def _whole(where: str) -> str:
    return "" if where == "testbed" else "testbed"


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for definition, systems in data.items():
        for name, sizes in systems.items():
            for size, worst in sizes.items():
                spread = over(worst)
                rows.append(
                    Row(f"{definition}, {size}: {name}'s largest rho", spread.median, note=f"{spread}")
                )
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    claims = []
    for definition, systems in data.items():
        worst = {
            name: max(over(values).median for values in sizes.values()) for name, sizes in systems.items()
        }
        at_most = {name: over(sizes["4x"]).median for name, sizes in systems.items()}
        order = sorted(at_most, key=lambda name: at_most[name])
        note = ", ".join(f"{name} {at_most[name]:.2f}" for name in order)
        others = [name for name in RIVALS if worst[name] <= SHARING]
        claims += [
            Claim(f"{definition}: Themis is nearest to 1 at 4x", order[0] == THEMIS, f"at 4x: {note}"),
            Claim(f"{definition}: SRSF comes closest to it", order[1] == "SRSF", f"at 4x: {note}"),
            Claim(
                f"{definition}: Themis alone keeps sharing incentive (at most {SHARING})",
                worst[THEMIS] <= SHARING and not others,
                f"largest over all sizes: Themis {worst[THEMIS]:.2f}"
                + (f"; so do {', '.join(others)}" if others else ""),
            ),
        ]
    return claims


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(data), 5.0)
    for axis, (definition, systems) in zip(axes, data.items(), strict=True):
        for name, sizes in systems.items():
            axis.plot(
                list(sizes),
                [over(values).median for values in sizes.values()],
                "o-",
                color=COLORS[name],
                label=name,
            )
        axis.set(xlabel="contention", ylabel=f"largest rho ({definition})", yscale="log")
    axes[0].legend(fontsize=8)
    save(figure, path)
