"""Figure 6: vision inference at the arrivals of an autonomous car, beside each training job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium.reproduce.findings import Effort, Findings, Row
from astrarium.reproduce.orion import _inference
from astrarium.reproduce.orion._pairs import over_ideal
from astrarium.reproduce.orion._settings import MODELS, VISION, apollo, apollo_note

TITLE = "Inference beside training, Apollo's arrivals: p99 and throughput (Figure 6)"
SECONDS = 29  # of the trace


def run(effort: Effort) -> Findings:
    models, others = effort.pick(("resnet50",), VISION), effort.pick(("mobilenetv2", "bert"), MODELS)
    seconds = effort.pick(6, SECONDS)
    data = _inference.beside_training(models, others, apollo, seconds, effort)
    rows = _inference.rows(data, 3.44, 1.14, apollo_note())
    lower = over_ideal(data, "REEF") / over_ideal(data, "Orion")
    rows += [
        Row("REEF's p99 over Orion's", lower, (2.3, 3.0), "x", 0.1, _inference.REEF_WHY),
        _inference.gain(data, 1.3),
    ]
    return Findings(rows, _inference.claims(data), data)


def draw(data: dict[str, Any], path: Path) -> None:
    _inference.draw(data, path)
