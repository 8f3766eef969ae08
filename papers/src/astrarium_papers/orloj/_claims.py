"""What the paper says of several figures, as questions to the measured curves."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from astrarium_papers.findings import Claim
from astrarium_papers.orloj._finish import printed
from astrarium_papers.orloj._settings import RIVALS

TIGHT = 2.0  # times P99, at most; the text speaks of 1.5 and 2
HALF = (0.35, 0.75)  # what the paper calls close to half: its own tables from 2x on, SkipNet apart


def at(data: dict[str, Any], case: str, system: str, multiple: float) -> float:
    """Return a finish rate."""
    curve = data["cases"][case]["systems"][system]["mean"]
    return float(curve[data["multiples"].index(multiple)])


def overall(data: dict[str, Any], case: str, system: str) -> float:
    """Return the mean finish rate over the SLOs."""
    curve: list[float] = data["cases"][case]["systems"][system]["mean"]
    return sum(curve) / len(curve)


def tight(data: dict[str, Any]) -> list[float]:
    return [multiple for multiple in data["multiples"] if multiple <= TIGHT]


def relaxed(data: dict[str, Any]) -> list[float]:
    return [multiple for multiple in data["multiples"] if multiple > TIGHT]


def headline(data: dict[str, Any]) -> list[Claim]:
    """Return claims of gains over Clockwork, as in the tables: the text names no system."""
    return [
        _gains(data, "under tight SLOs (at most 2x) Orloj finishes 51 to 80 % more", 51, tight(data)),
        _gains(data, "under relaxed SLOs (3x and more) Orloj finishes over 100 % more", 100, relaxed(data)),
    ]


def _gains(data: dict[str, Any], words: str, percent: float, multiples: list[float]) -> Claim:
    """Return the claim that a gain is so large: the largest decides, the median shows what is usual."""
    paper = _printed(data)
    note = f"ours: {_described(data, multiples)}; the paper's tables: {_described(paper, multiples)}"
    largest = max(_all_gains(data, ["Clockwork"], multiples)).share
    return Claim(f"{words} than Clockwork", 100 * largest >= percent, note)


def _described(data: dict[str, Any], multiples: list[float]) -> str:
    gains = _all_gains(data, ["Clockwork"], multiples)
    usual = median(gain.share for gain in gains)
    best = max(_all_gains(data, RIVALS, multiples))
    return f"at most {max(gains)}, {usual:.0%} in the median; over the best of the three at most {best}"


def _printed(data: dict[str, Any]) -> dict[str, Any]:
    """Return the paper's numbers in the form of ours."""
    cases = {
        case: {
            "systems": {
                system: {"mean": printed(case, system, data["multiples"])} for system in (*RIVALS, "Orloj")
            }
        }
        for case in data["cases"]
    }
    return {"multiples": data["multiples"], "cases": cases}


class Gain(NamedTuple):
    share: float
    case: str
    multiple: float

    def __str__(self) -> str:
        return f"{self.share:.0%} ({self.case}, {self.multiple:g}x)"


def _all_gains(data: dict[str, Any], rivals: Sequence[str], multiples: list[float]) -> list[Gain]:
    """Return the gains of Orloj over the best of some rivals; a rate under a hundredth is taken to be
    that."""
    gains = []
    for case in data["cases"]:
        for multiple in multiples:
            other = max(at(data, case, rival, multiple) for rival in rivals)
            gains.append(Gain(at(data, case, "Orloj", multiple) / max(other, 0.01) - 1, case, multiple))
    return gains


def half(data: dict[str, Any]) -> Claim:
    """Return the claim that Clockwork finishes about half, but at the tightest SLO, where others fail as
    much."""
    low, high = HALF
    halves = {
        case: [at(data, case, "Clockwork", multiple) for multiple in data["multiples"][1:]]
        for case in data["cases"]
    }
    inside = [case for case, rates in halves.items() if low <= min(rates) and max(rates) <= high]
    outside = [
        f"{case} {min(halves[case]):.2f} to {max(halves[case]):.2f}" for case in halves if case not in inside
    ]
    listed = f"; not in {', '.join(outside)}" if outside else ""
    return Claim(
        "Clockwork finishes close to half of the requests whatever the SLO: every other batch fails",
        2 * len(inside) >= len(halves),
        f"from {data['multiples'][1]:g}x on {low} to {high} in {len(inside)} of {len(halves)} cases{listed}",
    )


def ahead(data: dict[str, Any], words: str, multiples: list[float]) -> Claim:
    """Return the claim that in most points no rival finishes more than Orloj, by more than a hundredth."""
    behind = []
    for case in data["cases"]:
        for multiple in multiples:
            rates = {rival: at(data, case, rival, multiple) for rival in RIVALS}
            best = max(rates, key=lambda rival: rates[rival])
            if rates[best] > at(data, case, "Orloj", multiple) + 0.01:
                behind.append(f"{case}, {multiple:g}x: {best} {rates[best]:.2f}")
    total = len(data["cases"]) * len(multiples)
    note = f"in {total - len(behind)} of {total} points"
    return Claim(words, 2 * len(behind) < total, note + (f"; behind {_some(behind)}" if behind else ""))


def _some(things: list[str], most: int = 4) -> str:
    shown = ", ".join(things[:most])
    return shown if len(things) <= most else f"{shown} and {len(things) - most} more"
