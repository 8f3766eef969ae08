"""Figure 4.7 and Tables C.4 to C.7: finish rates on the ten workloads of Table 4.1."""

from __future__ import annotations

from typing import Any

from astrarium_papers.findings import Claim, Effort, Findings
from astrarium_papers.orloj._claims import ahead, at, half, headline, tight
from astrarium_papers.orloj._finish import draw, measure, rows
from astrarium_papers.orloj._tables import TABLE_4_1
from astrarium_papers.orloj._workloads import real

__all__ = ["TITLE", "draw", "run"]

TITLE = "Finish rates on ten real workloads (Figure 4.7, Tables C.4 to C.7)"
NEARLY_ALL = ("rdinet-cifar", "bart-cnn", "gpt-cornell")
SKIPNET = "skipnet-imagenet"
QUICK = ("rdinet-cifar", SKIPNET, "bart-cnn", "gpt-cornell")


def run(effort: Effort) -> Findings:
    chosen = [entry for entry in TABLE_4_1 if not effort.quick or entry.case in QUICK]
    data = measure([real(entry) for entry in chosen], effort)
    return Findings(rows(data), _claims(data), data)


def _claims(data: dict[str, Any]) -> list[Claim]:
    loosest = data["multiples"][-1]
    near = {case: at(data, case, "Orloj", loosest) for case in NEARLY_ALL}
    words = "Orloj finishes nearly all requests of RDI-Nets, BART and GPT/Cornell, given a sufficient SLO"
    skipnet = {**data, "cases": {SKIPNET: data["cases"][SKIPNET]}}
    return [
        *headline(data),
        Claim(
            words, min(near.values()) >= 0.97, ", ".join(f"{case} {rate:.2f}" for case, rate in near.items())
        ),
        half(data),
        ahead(data, "with tight SLOs Orloj finishes more than the others in most workloads", tight(data)),
        ahead(skipnet, "Orloj finishes more of SkipNet's very short requests", data["multiples"]),
    ]
