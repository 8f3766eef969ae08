"""Figure 11: vision inference at the arrivals of an autonomous car, beside inference at even gaps."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from astrarium_papers.findings import Effort, Findings, Row
from astrarium_papers.orion import _inference
from astrarium_papers.orion._inference import EAGER_WHY
from astrarium_papers.orion._pair_summary import aggregate, over_ideal
from astrarium_papers.orion._settings import CHOSEN, MODELS, VISION, Kernels, apollo_note

TITLE = "Inference beside inference, Apollo's arrivals: p99 (Figure 11)"
SECONDS = 29
BOTH = (
    "the text gives one number for Streams and MPS over Figures 11 and 12; small kernels, and kernels of "
    "different kinds, find room beside each other here and only share what they are bound by; " + EAGER_WHY
)
SUM = "the sum of both clients' rates over the latency client's; which pair the text means is not said"


def run(effort: Effort) -> Findings:
    data = _measured(CHOSEN, effort)
    rows = [*_rows(data), *_inference.on_v100(lambda kernels: _rows(_measured(kernels, effort)))]
    return Findings(rows, _inference.claims(data, unprotected=_inference.EAGER_WHY), data)


def _measured(kernels: Kernels, effort: Effort) -> Any:
    models = effort.pick(("resnet50",), VISION)
    others = effort.pick(("mobilenetv2", "bert"), MODELS)
    arrive = kernels.apollo
    beside = kernels.best_effort_uniform
    seconds = effort.pick(6, SECONDS)
    return _inference.beside_inference(kernels, models, others, arrive, beside, seconds, effort)


def _rows(data: Any) -> list[Row]:
    return [*_inference.rows(data, 1.86, 1.22, apollo_note()), unprotected(data), both(data, 2.0)]


def both(data: dict[str, Any], paper: float) -> Row:
    what = "Orion: throughput of both over that of one, at most"
    return Row(what, aggregate(data, "Orion"), paper, "x", note=SUM)


def unprotected(data: dict[str, Any]) -> Row:
    slowdown = mean(over_ideal(data, system) for system in ("Streams", "MPS"))
    return Row("Streams and MPS: p99 over ideal, mean", slowdown, 1.89, "x", 0.15, BOTH)


def draw(data: dict[str, Any], path: Path) -> None:
    _inference.draw(data, path)
