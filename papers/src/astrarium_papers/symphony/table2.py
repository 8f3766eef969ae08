"""Table 2: batch sizes and goodput of one model on 8 GPUs, by analysis and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium.serving.contract import ModelSpec
from astrarium.serving.scenario import build
from astrarium_papers.findings import Effort, Findings, Row
from astrarium_papers.symphony._settings import (
    DELAYS,
    FAULTY_SHEPHERD,
    SYSTEMS,
    TABLE2,
    WITH_FAULT,
    goodput,
    scenario,
)

TITLE = "Batching by analysis and measured goodput, 8 GPUs (Table 2)"
GPUS = 8
# What the paper printed: (batch size, requests/s) by analysis, and measured requests/s.
PAPER: dict[str, dict[str, Any]] = {
    "ResNet50": {
        "uncoordinated": (7, 4501),
        "staggered": (16, 5839),
        "Symphony": 5264,
        "Clockwork": 1358,
        "Nexus": 4027,
        "Shepherd": 4445,
    },
    "InceptionResNetV2": {
        "uncoordinated": (3, 713),
        "staggered": (8, 1083),
        "Symphony": 926,
        "Clockwork": 458,
        "Nexus": 618,
        "Shepherd": 778,
    },
}


def staggered(model: ModelSpec) -> tuple[int, float]:
    """Return the largest b with (1 + 1/N) l(b) <= SLO, and the throughput of N GPUs that take turns."""
    batch = model.largest_batch_within(model.slo * GPUS // (GPUS + 1))
    return batch, GPUS * batch / (model.latency[batch] / 1e9)


def uncoordinated(model: ModelSpec) -> tuple[int, float]:
    """Return the largest b with 2 l(b) <= SLO: a request may just miss a batch and wait for a whole one."""
    batch = model.largest_batch_within(model.slo // 2)
    return batch, GPUS * batch / (model.latency[batch] / 1e9)


def run(effort: Effort) -> Findings:
    rows: list[Row] = []
    data: dict[str, Any] = {}
    for name in TABLE2:
        rows += _analysis(name, TABLE2[name])
        data[name] = {system: _measure(name, policy, effort) for system, policy in SYSTEMS.items()}
        data[name]["Shepherd"]["faulty"] = _measure(name, FAULTY_SHEPHERD, effort)["goodput"]
        rows += [_row(name, system, numbers) for system, numbers in data[name].items()]
    return Findings(rows, data=data)


def _measure(name: str, policy: dict[str, Any], effort: Effort) -> dict[str, Any]:
    """Measure without network delays, and with those of the authors' code."""
    seconds = effort.pick(6, 60 if name == "ResNet50" else 240)
    undelayed, delayed = (
        goodput(scenario({name: TABLE2[name]}, GPUS, policy, seconds, network=network), effort, name)
        for network in ({}, DELAYS)
    )
    return {"goodput": undelayed.goodput, "interval": undelayed.interval, "delayed": delayed.goodput}


def _row(name: str, system: str, numbers: dict[str, Any]) -> Row:
    note = f"{numbers['delayed']:,.0f} with the network delays of the authors' code"
    if "faulty" in numbers:
        note += f"; {numbers['faulty']:,.0f} {WITH_FAULT}"
    return Row(f"{name}: {system}", numbers["goodput"], PAPER[name][system], "r/s", note=note)


def _analysis(name: str, spec: dict[str, Any]) -> list[Row]:
    model = build.setup(scenario({name: spec}, GPUS, {"name": "deferred"}, 1)).models[0]
    rows = []
    for kind, formula in (("uncoordinated", uncoordinated), ("staggered", staggered)):
        batch, throughput = formula(model)
        paper_batch, paper_throughput = PAPER[name][kind]
        rows.append(Row(f"{name}, {kind}: batch size", batch, paper_batch, tolerance=0))
        rows.append(Row(f"{name}, {kind}: throughput", throughput, paper_throughput, "r/s", tolerance=0.001))
    return rows


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(data))
    for axis, (model, systems) in zip(axes, data.items(), strict=True):
        names = list(systems)
        positions = range(len(names))
        axis.bar([p - 0.2 for p in positions], [PAPER[model][n] for n in names], 0.4, label="paper")
        axis.bar([p + 0.2 for p in positions], [systems[n]["goodput"] for n in names], 0.4, label="ours")
        axis.set_xticks(list(positions), names)
        axis.set(title=model, ylabel="goodput (requests/s)")
        axis.legend()
    save(figure, path)
