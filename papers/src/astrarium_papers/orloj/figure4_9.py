"""Figure 4.9 and the last rows of Table C.1: two modes of unequal width, hence of unequal peaks."""

from __future__ import annotations

from typing import Any

from astrarium_papers.findings import Claim, Effort, Findings
from astrarium_papers.orloj._claims import half, overall
from astrarium_papers.orloj._finish import draw, measure, rows
from astrarium_papers.orloj._workloads import two_modes

__all__ = ["TITLE", "draw", "run"]

TITLE = "Finish rates with unequal peaks (Figure 4.9, Table C.1)"
SHORT_PEAK = "std-0.5/2"
LONG_PEAK = "std-2/0.5"


def run(effort: Effort) -> Findings:
    cases = [two_modes(SHORT_PEAK, "higher short peak"), two_modes(LONG_PEAK, "higher long peak")]
    data = measure(cases, effort)
    return Findings(rows(data), _claims(data), data)


def _claims(data: dict[str, Any]) -> list[Claim]:
    rates = {
        system: [overall(data, case, system) for case in (SHORT_PEAK, LONG_PEAK)]
        for system in ("Clipper", "Nexus", "Clockwork")
    }
    listed = {system: f"{system} {short:.2f} and {long:.2f}" for system, (short, long) in rates.items()}
    return [
        Claim(
            "Clipper and Nexus suffer more from a high short peak than from a high long one",
            all(rates[system][0] < rates[system][1] for system in ("Clipper", "Nexus")),
            f"means over the SLOs: {listed['Clipper']}, {listed['Nexus']}; with equal shares the wide long "
            "mode has the larger P99, and with it the SLO",
        ),
        Claim(
            "Clockwork is not affected by the distribution",
            abs(rates["Clockwork"][0] - rates["Clockwork"][1]) <= 0.05,
            f"means over the SLOs: {listed['Clockwork']}",
        ),
        half(data),
    ]
