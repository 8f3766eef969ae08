"""Figure 11: GPU time on the testbed, workload 1. Jobs have 1 or 2 GPUs, so that all are placed well."""

from __future__ import annotations

from typing import Any

from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.themis._runs import RIVALS, THEMIS, over
from astrarium_papers.themis._runs import SETTINGS as SETTINGS
from astrarium_papers.themis._testbed.gpu_time import draw, hours, more_than_themis

__all__ = ["TITLE", "draw", "run"]

TITLE = "GPU time of workload 1 on 64 GPUs (Figure 11)"
ALIKE = 10.0  # per cent


def run(effort: Effort) -> Findings:
    data = hours(1, effort)
    return Findings(_rows(data), _claims(data), data)


def _rows(data: dict[str, Any]) -> list[Row]:
    own = over(data["hours"][THEMIS])
    note = f"{own}; the axis of the figure ends at 1,200; the work alone is {data['work']:,.0f}"
    rows = [Row("GPU time under Themis", own.median, (0.0, 1200.0), "h", note=note, given=True)]
    for name in RIVALS:
        more = more_than_themis(data, name)
        rows.append(Row(f"{name} takes more than Themis by", more.median, unit="%", note=f"{more}"))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    medians = {name: more_than_themis(data, name).median for name in RIVALS}
    far = max(medians, key=lambda name: abs(medians[name]))
    what = f"all take about as long (within {ALIKE:g} % of Themis)"
    return [Claim(what, abs(medians[far]) <= ALIKE, f"farthest: {far}, {medians[far]:+.1f} %")]
