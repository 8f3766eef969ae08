"""Figure 2.10: 300 trials of a hyperparameter search, one after another or packed.

All are there at the start. A trial runs 500 iterations, as in the authors' public repository
(benchmarks/exps/card271.py). What packing brings is decided by how much of the GPU an iteration can use: for
resnet50 our model of Table A.1 predicts it from the times of its batch sizes; for superres it was set by this
very figure, which then checks only that memory for enough lanes is found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium.device import salus
from astrarium.device.record import summary
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.salus._settings import MEMORY, minutes, named, play

TITLE = "300 trials, one after another or packed (Figure 2.10)"
PAPER = {"resnet50_50": 1.07, "superres_128": 2.38}  # makespan of FIFO over that of PACK
SET_BY_THE_PAPER = ("superres_128",)
ITERATIONS = 500
NOTES = {
    "resnet50_50": "predicted",
    "superres_128": "the share of the GPU was set by the paper's number",
}


def run(effort: Effort) -> Findings:
    jobs = effort.pick(60, 300)
    together = effort.pick(50, 10)  # iterations to a turn
    work = [(name, policy) for name in PAPER for policy in ("fifo", "pack")]
    makespans = effort.map(lambda case: _makespan(*case, jobs, together, effort), work)
    spans = dict(zip(work, makespans, strict=True))
    data = {
        "jobs": jobs,
        "makespan_min": {name: {p: spans[name, p] for p in ("fifo", "pack")} for name in PAPER},
        "demand": {name: salus.lookup(name).demand for name in PAPER},
    }
    return Findings(_rows(data), _claims(data), data)


def _makespan(name: str, policy: str, jobs: int, together: int, effort: Effort) -> float:
    effort.say(f"{jobs} x {name}, {policy}")
    arrivals = [(0, named(number, name, ITERATIONS, together)) for number in range(jobs)]
    return minutes(summary(play(policy, arrivals, MEMORY)).makespan)


def _gain(data: dict[str, Any], name: str) -> float:
    spans = data["makespan_min"][name]
    return float(spans["fifo"] / spans["pack"])


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = [
        Row(
            f"{name}: makespan of fifo over pack",
            _gain(data, name),
            paper,
            "x",
            0.1,
            NOTES[name],
            given=name in SET_BY_THE_PAPER,
        )
        for name, paper in PAPER.items()
    ]
    for name, spans in data["makespan_min"].items():
        rows += [Row(f"{name}: makespan of {policy}", span, unit="min") for policy, span in spans.items()]
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    small = _gain(data, "superres_128")
    large = _gain(data, "resnet50_50")
    return [
        Claim(
            "packing small trials shortens the makespan at least twice",
            small >= 2.0,
            f"{small:.2f}x: superres_128 is taken to use {data['demand']['superres_128']:.0%} of the GPU, "
            "which is one over the paper's number",
            given=True,
        ),
        Claim(
            "packing trials that use most of the GPU brings little, though there is memory for several",
            1.0 < large < 1.25,
            f"{large:.2f}x; an iteration of resnet50_50 uses {data['demand']['resnet50_50']:.0%} of the GPU",
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(PAPER), width=4.2)
    for axis, (name, spans) in zip(axes, data["makespan_min"].items(), strict=True):
        axis.bar(["FIFO", "PACK"], [spans["fifo"], spans["pack"]], 0.6, color=["#999999", "#009E73"])
        axis.set(title=f"{name}: {_gain(data, name):.2f}x (paper {PAPER[name]}x)", ylabel="makespan (min)")
    save(figure, path)
