"""Figure 7 and Table 4: inference with Poisson arrivals beside each training job, and what training keeps."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from astrarium_papers.findings import Effort, Findings, Row
from astrarium_papers.orion import _inference
from astrarium_papers.orion._pair_summary import over_ideal
from astrarium_papers.orion._settings import CHOSEN, LABELS, MODELS, TABLE4, V100, Kernels

TITLE = "Inference beside training, Poisson arrivals: p99, throughput, cost (Figure 7, Table 4)"
SECONDS = 60


def run(effort: Effort) -> Findings:
    data = _measured(CHOSEN, effort)
    rows = _rows(data, CHOSEN)
    rows += _inference.on_v100(lambda kernels: _rows(_measured(kernels, effort), kernels))
    return Findings(rows, _inference.claims(data, long_kernels=_inference.LONG_KERNELS), data)


def _measured(kernels: Kernels, effort: Effort) -> Any:
    models = effort.pick(("resnet50", "bert"), MODELS)
    others = effort.pick(("mobilenetv2", "bert"), MODELS)
    arrive = kernels.poisson_beside_training
    seconds = effort.pick(6, SECONDS)
    return _inference.beside_training(kernels, models, others, arrive, seconds, effort)


def _rows(data: Any, kernels: Kernels) -> list[Row]:
    lower = over_ideal(data, "REEF") / over_ideal(data, "Orion")
    trained = list(next(iter(data.values()))["Orion"])
    return [
        *_inference.rows(data, 2.5, 1.14),
        Row("REEF's p99 over Orion's", lower, (2.3, 3.0), "x", 0.1, _inference.REEF_WHY),
        _inference.gain(data, 2.3),
        *(row for model in trained for row in _cost(data, model, kernels == V100)),
    ]


def _cost(data: dict[str, Any], model: str, same_gpu: bool) -> list[Row]:
    """Table 4: the mean over the inference jobs beside; two GPUs against one. Iterations a second are
    compared on the paper's GPU only."""
    costs = [systems["Orion"][model] for systems in data.values()]
    alone = mean(n["best_effort_alone"] for n in costs)
    beside = mean(n["best_effort"] for n in costs)
    dedicated, collocated = TABLE4[model]
    name = LABELS[model]
    why = _inference.KEPT
    return [
        Row(f"{name}: training alone", alone, dedicated if same_gpu else None, "it/s", given=True),
        Row(
            f"{name}: training beside inference, Orion",
            beside,
            collocated if same_gpu else None,
            "it/s",
            0.1,
            why if same_gpu else "",
        ),
        Row(f"{name}: cost savings", 2 * beside / alone, 2 * collocated / dedicated, "x", 0.1, why),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    _inference.draw(data, path)
