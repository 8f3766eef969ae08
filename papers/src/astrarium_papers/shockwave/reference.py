"""Runs of Gavel's and Shockwave's simulator that were recorded, and ours in the same rounds.

Their 120 jobs on 32 GPUs (Shockwave's public repository, traces/reproduce): rounds of 120 s, 20 s for who was
not in the round before, GPUs all alike. The recorded numbers are of that simulator, run with ECOS in place of
Gurobi outside this repository. The trace is not part of this repository either: the folder in the
environment variable ASTRARIUM_CLUSTER_DATA holds it, as `shockwave_120jobs_32gpus.csv` (its columns are in
`astrarium.cluster.workloads.apps`).

rho: `static`, Shockwave's, is against T x max(1, jobs / GPUs) with T the time alone; `share` against
T x max(1, N_avg x gang / GPUs) with N_avg jobs at a time during its life.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from astrarium.cluster.contract import App, AppArrived, Event, MachineJoined
from astrarium.cluster.machines import Machine, Spread
from astrarium.cluster.policies import Arbiter, cluster_policies
from astrarium.cluster.slowdowns import Slowdowns
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.cluster.workloads.apps import single_apps
from astrarium.cluster.workloads.traces import read_trace
from astrarium.cluster.world import ClusterWorld
from astrarium.core.choice import Choice, chosen
from astrarium.core.engine import Engine
from astrarium.core.quantities import SECOND, Time
from astrarium.run.simulate import simulate
from astrarium_papers.findings import Effort, Findings, Row

TITLE = "Max-min and finish-time fairness against recorded runs, 120 jobs on 32 GPUs (no figure of a paper)"
FOLDER = "ASTRARIUM_CLUSTER_DATA"
TRACE = "shockwave_120jobs_32gpus.csv"
GPUS = 32
STARTUP = 20 * SECOND
SHORT = 115 * SECOND
# Makespan and mean completion time (s), largest rho: static and share
RECORDED = {
    "max-min": (33207.7, 11274.1, 2.947, 1.898),
    "finish-time-fair": (32328.6, 11386.1, 3.045, 1.814),
}
WHATS = (
    ("makespan", "s", 0.015),
    ("mean completion time", "s", 0.015),
    ("largest rho, static", "", 0.2),
    ("largest rho, share", "", 0.2),
)
NOTES = {
    "finish-time-fair": "its program has many optima: with another solver theirs differs by up to 20 % in rho"
}


def run(effort: Effort) -> Findings:
    trace = Path(os.environ.get(FOLDER, "")) / TRACE
    if not os.environ.get(FOLDER) or not trace.is_file():
        return Findings([], skipped=f"{TRACE} is not at hand: {FOLDER} names the folder that it is in")
    apps = single_apps(read_trace(trace, "shockwave"))
    arrivals = [(app.arrival, msgspec.convert(app, App, from_attributes=True)) for app in apps]
    data = {policy: list(measured(policy, arrivals)) for policy in RECORDED}
    return Findings([row for policy in RECORDED for row in _rows(policy, data[policy])], data=data)


def measured(policy: str, arrivals: Sequence[tuple[Time, App]]) -> tuple[float, float, float, float]:
    flat = Slowdowns(guess=dict.fromkeys(Spread, 1.0))
    state = ClusterState(flat, STARTUP)
    world = ClusterWorld(flat, STARTUP, short=SHORT)
    events: list[tuple[Time, Event]] = [(0, MachineJoined(Machine(number, 1))) for number in range(GPUS)]
    events += [(at, AppArrived(app)) for at, app in arrivals]
    simulate(Engine(state, Arbiter(chosen(cluster_policies, Choice(policy)))), events, world)
    rows = list(state.ledger.rows.values())
    took = [(row.ended - row.arrived) / SECOND for row in rows]
    static, share = ([_rho(row, len(rows), shared) for row in rows] for shared in (False, True))
    return max(row.ended for row in rows) / SECOND, sum(took) / len(took), max(static), max(share)


def _rho(row: AppRow, jobs: int, shared: bool) -> float:
    job = row.app.phases[0][0]
    crowd = row.contention.apps * job.least / GPUS if shared else jobs / GPUS
    return (row.ended - row.arrived) / (job.work / job.least * max(1.0, crowd))


def _rows(policy: str, measured: Sequence[float]) -> list[Row]:
    return [
        Row(f"{policy}: {what}", ours, recorded, unit, slack, NOTES.get(policy, ""))
        for (what, unit, slack), ours, recorded in zip(WHATS, measured, RECORDED[policy], strict=True)
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(WHATS), 3.2)
    for axis, (place, (what, unit, _)) in zip(axes, enumerate(WHATS), strict=True):
        names = list(data)
        axis.bar(
            [number - 0.2 for number in range(len(names))],
            [RECORDED[name][place] for name in names],
            0.4,
            label="recorded",
        )
        axis.bar(
            [number + 0.2 for number in range(len(names))],
            [data[name][place] for name in names],
            0.4,
            label="ours",
        )
        axis.set_xticks(range(len(names)), names)
        axis.set_title(f"{what} ({unit})" if unit else what)
    axes[0].legend(fontsize=8)
    save(figure, path)
