"""Figure 12: GPU time on the testbed, workload 2, where placement matters."""

from __future__ import annotations

from typing import Any

from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.themis._runs import RIVALS, THEMIS, over
from astrarium_papers.themis._runs import SETTINGS as SETTINGS
from astrarium_papers.themis._testbed.gpu_time import draw, hours, more_than_themis

__all__ = ["TITLE", "draw", "run"]

TITLE = "GPU time of workload 2 on 64 GPUs (Figure 12)"
PAPER = {"Gandiva": 4.8, "SLAQ": 250.0}
SLAQ = (
    "no placement can make it so: S is at most 1.29 in one rack, so that with all jobs apart it is 29 %; "
    "the rest must be GPUs that are leased but idle, or of another kind"
)
NOTES = {"SLAQ": SLAQ}
CLOSE = 5.0  # points of per cent


def run(effort: Effort) -> Findings:
    data = hours(2, effort)
    return Findings(_rows(data), _claims(data), data)


def _rows(data: dict[str, Any]) -> list[Row]:
    own = over(data["hours"][THEMIS])
    note = f"{own}; the axis of the figure ends at 1,400; the work alone is {data['work']:,.0f}"
    rows = [Row("GPU time under Themis", own.median, (0.0, 1400.0), "h", note=note, given=True)]
    for name in RIVALS:
        more = more_than_themis(data, name)
        paper = PAPER.get(name)
        note = "; ".join([f"{more}", *([NOTES[name]] if name in NOTES else [])])
        slack = CLOSE / paper if paper else 0.05
        rows.append(Row(f"{name} takes more than Themis by", more.median, paper, "%", slack, note))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    medians = {name: more_than_themis(data, name).median for name in RIVALS}
    note = ", ".join(f"{name} {more:+.1f} %" for name, more in medians.items())
    return [Claim("Themis takes the least GPU time", min(medians.values()) >= 0, note)]
