"""Figure 3.5: four trials of 4, 4, 12 and 30 seconds on five GPUs, without overheads.

The text prints the times and how Fluid places them: the longest on three GPUs, the two short ones together on
one. What each schedule takes is drawn, and follows from that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium.core.quantities import SECOND
from astrarium.testing.tuning_runs import play_groups
from astrarium.tuning.contract import GroupArrived, Trial
from astrarium.tuning.runtime import Runtime
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.fluid._runs import ALONE, COLORS, DYNAMIC, NAMES, STATIC

TITLE = "The toy example: four trials on five GPUs (Figure 3.5)"
TIMES = (4, 4, 12, 30)
GPUS = 5
PACKED = 2
WIDTHS = (0.5, 0.5, 1.0, 3.0)
IDEAL = sum(TIMES) / GPUS


def run(effort: Effort) -> Findings:
    played = {policy: _played(policy) for policy in (ALONE, STATIC, DYNAMIC)}
    ends = {policy: result[0] for policy, result in played.items()}
    first = [next(bar["gpus"] for bar in played[STATIC][1] if bar["trial"] == n) for n in range(len(TIMES))]
    rows = [
        Row(f"GPUs of trial {number + 1}, of {TIMES[number]} s", width, WIDTHS[number], tolerance=0.0)
        for number, width in enumerate(first)
    ]
    rows += [
        Row(f"makespan, {NAMES[policy]}", end, None, "s", note=_note(policy)) for policy, end in ends.items()
    ]
    data = {"bars": {policy: result[1] for policy, result in played.items()}, "ends": ends}
    note = f"{ends[STATIC]:g} s where {IDEAL:g} s of work are on each GPU"
    return Findings(
        rows,
        [
            Claim("Fluid ends long before the default", ends[STATIC] < ends[ALONE] / 2, note),
            Claim("Fluid comes close to the optimum", ends[STATIC] <= 1.25 * IDEAL, note),
        ],
        data,
    )


def _note(policy: str) -> str:
    if policy == DYNAMIC:
        return (
            "freed GPUs go to who is left; below 10 s, as trials that share a GPU are as fast as alone here"
        )
    return "follows from the printed times and places; the makespan itself is not printed"


def _played(policy: str) -> tuple[float, list[dict[str, Any]]]:
    """Return how long it takes, and which trial was given how much when."""
    trials = tuple(Trial(number, 0, number, time) for number, time in enumerate(TIMES))
    parameters = {} if policy == ALONE else {"packed": PACKED}
    played = play_groups(policy, [(0, GroupArrived(0, trials))], GPUS, Runtime(), settings=parameters)
    ends = {row.trial.id: row.ended / SECOND for row in played.rows}
    bars = [
        {"trial": put.trial, "at": at / SECOND, "until": ends[put.trial], "gpus": float(put.place.width)}
        for at, put in played.puts
    ]
    return played.end / SECOND, bars


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(data["bars"]), 3.6)
    for axis, (policy, bars) in zip(axes, data["bars"].items(), strict=True):
        for bar in bars:
            length = bar["until"] - bar["at"]
            axis.barh(bar["trial"] + 1, length, bar["gpus"] / 4, left=bar["at"], color=COLORS[policy])
        axis.set(xlabel="time (s)", ylabel="trial (height: GPUs)", title=NAMES[policy], xlim=(0, 31))
    save(figure, path)
