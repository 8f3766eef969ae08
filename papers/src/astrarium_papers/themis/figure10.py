"""Figure 10: finish-time fairness on the testbed, workload 2 (successive halving, jobs of up to 8 GPUs)."""

from __future__ import annotations

from astrarium_papers.findings import Effort, Findings
from astrarium_papers.themis._runs import SETTINGS as SETTINGS
from astrarium_papers.themis._testbed.fairness import draw, findings

__all__ = ["TITLE", "draw", "run"]

TITLE = "Finish-time fairness against six rivals, workload 2 on 64 GPUs (Figure 10)"


def run(effort: Effort) -> Findings:
    return findings(2, effort)
