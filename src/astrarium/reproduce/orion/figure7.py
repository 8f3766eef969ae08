"""Figure 7 and Table 4: inference with Poisson arrivals beside each training job, and what training keeps."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from astrarium.reproduce.findings import Effort, Findings, Row
from astrarium.reproduce.orion import _inference
from astrarium.reproduce.orion._pairs import over_ideal
from astrarium.reproduce.orion._settings import LABELS, MODELS, TABLE4, known, poisson_beside_training

TITLE = "Inference beside training, Poisson arrivals: p99, throughput, cost (Figure 7, Table 4)"
SECONDS = 60


def run(effort: Effort) -> Findings:
    models, others = effort.pick(("resnet50", "bert"), MODELS), effort.pick(("mobilenetv2", "bert"), MODELS)
    seconds = effort.pick(6, SECONDS)
    data = _inference.beside_training(models, others, poisson_beside_training, seconds, effort)
    rows = _inference.rows(data, 2.5, 1.14)
    lower = over_ideal(data, "REEF") / over_ideal(data, "Orion")
    rows += [
        Row("REEF's p99 over Orion's", lower, (2.3, 3.0), "x", 0.1, _inference.REEF_WHY),
        _inference.gain(data, 2.3),
        *(row for model in known(others, "training") for row in _cost(data, model)),
    ]
    return Findings(rows, _inference.claims(data), data)


def _cost(data: dict[str, Any], model: str) -> list[Row]:
    """Table 4: the mean over the inference jobs beside; two GPUs against one."""
    found = [systems["Orion"][model] for systems in data.values()]
    alone, beside = mean(n["best_effort_alone"] for n in found), mean(n["best_effort"] for n in found)
    dedicated, collocated = TABLE4[model]
    return [
        Row(f"{LABELS[model]}: training alone", alone, dedicated, "it/s"),
        Row(
            f"{LABELS[model]}: training beside inference, Orion",
            beside,
            collocated,
            "it/s",
            0.1,
            _inference.KEPT,
        ),
        Row(
            f"{LABELS[model]}: cost savings",
            2 * beside / alone,
            2 * collocated / dedicated,
            "x",
            0.1,
            _inference.KEPT,
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    _inference.draw(data, path)
