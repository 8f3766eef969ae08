"""Figure 4.11 and Table C.3: static models, whose requests all take the same time."""

from __future__ import annotations

from typing import Any

from astrarium_papers.findings import Claim, Effort, Findings
from astrarium_papers.orloj._claims import at, relaxed, tight
from astrarium_papers.orloj._finish import draw, measure, rows
from astrarium_papers.orloj._workloads import static

__all__ = ["TITLE", "draw", "run"]

TITLE = "Finish rates on static models (Figure 4.11, Table C.3)"
MODELS = {"inception-imagenet": "InceptionV3", "resnet-imagenet": "ResNet50"}
COMPARABLE = 0.1
MUCH = 1.2  # times as many: a significant improvement


def run(effort: Effort) -> Findings:
    data = measure([static(case, model) for case, model in MODELS.items()], effort)
    return Findings(rows(data), _claims(data), data)


def _claims(data: dict[str, Any]) -> list[Claim]:
    over = {rival: _ratios(data, rival, tight(data)) for rival in ("Clipper", "Nexus", "Clockwork")}
    loose = _ratios(data, "Clockwork", relaxed(data))
    listed = ", ".join(f"{min(over[rival]):.2f} to {max(over[rival]):.2f} times {rival}" for rival in over)
    return [
        Claim(
            "with tight SLOs Orloj finishes many more than Clipper and Nexus",
            min(*over["Clipper"], *over["Nexus"]) >= MUCH,
            f"at 1.5x and 2x Orloj finishes {listed}",
        ),
        Claim(
            "with tight SLOs Clockwork finishes more than Orloj",
            max(over["Clockwork"]) < 1,
            "the paper's own table has it at 2x only",
        ),
        Claim(
            "with relaxed SLOs Orloj finishes slightly more than Clockwork",
            min(loose) >= 1,
            f"{min(loose):.2f} to {max(loose):.2f} times",
        ),
        _parity(data),
    ]


def _parity(data: dict[str, Any]) -> Claim:
    """Return the claim of parity with the best of the other three at each point."""
    behind = max(
        max(at(data, case, rival, multiple) for rival in ("Clipper", "Nexus", "Clockwork"))
        - at(data, case, "Orloj", multiple)
        for case in data["cases"]
        for multiple in data["multiples"]
    )
    words = f"Orloj is comparable on static models: never more than {COMPARABLE} behind the best"
    return Claim(words, behind <= COMPARABLE, f"at most {behind:.2f} behind")


def _ratios(data: dict[str, Any], rival: str, multiples: list[float]) -> list[float]:
    return [
        at(data, case, "Orloj", multiple) / max(at(data, case, rival, multiple), 0.01)
        for case in data["cases"]
        for multiple in multiples
    ]
