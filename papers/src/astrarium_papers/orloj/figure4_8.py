"""Figure 4.8 and Table C.2: finish rates as the distribution of execution times has one to eight modes."""

from __future__ import annotations

from typing import Any

from astrarium_papers.findings import Claim, Effort, Findings
from astrarium_papers.orloj._claims import ahead, at, half, headline, overall, tight
from astrarium_papers.orloj._finish import draw, measure, rows
from astrarium_papers.orloj._settings import SYSTEMS, VARIANTS
from astrarium_papers.orloj._workloads import modes

__all__ = ["TITLE", "draw", "run"]

TITLE = "Finish rates by the number of modes (Figure 4.8, Table C.2)"
GOOD = 0.9


def run(effort: Effort) -> Findings:
    cases = [modes(count) for count in effort.pick([1, 3], range(1, 9))]
    data = measure(cases, effort, {**SYSTEMS, **VARIANTS})
    return Findings(rows(data), _claims(data), data)


def _claims(data: dict[str, Any]) -> list[Claim]:
    kept = {case: at(data, case, "Orloj", 3.0) for case in data["cases"]}
    listed = ", ".join(f"{rate:.2f}" for rate in kept.values())
    return [
        *headline(data),
        Claim(
            "Orloj keeps a good finish rate as modes are added", min(kept.values()) >= GOOD, f"at 3x {listed}"
        ),
        half(data),
        _suffer(data),
        ahead(data, "with tight SLOs Orloj finishes more than the others", tight(data)),
    ]


def _suffer(data: dict[str, Any]) -> Claim:
    """Return the claim about what several modes cost each system, as the mean over the SLOs."""
    short, *several = data["cases"]
    changes = {}
    for system in ("Clipper", "Nexus"):
        changes[system] = sum(overall(data, case, system) for case in several) / len(several)
        changes[system] -= overall(data, short, system)
    note = ", ".join(f"{system} {change:+.2f}" for system, change in changes.items())
    return Claim(
        "Clipper and Nexus finish less with several modes than with one", max(changes.values()) < 0, note
    )
