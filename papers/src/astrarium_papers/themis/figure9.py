"""Figure 9: finish-time fairness on the testbed, workload 1 (sweeps of jobs with 1 or 2 GPUs)."""

from __future__ import annotations

from astrarium_papers.findings import Effort, Findings
from astrarium_papers.themis._runs import SETTINGS as SETTINGS
from astrarium_papers.themis._testbed.fairness import draw, findings

__all__ = ["TITLE", "draw", "run"]

TITLE = "Finish-time fairness against six rivals, workload 1 on 64 GPUs (Figure 9)"


def run(effort: Effort) -> Findings:
    return findings(1, effort)
