"""Table 3 and section 4.3.3: what an app with successive halving bids for 1 to 16 GPUs.

Four jobs, of 80, 100, 100 and 120 s for an iteration, then two, then one; 8, 16 and 36 iterations in each; a
budget of 10,000 s; four apps on 16 GPUs. Bids are by `equation-1`, as in the paper.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium.cluster.agents.agent import AppAgent
from astrarium.cluster.auction.goods import free_machines
from astrarium.cluster.contract import App, AppArrived, Job, MachineJoined, single
from astrarium.cluster.machines import Machine, Spread
from astrarium.cluster.slowdowns import Slowdowns
from astrarium.cluster.state import ClusterState
from astrarium.core.quantities import SECOND
from astrarium_papers.findings import Effort, Findings, Row

TITLE = "What an app with successive halving bids (Table 3)"
PAPER = {1: 4.0, 2: 2.0, 4: 1.0, 8: 0.5, 16: 0.34}
EXACT = {1: 4.0, 2: 2.0, 4: 1.064, 8: 0.532, 16: 0.356}
ITERATIONS_S = (80, 100, 100, 120)
GPUS = 16


def run(effort: Effort) -> Findings:
    state = ClusterState(Slowdowns(guess=dict.fromkeys(Spread, 1.0)))
    state.apply(0, MachineJoined(Machine(0, GPUS)))
    app = halving()
    for app_or_other in (app, *(single(number, f"other {number}", SECOND) for number in (1, 2, 3))):
        state.apply(0, AppArrived(app_or_other))
    goods = free_machines(state.floor, state.free)
    bid = AppAgent(app, "equation-1").bid(0, state.apps[app.id], state, goods)
    rhos = {option.gpus: option.rho for option in bid.options}
    data = {f"{gpus}": rhos[gpus] for gpus in PAPER}
    return Findings([_row(gpus, rhos[gpus]) for gpus in PAPER], data=data)


def halving() -> App:
    def job(number: int, seconds: int, iterations: int) -> Job:
        return Job(number, seconds * iterations * SECOND, 1, 8, iterations=iterations)

    first = tuple(job(number, seconds, 8) for number, seconds in enumerate(ITERATIONS_S))
    return App(0, "halving", (first, (job(4, 100, 16), job(5, 100, 16)), (job(6, 100, 36),)), kind="halving")


def _row(gpus: int, rho: float) -> Row:
    note = (
        "" if EXACT[gpus] == PAPER[gpus] else f"the text's own numbers give {EXACT[gpus]:g}; the paper rounds"
    )
    return Row(f"rho with {gpus} GPUs", rho, PAPER[gpus], tolerance=0.07, note=note)


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, (axis,) = axes_row(1, 5.0)
    axis.plot([int(gpus) for gpus in data], list(data.values()), "o-", label="ours")
    axis.plot(list(PAPER), list(PAPER.values()), "x", color="black", label="paper")
    axis.set(xlabel="GPUs", ylabel="rho", xscale="log", yscale="log")
    axis.legend()
    save(figure, path)
