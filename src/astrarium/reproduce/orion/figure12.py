"""Figure 12: inference beside inference, both with Poisson arrivals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium.core.units import Time
from astrarium.reproduce.findings import Effort, Findings, Row
from astrarium.reproduce.orion import _inference
from astrarium.reproduce.orion._pairs import aggregate
from astrarium.reproduce.orion._settings import MODELS, poisson_beside_inference
from astrarium.reproduce.orion.figure11 import SUM, unprotected
from astrarium.workloads.processes import Times

TITLE = "Inference beside inference, Poisson arrivals: p99 (Figure 12)"
SECONDS = 60


def run(effort: Effort) -> Findings:
    models, others = effort.pick(("resnet50", "bert"), MODELS), effort.pick(("mobilenetv2", "bert"), MODELS)
    seconds = effort.pick(6, SECONDS)
    data = _inference.beside_inference(models, others, poisson_beside_inference, _beside, seconds, effort)
    rows = _inference.rows(data, 1.25, 1.15)
    rows += [
        unprotected(data),
        Row(
            "Orion: throughput of both over that of one, at most",
            aggregate(data, "Orion"),
            7.3,
            "x",
            note=SUM,
        ),
    ]
    return Findings(rows, _inference.claims(data), data)


def _beside(model: str, duration: Time) -> Times:
    return poisson_beside_inference(model, duration, f"{model}, best effort")


def draw(data: dict[str, Any], path: Path) -> None:
    _inference.draw(data, path)
