"""Table 2: a convolution and a batch normalization, one after the other and side by side: on the simulated
V100, and as it was measured on an H200 (table2.json, by benchmarks/gpu/table2.py)."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from astrarium.core.quantities import MILLISECOND
from astrarium.gate.kernel_profiles import KernelProfile
from astrarium_papers.findings import Effort, Findings, Row
from astrarium_papers.gate_simulation import Party, Sharing, share
from astrarium_papers.kernels.trace import CONVOLUTION, NORMALIZATION, KernelTrace

TITLE = "Convolution beside batch normalization (Table 2)"
SMS = 80
# Section 3.2: how long each takes alone, the share of the SMs it fills, and what it uses.
KERNELS = {
    "Conv2d": KernelProfile("Conv2d", round(1.35 * MILLISECOND), SMS, "compute", use=CONVOLUTION),
    "BN2d": KernelProfile("BN2d", round(0.93 * MILLISECOND), round(0.4 * SMS), "memory", use=NORMALIZATION),
}
# Sequential and collocated, ms, and the speedup.
PAPER = {
    ("Conv2d", "Conv2d"): (2.59, 2.63, 0.98),
    ("BN2d", "BN2d"): (1.78, 1.65, 1.08),
    ("Conv2d", "BN2d"): (2.15, 1.52, 1.41),
}
SHORTER = "the two durations printed in the text add up to it; the table's own sum is shorter"
FITTED = (
    "two numbers of the simulated GPU were chosen by these three pairs (native/gate/simulation/gpu_model.h)"
)
FULL = (
    "measured; on this GPU either kernel fills all SMs, so that it leaves the other hardly any room. The "
    "same is told of an H100 in the authors' repository (eth-easl/orion, issue 35)"
)


class Measured(msgspec.Struct, frozen=True):
    """Milliseconds for a pair of kernels, and the speedups of the repetitions."""

    sequential_ms: float
    collocated_ms: float
    least_speedup: float
    most_speedup: float


class Measurements(msgspec.Struct, frozen=True):
    date: str
    gpu: str
    versions: dict[str, str]
    command: str
    pairs: dict[str, Measured]


def measurements() -> Measurements:
    text = files("astrarium_papers.orion").joinpath("table2.json").read_bytes()
    return msgspec.json.decode(text, type=Measurements)


def run(effort: Effort) -> Findings:
    rows: list[Row] = []
    data: dict[str, Any] = {}
    for pair, (sequential, collocated, speedup) in PAPER.items():
        name = "-".join(pair)
        one_by_one = _sequential_ms(pair)
        together = _collocated_ms(pair)
        data[name] = {"sequential": one_by_one, "collocated": together, "paper": [sequential, collocated]}
        raised = f"{SHORTER}, which raises this"
        rows += [
            Row(f"{name}: sequential", one_by_one, sequential, "ms", note=SHORTER, given=True),
            Row(f"{name}: collocated", together, collocated, "ms", note=FITTED, given=True),
            Row(f"{name}: speedup", one_by_one / together, speedup, "x", 0.07, raised, given=True),
        ]
    measured = measurements()
    rows += [_measured_row(measured, pair) for pair in measured.pairs]
    data = {"simulated": data, "measured": msgspec.to_builtins(measured)}
    return Findings(rows, data=data)


def _measured_row(measured: Measurements, pair: str) -> Row:
    name, _, batch = pair.rpartition(" b")
    numbers = measured.pairs[pair]
    spread = f"{numbers.least_speedup:.2f} to {numbers.most_speedup:.2f}"
    return Row(
        f"{name}: speedup on an {measured.gpu.removeprefix('NVIDIA ')}, batch {batch}",
        numbers.sequential_ms / numbers.collocated_ms,
        PAPER[_two(name)][2],
        "x",
        0.07,
        f"{FULL}; {numbers.collocated_ms:.2f} ms collocated, repetitions from {spread}",
    )


def _two(name: str) -> tuple[str, str]:
    first, second = name.split("-")
    return first, second


def _sequential_ms(pair: tuple[str, str]) -> float:
    return sum(KERNELS[name].duration for name in pair) / MILLISECOND


def _collocated_ms(pair: tuple[str, str]) -> float:
    """Return the time from the launch of both until the last has ended, with no delay around the GPU."""
    traces = [KernelTrace("V100", SMS, (KERNELS[name],), (0,), ("forward",)) for name in pair]
    parties = [
        Party(name, trace, False, np.zeros(1, np.int64), gap=0)
        for name, trace in zip(pair, traces, strict=True)
    ]
    shared = share(parties, Sharing("streams", model={"seen": 0}), 10 * MILLISECOND)
    return max(float(client.latency_ms[0]) for client in shared.clients)


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(2, width=4.5)
    data = data["simulated"]
    places = range(len(data))
    for axis, (index, what) in zip(axes, enumerate(("sequential", "collocated")), strict=True):
        axis.bar(
            [p - 0.2 for p in places], [pair["paper"][index] for pair in data.values()], 0.4, label="paper"
        )
        axis.bar([p + 0.2 for p in places], [pair[what] for pair in data.values()], 0.4, label="ours")
        axis.set_xticks(list(places), list(data), fontsize=8)
        axis.set(title=what, ylabel="ms")
        axis.legend()
    save(figure, path)
