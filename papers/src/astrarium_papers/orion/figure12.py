"""Figure 12: inference beside inference, both with Poisson arrivals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium_papers.findings import Effort, Findings, Row
from astrarium_papers.orion import _inference
from astrarium_papers.orion._settings import CHOSEN, MODELS, Kernels
from astrarium_papers.orion.figure11 import both, unprotected

TITLE = "Inference beside inference, Poisson arrivals: p99 (Figure 12)"
SECONDS = 60


def run(effort: Effort) -> Findings:
    data = _measured(CHOSEN, effort)
    rows = [*_rows(data), *_inference.on_v100(lambda kernels: _rows(_measured(kernels, effort)))]
    return Findings(rows, _inference.claims(data, unprotected=_inference.EAGER_WHY), data)


def _measured(kernels: Kernels, effort: Effort) -> Any:
    models = effort.pick(("resnet50", "bert"), MODELS)
    others = effort.pick(("mobilenetv2", "bert"), MODELS)
    arrive = kernels.poisson_beside_inference
    beside = kernels.best_effort_poisson
    seconds = effort.pick(6, SECONDS)
    return _inference.beside_inference(kernels, models, others, arrive, beside, seconds, effort)


def _rows(data: Any) -> list[Row]:
    return [*_inference.rows(data, 1.25, 1.15), unprotected(data), both(data, 7.3)]


def draw(data: dict[str, Any], path: Path) -> None:
    _inference.draw(data, path)
