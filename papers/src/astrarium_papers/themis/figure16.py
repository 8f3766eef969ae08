"""Figure 16: GPU time by the share of network-intensive apps, on 256 GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.themis._runs import RIVALS, THEMIS, over
from astrarium_papers.themis._runs import SETTINGS as SETTINGS
from astrarium_papers.themis._sweeps import draw_curves, over_shares, relative

TITLE = "GPU time by the share of network-intensive apps, 256 GPUs (Figure 16)"
GANDIVA = 8.1  # per cent that Themis is below it where all are
CLOSE = 5.0  # points of per cent
SAME = 5.0  # per cent: "equally efficiently"


def run(effort: Effort) -> Findings:
    data = over_shares(effort)
    return Findings(_rows(data["hours"]), _claims(data["hours"]), data)


def _below(hours: dict[str, Any], name: str, share: str) -> list[float]:
    """Return how far Themis is below a rival, in per cent."""
    return [100 * (1 - 1 / times) for times in relative(hours, name, share)]


def _rows(hours: dict[str, Any]) -> list[Row]:
    rows = []
    for name in RIVALS:
        spread = over(_below(hours, name, "100"))
        paper = GANDIVA if name == "Gandiva" else None
        none = over(_below(hours, name, "0")).median
        note = f"{spread}; {none:.1f} % at 0 %, where places cost nothing and only starts do"
        rows.append(
            Row(f"100 %: Themis is below {name} by", spread.median, paper, "%", CLOSE / GANDIVA, note)
        )
    for share, values in hours[THEMIS].items():
        own = over(values)
        rows.append(Row(f"{share} %: GPU time under Themis", own.median, unit="h", note=f"{own}"))
    return rows


def _claims(hours: dict[str, Any]) -> list[Claim]:
    none = {name: over(_below(hours, name, "0")).median for name in RIVALS}
    far = max(none, key=lambda name: abs(none[name]))
    whole = {name: over(_below(hours, name, "100")).median for name in RIVALS}
    note = ", ".join(f"{name} {below:+.1f} %" for name, below in whole.items())
    what = f"with none, all take as much GPU time (within {SAME:g} % of Themis)"
    return [
        Claim(what, abs(none[far]) <= SAME, f"farthest: {far}, {none[far]:+.1f} %"),
        Claim("with all, Themis takes the least", min(whole.values()) >= 0, f"Themis is below: {note}"),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, (axis,) = axes_row(1, 5.5)
    draw_curves(axis, data["hours"], "GPU time (hours)")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8)
    save(figure, path)
