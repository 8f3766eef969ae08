"""Figure 10: two training jobs, one of them with priority."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from astrarium.core.quantities import SECOND
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.gate_simulation import Sharing
from astrarium_papers.orion._inference import on_v100
from astrarium_papers.orion._pair_summary import aggregate, best_effort_kept, kept, points, throughput_bars
from astrarium_papers.orion._pairs import Pair, measure
from astrarium_papers.orion._settings import CHOSEN, COLORS, LIMIT, MODELS, SYSTEMS, Kernels

TITLE = "Training beside training: throughput (Figure 10)"
SECONDS = 30
OVERLAP = (
    "jobs whose kernels need different things overlap at little cost here; caches and CPUs are not modelled"
)
RATES = "in iterations a second: the largest is a slow job's with a fast one beside it"
TRAINING: dict[str, Sharing] = {
    **{system: sharing for system, sharing in SYSTEMS.items() if system != "Orion"},
    "Tick-Tock": Sharing("tick-tock"),
    "Orion": msgspec.structs.replace(SYSTEMS["Orion"], search_limit=LIMIT),
}


def run(effort: Effort) -> Findings:
    data = _measured(CHOSEN, effort)
    rows = [*_rows(data), *on_v100(lambda kernels: _rows(_measured(kernels, effort)))]
    return Findings(rows, _claims(data), data)


def _measured(kernels: Kernels, effort: Effort) -> Any:
    models = kernels.known(effort.pick(("resnet50", "mobilenetv2", "bert"), MODELS), "training")
    first = [kernels.training(model, latency=True) for model in models]
    second = [kernels.training(model) for model in models]
    pairs = [
        Pair(latency, best_effort)
        for latency in first
        for best_effort in second
        if latency.name != best_effort.name
    ]
    return measure(pairs, TRAINING, round(kernels.seconds(effort.pick(8, SECONDS)) * SECOND), effort)


def _rows(data: dict[str, Any]) -> list[Row]:
    slower = mean(1 / kept(data, system) for system in ("MPS", "Streams"))
    rows = [
        Row("MPS and Streams: priority job slower than alone", slower, 1.7, "x", 0.15, OVERLAP),
        Row(
            "Tick-Tock: priority job slower than alone", 1 / kept(data, "Tick-Tock"), 1.93, "x", 0.15, OVERLAP
        ),
        Row("REEF: priority job's throughput over alone", kept(data, "REEF"), (0.92, 1.0), "x", 0.02),
        Row("Orion: priority job's throughput over alone", kept(data, "Orion"), (0.84, 1.0), "x", 0.02),
        Row(
            "Orion: throughput of both over one alone, at most",
            aggregate(data, "Orion"),
            1.6,
            "x",
            0.15,
            RATES,
        ),
    ]
    for system in TRAINING:
        rows.append(
            Row(f"{system}: best-effort throughput over alone", best_effort_kept(data, system), unit="x")
        )
    rows.append(Row("Astrarium: priority job's throughput over alone", kept(data, "Astrarium"), unit="x"))
    rows += [Row(f"{system}: both, each over alone", _both(data, system), unit="x") for system in TRAINING]
    return rows


def _both(data: dict[str, Any], system: str) -> float:
    """Return what the GPU does, in GPUs: 1 is what turns of whole iterations give."""
    return mean(
        n["rate"] / n["rate_alone"] + n["best_effort"] / n["best_effort_alone"] for n in points(data, system)
    )


def _claims(data: dict[str, Any]) -> list[Claim]:
    first = {system: kept(data, system) for system in TRAINING}
    second = {system: best_effort_kept(data, system) for system in TRAINING}
    note = ", ".join(f"{system} {first[system]:.2f} and {second[system]:.2f}" for system in TRAINING)
    return [
        Claim(
            "the priority job is slowest under Tick-Tock, where the faster job waits",
            min(first, key=lambda system: first[system]) == "Tick-Tock",
            note,
        ),
        Claim(
            "REEF keeps the priority job, but hardly runs the other",
            first["REEF"] >= 0.9 and second["REEF"] <= 0.2,
            note,
        ),
        Claim(
            "Orion keeps the priority job nearly as well and runs more of the other than REEF",
            first["Orion"] >= 0.84 and second["Orion"] > second["REEF"],
            note,
        ),
        Claim(
            "with MPS and Streams the priority job loses", max(first["MPS"], first["Streams"]) <= 0.8, note
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(1, width=9)
    throughput_bars(data, axes[0], COLORS)
    save(figure, path)
