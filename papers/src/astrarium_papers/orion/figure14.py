"""Figure 14: which part of Orion's policy brings what, for inference beside training."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from astrarium.core.quantities import SECOND, Time
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.gate_simulation import Party, Sharing
from astrarium_papers.orion._inference import on_v100
from astrarium_papers.orion._pairs import Pair, measure
from astrarium_papers.orion._settings import CHOSEN, LABELS, MODELS, SYSTEMS, Kernels

TITLE = "What each part of Orion's policy brings: p95 (Figure 14)"
SECONDS = 30
ANY_SIZE = 2**20  # SMs: a threshold that every kernel is below
ORION = SYSTEMS["Orion"]
PRIORITY = "Stream priorities"
# Each adds to the one before. Orion's limit on what is in flight belongs to its policy: both parts have it.
PARTS: dict[str, Sharing] = {
    "GPU streams": Sharing("streams", one_interpreter=True),
    PRIORITY: Sharing("stream-priority", priority=True, one_interpreter=True),
    "Compute/memory profiles": msgspec.structs.replace(ORION, knobs={"sm_threshold": ANY_SIZE}),
    "SM size": ORION,
    "SM size, no priorities": msgspec.structs.replace(ORION, priority=False),
}
IN_FLIGHT = "whether the paper's bars have the limit on what is in flight is not said; here the last two do"
PRIORITIES = (
    "priorities decide who gets room that is freed: much where a request's kernels follow each other at once "
    "(V100-like), nothing where there are gaps between them, as was seen on an H200"
)
FIRST_ONLY = "what is in flight delays only the first kernels of a request here"
# Section 6.4: DUR_THRESHOLD beside ResNet101, and the latency that it led to.
BUDGETS = {0.10: 23, 0.15: 26, 0.20: 30}


def run(effort: Effort) -> Findings:
    data = _measured(CHOSEN, effort)
    rows = [*_rows(data), *on_v100(lambda kernels: _rows(_measured(kernels, effort)))]
    return Findings(rows, _claims(data), data)


def _measured(kernels: Kernels, effort: Effort) -> dict[str, Any]:
    models = effort.pick(("resnet50", "bert"), MODELS)
    others = effort.pick(("mobilenetv2", "resnet101"), MODELS)
    duration = round(kernels.seconds(effort.pick(6, SECONDS)) * SECOND)
    trained = [kernels.training(model) for model in kernels.known(others, "training")]
    served = [_served(kernels, model, duration) for model in kernels.known(models, "inference")]
    parts = measure(
        [Pair(latency, best_effort) for latency in served for best_effort in trained], PARTS, duration, effort
    )
    first = _served(kernels, "resnet101", duration)
    swept = measure([Pair(first, best_effort) for best_effort in trained], _budgets(), duration, effort)[
        "resnet101"
    ]
    return {
        "parts": parts,
        "budgets": {share: _mean(numbers, "p99") for share, numbers in swept.items()},
        "kept": {share: _mean(numbers, "best_effort") for share, numbers in swept.items()},
    }


def _served(kernels: Kernels, model: str, duration: Time) -> Party:
    return kernels.inference(model, kernels.poisson_beside_training(model, duration))


def _budgets() -> dict[str, Sharing]:
    shares = (0.01, 0.025, 0.03, *BUDGETS)
    return {
        f"{share:g}": msgspec.structs.replace(ORION, knobs={"duration_fraction": share}) for share in shares
    }


def _mean(numbers: dict[str, dict[str, float]], what: str) -> float:
    return mean(pair[what] for pair in numbers.values())


def _p95(data: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return {model: {part: p95}}, the mean over the training jobs beside."""
    return {
        model: {part: _mean(numbers, "p95") for part, numbers in parts.items()}
        for model, parts in data["parts"].items()
    }


def _less(data: dict[str, Any], part: str, before: str) -> float:
    """Return by how much a part lowers p95 at most, over the models."""
    return max(1 - parts[part] / parts[before] for parts in _p95(data).values())


def _rows(data: dict[str, Any]) -> list[Row]:
    names = list(PARTS)
    rows = [
        Row(
            f"{part}: p95 less than with {before}, at most",
            _less(data, part, before),
            paper,
            tolerance=0.25,
            note=PRIORITIES if part == PRIORITY else IN_FLIGHT,
        )
        for before, part, paper in zip(names, names[1:4], (0.25, 0.48, 0.54), strict=False)
    ]
    first, *others = BUDGETS
    for share in others:
        ours = data["budgets"][f"{share:g}"] / data["budgets"][f"{first:g}"]
        paper = BUDGETS[share] / BUDGETS[first]
        what = f"ResNet101: p99 with {share:.0%} of its latency in flight over that with {first:.0%}"
        rows.append(Row(what, ours, paper, "x", 0.1, FIRST_ONLY))
    for share, latency in data["budgets"].items():
        what = f"ResNet101: p99 with {float(share):.1%} in flight"
        rows.append(
            Row(what, latency, unit="ms", note=f"training at {data['kept'][share]:.2f} it/s on average")
        )
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    means = {part: mean(parts[part] for parts in _p95(data).values()) for part in PARTS}
    shown = ", ".join(f"{part} {value:.1f} ms" for part, value in means.items())
    without = means["SM size, no priorities"]
    full = means["SM size"]
    budgets = data["budgets"]
    stable = budgets["0.03"] / budgets["0.01"]
    return [
        Claim(
            "each part lowers the tail",
            means["GPU streams"] > means[PRIORITY] > means["Compute/memory profiles"] > full,
            f"mean p95: {shown}; {PRIORITIES}",
        ),
        Claim(
            "priorities hardly matter once profiles and sizes are looked at",
            without <= 1.05 * full,
            f"{without / full:.3f}x without them",
        ),
        Claim("the tail is stable for budgets up to 3 %", stable <= 1.05, f"{stable:.3f}x from 1 % to 3 %"),
        Claim(
            "beyond, the tail grows with the budget",
            budgets["0.2"] > budgets["0.15"] > budgets["0.1"] > budgets["0.03"],
            ", ".join(f"{float(share):.1%}: {value:.1f} ms" for share, value in budgets.items()),
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(1, width=8)
    p95 = _p95(data)
    width = 0.8 / len(PARTS)
    for place, part in enumerate(PARTS):
        at = [group + (place - len(PARTS) / 2) * width for group in range(len(p95))]
        axes[0].bar(at, [parts[part] for parts in p95.values()], width, label=part)
    axes[0].set_xticks(range(len(p95)), [LABELS[model] for model in p95])
    axes[0].set(ylabel="p95 latency (ms)")
    axes[0].legend(fontsize=7)
    save(figure, path)
