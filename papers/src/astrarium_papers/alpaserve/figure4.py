"""Figure 4: latency against the memory of a GPU, which decides how many models it can hold.

The x axis is the memory that a placement needs, rather than the authors' round budgets for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from astrarium.placement.problem import Shape
from astrarium_papers.alpaserve._common import cases, workloads
from astrarium_papers.alpaserve._common.served import Statistics
from astrarium_papers.alpaserve._common.settings import (
    COLORS,
    COUNT,
    CV,
    GIB,
    MODEL,
    PARALLEL,
    RATE,
    REPLICATION,
    equally,
    fared,
    means,
    pipelined,
    replicated,
    spread,
    sweep,
    traffic,
)
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "Latency against the memory of a GPU, 8 models on 8 GPUs (Figure 4)"
STAGES = (8, 4, 2, 1)
COPIES = tuple(range(1, COUNT + 1))
BOUND = workloads.GPU_MEMORY / GIB  # of a V100, in GiB
GAIN = 1.05  # what counts as better


def run(effort: Effort) -> Findings:
    seconds, seeds = effort.pick((1_000.0, 3), (20_000.0, 10))
    models = cases.placed_models([MODEL] * COUNT, equally(RATE), slo=None)
    workloads = {seed: traffic(equally(RATE), CV, seconds, seed) for seed in range(1, seeds + 1)}

    def copies(value: float, seed: int) -> dict[str, Statistics]:
        return {REPLICATION: fared(models, replicated(COUNT, int(value)), workloads[seed])}

    def stages(value: float, seed: int) -> dict[str, Statistics]:
        return {PARALLEL: fared(models, pipelined(COUNT, COUNT, int(value)), workloads[seed])}

    data = {
        "memory": {
            REPLICATION: [needed(1, copy) for copy in COPIES],
            PARALLEL: [needed(stages) for stages in STAGES],
        },
        "placements": {
            **sweep(effort, COPIES, seeds, copies, "replicas"),
            **sweep(effort, STAGES, seeds, stages, "stages"),
        },
    }
    return Findings(_rows(data), _claims(data), data)


def needed(stages: int, models: int = COUNT) -> float:
    """Return the GiB on each GPU that so many models need."""
    return round(models * max(cases.forms(MODEL)[Shape(stages)].weights) / GIB, 3)


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    named = {
        REPLICATION: [f"{count} on a GPU" for count in COPIES],
        PARALLEL: [f"{count} stages" if count > 1 else "1 stage" for count in STAGES],
    }
    for name, points in data["placements"].items():
        for label, memory, point in zip(named[name], data["memory"][name], points, strict=True):
            note = f"{memory:.1f} GiB; {spread(point['mean'], '.3f')}; p99 {means([point], 'p99')[0]:.2f} s"
            rows.append(Row(f"mean latency: {name}, {label}", means([point], "mean")[0], unit="s", note=note))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    small = needed(STAGES[0])
    bound = BOUND
    whole = needed(1)
    return [
        _better(data, "least memory", small),
        _better(data, "the memory of a V100", bound),
        Claim(
            "where a GPU holds all models there is no gain from model parallelism",
            _ratio(data, whole, pipelines=STAGES[:-1]) <= 1,
            f"mean latency of replication over the best pipeline: {_ratio(data, whole, STAGES[:-1]):.2f}",
        ),
        Claim(
            "the more memory, the smaller the benefit",
            _ratio(data, small) > _ratio(data, bound) > _ratio(data, whole, STAGES[:-1]),
            "mean latency of replication over model parallelism, with memory for one model, a V100's, and "
            f"for all models: {_ratio(data, small):.2f}, {_ratio(data, bound):.2f}, "
            f"{_ratio(data, whole, STAGES[:-1]):.2f}",
        ),
    ]


def _better(data: dict[str, Any], words: str, memory: float) -> Claim:
    ratios = {what: _ratio(data, memory, what=what) for what in ("mean", "p99")}
    return Claim(
        f"model parallelism is faster with {words}",
        min(ratios.values()) > GAIN,
        f"at {memory:.1f} GiB replication takes {ratios['mean']:.2f} times its mean and "
        f"{ratios['p99']:.2f} times its p99",
    )


def _ratio(
    data: dict[str, Any], memory: float, pipelines: Sequence[int] = STAGES, what: str = "mean"
) -> float:
    """Return replication over model parallelism, each with the best that the memory allows."""
    allowed = [count in pipelines for count in STAGES]
    return _best(data, REPLICATION, memory, what, [True] * len(COPIES)) / _best(
        data, PARALLEL, memory, what, allowed
    )


def _best(data: dict[str, Any], name: str, memory: float, what: str, allowed: Sequence[bool]) -> float:
    needs = data["memory"][name]
    ours = means(data["placements"][name], what)
    fitting = [
        latency for latency, need, may in zip(ours, needs, allowed, strict=True) if may and need <= memory
    ]
    return min(fitting)


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(2)
    for axis, what, label in zip(axes, ("mean", "p99"), ("mean latency (s)", "p99 latency (s)"), strict=True):
        for name, points in data["placements"].items():
            style = {"marker": ".", "color": COLORS[name], "label": name}
            axis.plot(data["memory"][name], means(points, what), **style)
        axis.axvline(BOUND, color="#666666", lw=1, ls="--", label="a V100's")
        axis.set(xlabel="memory of a GPU (GiB)", ylabel=label, ylim=(0, None))
        axis.legend(fontsize=8)
    save(figure, path)
