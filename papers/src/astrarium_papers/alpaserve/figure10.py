"""Figure 10: how much overhead a pipeline may have and still be as fast as a GPU for each model.

Section 3.4's formulas, and the simulator beside them: with just that overhead both placements are to be
equally fast. Arrivals that are bursty or uneven allow for more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from astrarium.core.quantities import FOREVER, SECOND
from astrarium.placement.problem import ALONE, Form, PlacedModel, Shape
from astrarium_papers.alpaserve._common import queueing
from astrarium_papers.alpaserve._common.served import TrimmedRequests
from astrarium_papers.alpaserve._common.settings import (
    WITHOUT_OVERHEADS,
    fared,
    pipelined,
    replicated,
    spread,
    traffic,
)
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "The most overhead that model parallelism may have, by queueing theory (Figure 10)"
TWO = Shape(stages=2)
LOADS = tuple(round(0.02 * step, 2) for step in range(100))  # of both GPUs: 2 is all they can
SIMULATED = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
QUICK = (0.5, 1.0, 1.5)
BURSTY = 3.0  # a CV
UNEVEN = 0.2  # the first model's share of the requests
ALIKE = 0.02  # how far apart mean latencies may be that are to be the same
BOUNDS: dict[str, Callable[[float], float]] = {
    "communication": queueing.most_communication,
    "unevenness": queueing.most_unevenness,
}


def run(effort: Effort) -> Findings:
    loads = effort.pick(QUICK, SIMULATED)
    data: dict[str, Any] = {
        "loads": list(LOADS),
        "bounds": {name: [round(bound(load), 5) for load in LOADS] for name, bound in BOUNDS.items()},
        "simulated": list(loads),
        "ratios": {name: effort.map(partial(_ratios, effort, name), loads) for name in BOUNDS},
        "waits": effort.map(lambda load: _waits(effort, load), loads),
        "bursty": effort.map(lambda load: _most_by_search(effort, load), loads),
    }
    return Findings(_rows(data), _claims(data), data)


def _workloads(effort: Effort, load: float, cv: float = 1.0) -> list[TrimmedRequests]:
    """A request takes a second on one GPU."""
    requests, seeds = effort.pick((60_000, 3), (400_000, 10))
    rates = [load / 2] * 2
    effort.say(f"load {load:g}, CV {cv:g}")
    return [traffic(rates, cv, requests / load, seed) for seed in range(1, seeds + 1)]


def _model(index: int, stages: tuple[float, float]) -> PlacedModel:
    forms = (
        Form(ALONE, ((0, SECOND),), (1,)),
        Form(TWO, tuple((0, round(stage * SECOND)) for stage in stages), (1, 1)),
    )
    return PlacedModel(index, f"m{index}", FOREVER, 1.0, {form.shape: form for form in forms})


def stages(overhead: float, kind: str) -> tuple[float, float]:
    """Return two stages: communication lengthens both; unevenness moves work from one to the other."""
    return (overhead / 2, overhead / 2) if kind == "communication" else (overhead / 2, 1 - overhead / 2)


def _latency(workload: TrimmedRequests, divided: tuple[float, float] | None = None) -> float:
    """Return the mean latency, in seconds, of a pipeline with these stages, or of the simple placement."""
    models = [_model(index, divided or (0.5, 0.5)) for index in range(2)]
    groups = pipelined(2, 2, 2) if divided else replicated(2, 1)
    return fared(models, groups, workload, WITHOUT_OVERHEADS).mean / SECOND


def _ratios(effort: Effort, kind: str, load: float) -> list[float]:
    """Return pipeline over simple placement, with the most overhead that the formulas allow, for each
    seed."""
    divided = stages(BOUNDS[kind](load), kind)
    workloads = _workloads(effort, load)
    return [round(_latency(workload, divided) / _latency(workload), 4) for workload in workloads]


def _waits(effort: Effort, load: float) -> float:
    """Return simple placement over pipeline, without overhead."""
    workloads = _workloads(effort, load)
    simple, pipeline = (
        mean(_latency(workload, way) - 1 for workload in workloads) for way in (None, (0.5, 0.5))
    )
    return round(simple / pipeline, 4)


def _most_by_search(effort: Effort, load: float) -> list[float]:
    """Return the most communication that bursty arrivals allow: halving what it may be, for each seed."""
    most = []
    for workload in _workloads(effort, load, BURSTY):
        simple = _latency(workload)
        low = 1.0
        high = 2.0
        for _ in range(12):
            middle = (low + high) / 2
            faster = _latency(workload, stages(middle, "communication")) <= simple
            low, high = (middle, high) if faster else (low, middle)
        most.append(round(low, 4))
    return most


def _rows(data: dict[str, Any]) -> list[Row]:
    """The paper prints no number of these curves."""
    alpha = data["bounds"]["communication"]
    top = max(alpha)
    rows = [
        Row(
            "most overhead from communication, at the best load",
            top,
            note=f"at a load of {LOADS[alpha.index(top)]:g}",
        ),
        Row(
            "most overhead from uneven stages, as the load goes to 0",
            queueing.most_unevenness(0.0),
            note="the root of 2",
        ),
    ]
    for place, load in enumerate(data["simulated"]):
        for kind, ratios in data["ratios"].items():
            what = f"load {load:g}, most {kind}: simulated pipeline over simple placement"
            note = f"{spread(ratios[place], '.3f')}; by the formulas 1 at {BOUNDS[kind](load):.3f}"
            rows.append(Row(what, mean(ratios[place]), 1.0, tolerance=ALIKE, note=note))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    alpha, beta = (data["bounds"][name] for name in BOUNDS)
    last = LOADS[-1]
    return [
        Claim(
            "without overhead requests wait half as long for the pipeline",
            all(abs(ratio / 2 - 1) < ALIKE for ratio in data["waits"]),
            "simple placement over pipeline, simulated: "
            + ", ".join(f"{ratio:.2f}" for ratio in data["waits"]),
        ),
        Claim(
            "the simple placement is fastest with equal rates",
            all(
                queueing.simple(1.0, 1.0, share) > queueing.simple(1.0, 1.0)
                for share in (0.1, 0.3, 0.45, 0.55)
            ),
            f"by its formula at a load of 1: {queueing.simple(1.0, 1.0):.3f}, with 20 and 80 % "
            f"{queueing.simple(1.0, 1.0, UNEVEN):.3f}",
        ),
        Claim(
            "at high load the overhead must be low",
            max(alpha[-1], beta[-1]) < 1.05,
            f"at {last:g} of 2 at most {alpha[-1]:.3f} (communication) and {beta[-1]:.3f} (unevenness)",
        ),
        Claim(
            "at low load communication must be low, for nobody waits",
            alpha[1] < 1.05 < beta[1],
            f"at {LOADS[1]:g} at most {alpha[1]:.3f}; unevenness may be {beta[1]:.3f}",
        ),
        *_more(data),
    ]


def _more(data: dict[str, Any]) -> list[Claim]:
    loads = data["simulated"]
    even = [queueing.most_communication(load) for load in loads]
    uneven = {load: queueing.most_communication(load, UNEVEN) for load in loads if load * (1 - UNEVEN) < 1}
    return [
        Claim(
            "bursty arrivals allow for more overhead",
            all(mean(ratios) > bound for ratios, bound in zip(data["bursty"], even, strict=True)),
            f"communication at CV {BURSTY:g}, simulated, against Poisson's: "
            + ", ".join(f"{mean(a):.3f} and {b:.3f}" for a, b in zip(data["bursty"], even, strict=True))
            + f" at loads {', '.join(f'{load:g}' for load in loads)}",
        ),
        Claim(
            "so do unequal rates",
            all(bound > queueing.most_communication(load) for load, bound in uneven.items()),
            "communication with 20 and 80 %, by the formulas: "
            + ", ".join(f"{bound:.3f} at {load:g}" for load, bound in uneven.items()),
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, [axis] = axes_row(1, width=6)
    for (name, bound), color in zip(data["bounds"].items(), ("#0072B2", "#E69F00"), strict=True):
        axis.plot(data["loads"], bound, color=color, label=f"most {name}")
    bursty = [mean(ratios) for ratios in data["bursty"]]
    axis.plot(
        data["simulated"],
        bursty,
        "o:",
        color="#0072B2",
        ms=4,
        label=f"most communication, CV {BURSTY:g}, simulated",
    )
    axis.set(xlabel="load (of 2 GPUs)", ylabel="overhead (factor)", ylim=(1, None), xlim=(0, 2))
    axis.legend(fontsize=8)
    save(figure, path)
