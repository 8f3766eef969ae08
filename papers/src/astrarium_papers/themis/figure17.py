"""Figure 17: apps err by up to 5, 10 and 20 % in how much is left and in what being apart costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium.cluster.report.summary import DEFINITIONS
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.themis._runs import SETTINGS as SETTINGS
from astrarium_papers.themis._runs import Over, over
from astrarium_papers.themis._sweeps import over_settings

TITLE = "The largest rho where apps err in their bids, 256 GPUs (Figure 17)"
ERRORS = (0.0, 0.05, 0.1, 0.2)
PAPER = 10.76  # per cent, at 20 %
CLOSE = 10.0  # points of per cent; one seed differs from another by more
CHANCE = "which allocations come out is chaotic: other leftovers by chance change it as much"


def run(effort: Effort) -> Findings:
    errors = effort.pick((0.0, 0.2), ERRORS)
    sweeps = over_settings([{"error": error} for error in errors], effort, seeds=5)
    data: dict[str, Any] = {
        definition: {
            f"{100 * error:g}": sweep[definition] for error, sweep in zip(errors, sweeps, strict=True)
        }
        for definition in DEFINITIONS
    }
    return Findings(_rows(data), _claims(data), data)


def change(numbers: dict[str, list[float]], error: str) -> Over:
    """Return the change of the largest rho, in per cent, seed by seed."""
    return over(100 * (wrong / right - 1) for wrong, right in zip(numbers[error], numbers["0"], strict=True))


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for definition, numbers in data.items():
        for error, worst in numbers.items():
            spread = over(worst)
            rows.append(
                Row(f"{definition}, errors up to {error} %: largest rho", spread.median, note=f"{spread}")
            )
        spread = change(numbers, "20")
        note = f"{spread}; {CHANCE}"
        rows.append(Row(f"{definition}: change at 20 %", spread.median, PAPER, "%", CLOSE / PAPER, note))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    changes = {name: change(numbers, "20").median for name, numbers in data.items()}
    return [
        Claim(
            f"{name}: errors of 20 % do not matter much (at most {2 * PAPER:.0f} %)",
            abs(change) <= 2 * PAPER,
            f"{change:+.1f} %",
        )
        for name, change in changes.items()
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(data), 4.0)
    for axis, (definition, numbers) in zip(axes, data.items(), strict=True):
        spreads = [over(values) for values in numbers.values()]
        ends = [
            [spread.median - spread.least for spread in spreads],
            [spread.most - spread.median for spread in spreads],
        ]
        axis.bar(
            [f"{error} %" for error in numbers], [spread.median for spread in spreads], yerr=ends, capsize=3
        )
        axis.set(xlabel="error in bid valuations", ylabel=f"largest rho ({definition})")
    save(figure, path)
