"""Figure 15: the largest rho by the share of network-intensive apps, on 256 GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium.cluster.report.summary import DEFINITIONS
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.themis._runs import RIVALS, THEMIS, over
from astrarium_papers.themis._runs import SETTINGS as SETTINGS
from astrarium_papers.themis._sweeps import draw_curves, over_shares, relative

TITLE = "The largest rho by the share of network-intensive apps, 256 GPUs (Figure 15)"
PAPER = (1.24, 1.77)  # how much better Themis is where all are
MIXED = ("40", "60")
CLOSE_TOO = "; rivals look for GPUs that are close together here, too"


def run(effort: Effort) -> Findings:
    data = over_shares(effort)
    return Findings(_rows(data), _claims(data), data)


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for definition in DEFINITIONS:
        systems = data[definition]
        for name in RIVALS:
            spread = over(relative(systems, name, "100"))
            worst = over(systems[name]["100"])
            what = f"{definition}, 100 % network-intensive: {name}'s largest rho over Themis's"
            note = f"{spread}; its own {worst.median:.2f}{'' if spread.median >= PAPER[0] else CLOSE_TOO}"
            rows.append(Row(what, spread.median, PAPER, "x", 0.1, note))
        for share, values in systems[THEMIS].items():
            spread = over(values)
            rows.append(
                Row(f"{definition}, {share} %: Themis's largest rho", spread.median, note=f"{spread}")
            )
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    return [claim for definition in DEFINITIONS for claim in _of(data[definition], definition)]


def _of(systems: dict[str, Any], definition: str) -> list[Claim]:
    medians = {
        name: {share: over(values).median for share, values in shares.items()}
        for name, shares in systems.items()
    }
    shares = list(medians[THEMIS])
    beaten = {share: min(RIVALS, key=lambda name, share=share: medians[name][share]) for share in shares}  # type: ignore[misc]
    behind = [
        f"{share} %: {rival} {medians[rival][share]:.2f} to {medians[THEMIS][share]:.2f}"
        for share, rival in beaten.items()
        if medians[rival][share] < medians[THEMIS][share]
    ]
    note = ", ".join(f"{share} % {medians[THEMIS][share]:.2f}" for share in shares)
    claims = [
        Claim(
            f"{definition}: Themis's largest rho is the smallest at every share",
            not behind,
            "; ".join(behind) or note,
        )
    ]
    if set(MIXED) <= set(shares):
        worst = {name: max(shares, key=lambda share, name=name: medians[name][share]) for name in medians}  # type: ignore[misc]
        mixed = [name for name, share in worst.items() if share in MIXED]
        note = ", ".join(f"{name} at {share} %" for name, share in worst.items())
        what = f"{definition}: rho is worst where apps are mixed, at 40 or 60 %, under most"
        claims.append(Claim(what, 2 * len(mixed) > len(worst), f"worst: {note}"))
    return claims


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(DEFINITIONS), 5.0)
    for axis, definition in zip(axes, DEFINITIONS, strict=True):
        draw_curves(axis, data[definition], f"largest rho ({definition})")
        axis.set_yscale("log")
    axes[0].legend(fontsize=8)
    save(figure, path)
