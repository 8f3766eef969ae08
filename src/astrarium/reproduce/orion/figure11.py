"""Figure 11: vision inference at the arrivals of an autonomous car, beside inference at even gaps."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from astrarium.reproduce.findings import Effort, Findings, Row
from astrarium.reproduce.orion import _inference
from astrarium.reproduce.orion._pairs import aggregate, over_ideal
from astrarium.reproduce.orion._settings import MODELS, VISION, apollo, apollo_note, uniform_beside_inference

TITLE = "Inference beside inference, Apollo's arrivals: p99 (Figure 11)"
SECONDS = 29
BOTH = (
    "the text gives one number for Streams and MPS over Figures 11 and 12; small kernels, and kernels of "
    "different kinds, find room beside each other here and only share what they are bound by"
)
SUM = "the sum of Table 3's rates over the latency client's; which pair the text means is not said"


def run(effort: Effort) -> Findings:
    models, others = effort.pick(("resnet50",), VISION), effort.pick(("mobilenetv2", "bert"), MODELS)
    seconds = effort.pick(6, SECONDS)
    data = _inference.beside_inference(models, others, apollo, uniform_beside_inference, seconds, effort)
    rows = _inference.rows(data, 1.86, 1.22, apollo_note())
    rows += [
        unprotected(data),
        Row(
            "Orion: throughput of both over that of one, at most",
            aggregate(data, "Orion"),
            2.0,
            "x",
            note=SUM,
        ),
    ]
    return Findings(rows, _inference.claims(data), data)


def unprotected(data: dict[str, Any]) -> Row:
    found = mean(over_ideal(data, system) for system in ("Streams", "MPS"))
    return Row("Streams and MPS: p99 over ideal, mean", found, 1.89, "x", 0.15, BOTH)


def draw(data: dict[str, Any], path: Path) -> None:
    _inference.draw(data, path)
