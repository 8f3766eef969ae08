"""Figure 6: vision inference at the arrivals of an autonomous car, beside each training job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from astrarium_papers.findings import Effort, Findings, Row
from astrarium_papers.orion import _inference
from astrarium_papers.orion._pair_summary import over_ideal
from astrarium_papers.orion._settings import (
    CHOSEN,
    MODELS,
    SYSTEMS,
    V100,
    VISION,
    Kernels,
    apollo_note,
    own_pace,
)

TITLE = "Inference beside training, Apollo's arrivals: p99 and throughput (Figure 6)"
SECONDS = 29  # of the trace
PACE = (
    "requests hardly ever meet then, so that p99 alone is a bare request, and one kernel before it (some "
    "take longer than the whole request) shows"
)


def run(effort: Effort) -> Findings:
    data = _measured(CHOSEN, effort)
    rows = [*_rows(data), *_unhurried(effort)]
    rows += _inference.on_v100(lambda kernels: _rows(_measured(kernels, effort)))
    return Findings(rows, _inference.claims(data, long_kernels=_inference.LONG_KERNELS), data)


class Size(NamedTuple):
    models: Sequence[str]
    others: Sequence[str]
    seconds: float


def _size(effort: Effort) -> Size:
    quick = Size(("resnet50",), ("mobilenetv2", "bert"), 6)
    size: Size = effort.pick(quick, Size(VISION, MODELS, SECONDS))
    return size


def _measured(kernels: Kernels, effort: Effort) -> Any:
    size = _size(effort)
    return _inference.beside_training(kernels, size.models, size.others, kernels.apollo, size.seconds, effort)


def _rows(data: Any) -> list[Row]:
    lower = over_ideal(data, "REEF") / over_ideal(data, "Orion")
    return [
        *_inference.rows(data, 3.44, 1.14, apollo_note()),
        Row("REEF's p99 over Orion's", lower, (2.3, 3.0), "x", 0.1, _inference.REEF_WHY),
        _inference.gain(data, 1.3),
    ]


def _unhurried(effort: Effort) -> list[Row]:
    """Return rows where the GPU is faster than the paper's and the car is not."""
    if CHOSEN == V100:
        return []
    size = _size(effort)
    some = {system: SYSTEMS[system] for system in ("Orion", "Astrarium")}
    data = _inference.beside_training(CHOSEN, size.models, size.others, own_pace, size.seconds, effort, some)
    return [
        Row(
            f"{system}, trace at its own pace: p99 over ideal, mean",
            over_ideal(data, system),
            unit="x",
            note=PACE,
        )
        for system in some
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    _inference.draw(data, path)
