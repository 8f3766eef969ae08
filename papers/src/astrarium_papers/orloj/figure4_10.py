"""Figure 4.10 and the first rows of Table C.1: two modes, narrow or wide."""

from __future__ import annotations

from typing import Any

from astrarium_papers.findings import Claim, Effort, Findings
from astrarium_papers.orloj._claims import half, overall
from astrarium_papers.orloj._finish import draw, measure, rows
from astrarium_papers.orloj._settings import RIVALS
from astrarium_papers.orloj._workloads import two_modes

__all__ = ["TITLE", "draw", "run"]

TITLE = "Finish rates by the width of two modes (Figure 4.10, Table C.1)"
NARROW = "std-0.5"
MIDDLE = "std-1"
WIDE = "std-2"
STABLE = 0.05


def run(effort: Effort) -> Findings:
    names = {NARROW: "sigma 0.5", MIDDLE: "sigma 1", WIDE: "sigma 2"}
    chosen = effort.pick([NARROW, WIDE], list(names))
    data = measure([two_modes(case, names[case]) for case in chosen], effort)
    return Findings(rows(data), _claims(data), data)


def _claims(data: dict[str, Any]) -> list[Claim]:
    spreads = _spreads(data, "Orloj")
    spread = ", ".join(
        f"{spread:.2f} at {multiple:g}x" for multiple, spread in zip(data["multiples"], spreads, strict=True)
    )
    change = {rival: overall(data, WIDE, rival) - overall(data, NARROW, rival) for rival in RIVALS}
    listed = ", ".join(f"{rival} {more:+.2f}" for rival, more in change.items())
    return [
        Claim(
            "Orloj is stable over the widths",
            max(spreads) <= STABLE,
            f"{spread} between widths; with the width grows the P99, and with it the SLO",
        ),
        Claim(
            "Clipper and Nexus finish more as the modes grow together",
            min(change["Clipper"], change["Nexus"]) > 0,
            f"mean over the SLOs, sigma 2 against 0.5: {listed}",
        ),
        half(data),
    ]


def _spreads(data: dict[str, Any], system: str) -> list[float]:
    """Return, for each SLO, the largest difference between the cases."""
    curves = [case["systems"][system]["mean"] for case in data["cases"].values()]
    return [max(rates) - min(rates) for rates in zip(*curves, strict=True)]
