"""Figure 1: a burst of four requests of one model, then two of another, on two GPUs.

The paper's sum for the pipeline, 1.1 y + 1.6 y + 2.1 y + 2.6 y, has requests follow each other every half y:
its overhead of a tenth delays answers but occupies no GPU. Beside it stands what comes out where the GPUs
spend that time.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
import numpy as np

from astrarium.core.quantities import FOREVER, SECOND, Time
from astrarium.placement.groups.layout import Group
from astrarium.placement.groups.simulation import SimulatedRequests
from astrarium.placement.problem import ALONE, Form, PlacedModel, Shape
from astrarium_papers.alpaserve._common.settings import (
    COLORS,
    PARALLEL,
    SIMPLE,
    WITHOUT_OVERHEADS,
    outcome,
    pipelined,
    replicated,
)
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "Two bursts on two GPUs, with and without model parallelism (Figure 1)"
ALONE_TAKES: Time = SECOND  # the paper's y
OVERHEAD = 0.1
BURSTS = ((0, 0, 4), (5 * SECOND, 1, 2))  # when, of which model, how many
BUSY = f"{PARALLEL}, the overhead keeps GPUs busy"
NOTES = {
    PARALLEL: "the overhead delays answers and occupies no GPU, as in the paper's sum",
    BUSY: "two equal stages of 0.55 y: requests follow each other more slowly",
}
PAPER = {SIMPLE: 2.5, PARALLEL: 1.85}  # mean latency of the first four, in y


def run(effort: Effort) -> Findings:
    """There is no chance in it, so that all efforts are the same."""
    latencies = {
        SIMPLE: _latencies(replicated(2, 1)),
        PARALLEL: _latencies(pipelined(2, 2, 2), after=OVERHEAD),
        BUSY: _latencies(pipelined(2, 2, 2), within=OVERHEAD),
    }
    rows = [_row(name, mean(of_placement[:4])) for name, of_placement in latencies.items()]
    return Findings(rows, _claims(latencies), {"latencies": latencies})


def _row(name: str, latency: float) -> Row:
    what = f"mean latency of the first burst: {name}"
    note = NOTES.get(name, "")
    return Row(what, latency, PAPER.get(name), "y", tolerance=1e-6, note=note, given=name == PARALLEL)


def _latencies(groups: list[Group], after: float = 0.0, within: float = 0.0) -> list[float]:
    """Return the latency of every request, in the time that one takes alone."""
    runtime = msgspec.structs.replace(WITHOUT_OVERHEADS, fixed_overhead=round(after * ALONE_TAKES))
    models = [_model(0, within), _model(1, within)]
    workload = _bursts()
    finish = outcome(models, groups, workload, runtime).finish
    return [float(taken) / ALONE_TAKES for taken in finish - workload.arrivals]


def _model(index: int, overhead: float) -> PlacedModel:
    half = round(ALONE_TAKES * (1 + overhead) / 2)
    forms = (
        Form(ALONE, ((0, ALONE_TAKES),), (1,)),
        Form(Shape(2), ((0, half), (0, half)), (1, 1)),
    )
    return PlacedModel(index, "AB"[index], FOREVER, 1.0, {form.shape: form for form in forms})


def _bursts() -> SimulatedRequests:
    times = [at for at, _, count in BURSTS for _ in range(count)]
    models = [model for _, model, count in BURSTS for _ in range(count)]
    return SimulatedRequests.from_columns(np.array(times, np.int64), np.array(models, np.int32), 2)


def _claims(latencies: dict[str, list[float]]) -> list[Claim]:
    both = {name: mean(of_placement) for name, of_placement in latencies.items()}
    note = "; ".join(f"{name}: {ratio:.2f} y" for name, ratio in both.items())
    return [
        Claim(
            "co-location with model parallelism shortens bursts despite its overhead",
            max(both[PARALLEL], both[BUSY]) < both[SIMPLE],
            f"mean of all six requests: {note}",
        )
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, [axis] = axes_row(1, width=6)
    for place, (name, of_placement) in enumerate(data["latencies"].items()):
        at = [number + (place - 1) * 0.27 for number in range(1, len(of_placement) + 1)]
        axis.bar(at, of_placement, 0.25, color=COLORS.get(name, "#56B4E9"), label=name)
    axis.set(xlabel="request (1 to 4 of model A, 5 and 6 of model B)", ylabel="latency (y)", ylim=(0, 5.4))
    axis.legend(fontsize=8, loc="upper left")
    save(figure, path)
