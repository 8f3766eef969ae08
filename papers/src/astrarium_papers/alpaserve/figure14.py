"""Figure 14: placements made for other traffic than comes (section 6.4), on S2.

The paper takes two hours of an Azure trace; here another model is popular in each: plans are made with
traffic whose rates are dealt to the models anew, and judged by traffic as it was. Three deals, the mean.
Clockwork++ plans each window with that window's own requests, as in the paper. The text has S2; the GPUs on
the axis of its figure, 10 to 50, and the authors' public code are those of S1.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from astrarium.core.random_streams import stream
from astrarium.placement.problem import PlacementRequests, Problem
from astrarium_papers.alpaserve._common import workloads
from astrarium_papers.alpaserve._common.cases import Case, Outcome
from astrarium_papers.alpaserve._common.panels import (
    ALPASERVE,
    CLOCKWORK,
    COLORS,
    REPLICATION,
    behind_of,
    draw_panel,
)
from astrarium_papers.alpaserve._common.sweeps import (
    SYSTEMS,
    Known,
    Placer,
    Sweep,
    known,
    placing,
    searching,
    swept,
)
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "Placements made for other traffic than comes, S2 (Figure 14)"
DEALS = 3
VALUES: dict[str, Any] = {
    "gpus": (32, 48, 64, 80, 96, 128),
    "rate": (8, 16, 32, 48, 64, 96),
    "cv": (1, 2, 3, 4, 6, 8),
    "slo": (1, 2, 3, 4, 5, 7.5, 10),
}
FORESEEN = {system: f"{system}, foreseen" for system in (ALPASERVE, REPLICATION)}
FAINT = {FORESEEN[ALPASERVE]: "#A6CEE3", FORESEEN[REPLICATION]: "#B2DF8A"}


def run(effort: Effort) -> Findings:
    placers: dict[str, Placer] = {
        ALPASERVE: _dealt(searching, effort),
        CLOCKWORK: SYSTEMS[CLOCKWORK],
        REPLICATION: _dealt(lambda knows: placing("selective-replication", None, knows), effort),
        **{FORESEEN[system]: SYSTEMS[system] for system in FORESEEN},
    }
    case = Case(workloads.SETS["S2"], 64, 64.0, seconds=effort.pick(40.0, 200.0))
    curves = [(system, "fair") for system in placers]
    step = effort.pick(4, 1)
    sweeps = {
        knob: Sweep(case, knob, values[::step], curves, effort.pick(1, 2)) for knob, values in VALUES.items()
    }
    data = {"panels": swept(sweeps, placers, effort)}
    return Findings(_rows(data), _claims(data), data)


def _dealt(placer: Any, effort: Effort) -> Placer:
    """Return a placer of plans for as many deals, all judged by the same requests."""
    dealt: list[Placer] = [placer(dealing(number)) for number in range(effort.pick(1, DEALS))]

    def outcomes(case: Case, ways: str, seeds: int) -> list[Outcome]:
        return [outcome for place in dealt for outcome in place(case, ways, seeds)]

    return outcomes


def dealing(number: int) -> Known:
    """Return what a plan is made with: the past of models that were popular in another order."""

    def knows(case: Case, ways: str) -> Problem:
        problem = known(case, ways)
        order = stream(number, "popularity").permutation(len(problem.models)).tolist()
        rates = dict(zip(order, (model.rate for model in problem.models), strict=True))
        models = tuple(msgspec.structs.replace(model, rate=rates[model.index]) for model in problem.models)
        renamed = tuple(order[model] for model in problem.requests.models)
        return Problem(models, problem.gpus, PlacementRequests(problem.requests.times, renamed))

    return knows


def _mean(data: dict[str, Any], system: str) -> float:
    curves = (panel["curves"]["fair"][system] for panel in data["panels"].values())
    return fmean(share for curve in curves for share in curve)


def _rows(data: dict[str, Any]) -> list[Row]:
    systems = [ALPASERVE, FORESEEN[ALPASERVE], CLOCKWORK, REPLICATION, FORESEEN[REPLICATION]]
    return [
        Row(f"{system}: the mean of all points", _mean(data, system), unit="in time") for system in systems
    ]


def _claims(data: dict[str, Any]) -> list[Claim]:
    lost = {system: _mean(data, FORESEEN[system]) - _mean(data, system) for system in FORESEEN}
    note = ", ".join(f"{system} {100 * share:.1f} points" for system, share in lost.items())
    behind, points = behind_of(data["panels"], "fair", ALPASERVE, (CLOCKWORK,))
    return [
        Claim("replication loses significantly when traffic changes", lost[REPLICATION] > 0.05, note),
        Claim("AlpaServe loses less than replication does", lost[ALPASERVE] < lost[REPLICATION], note),
        Claim(
            "AlpaServe still outperforms Clockwork++, which sees the traffic",
            not behind,
            f"behind at {len(behind)} of {points} points" + (f": {'; '.join(behind)}" if behind else ""),
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_grid, save

    figure, axes = axes_grid(len(data["panels"]), 4, 3.6, 3.2)
    for axis, panel in zip(axes, data["panels"].values(), strict=True):
        draw_panel(axis, panel, {**COLORS, **FAINT}, "")
    axes[0].set_ylabel("in time (%)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=5)
    save(figure, path, top=0.9)
