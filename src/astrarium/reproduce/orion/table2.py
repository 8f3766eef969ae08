"""Table 2: a convolution and a batch normalization, one after the other and side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from astrarium.core.units import MILLISECOND
from astrarium.experiments.gate import Party, Sharing, share
from astrarium.reproduce.findings import Effort, Findings, Row
from astrarium.workloads.kernel_profiles import CONVOLUTION, NORMALIZATION, KernelProfile, KernelTrace

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


def run(effort: Effort) -> Findings:
    rows: list[Row] = []
    data: dict[str, Any] = {}
    for pair, (sequential, collocated, speedup) in PAPER.items():
        name = "-".join(pair)
        one_by_one, together = _sequential_ms(pair), _collocated_ms(pair)
        data[name] = {"sequential": one_by_one, "collocated": together, "paper": [sequential, collocated]}
        rows += [
            Row(f"{name}: sequential", one_by_one, sequential, "ms", note=SHORTER),
            Row(f"{name}: collocated", together, collocated, "ms"),
            Row(
                f"{name}: speedup", one_by_one / together, speedup, "x", 0.07, f"{SHORTER}, which raises this"
            ),
        ]
    return Findings(rows, data=data)


def _sequential_ms(pair: tuple[str, str]) -> float:
    return sum(KERNELS[name].duration for name in pair) / MILLISECOND


def _collocated_ms(pair: tuple[str, str]) -> float:
    """From the launch of both until the last has ended, with no delay around the GPU."""
    traces = [KernelTrace("V100", SMS, (KERNELS[name],), (0,), ("forward",)) for name in pair]
    parties = [
        Party(name, trace, False, np.zeros(1, np.int64), gap=0)
        for name, trace in zip(pair, traces, strict=True)
    ]
    found = share(parties, Sharing("streams", model={"seen": 0}), 10 * MILLISECOND)
    return max(float(client.latency_ms[0]) for client in found.clients)


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium.reproduce.drawing import axes_row, save

    figure, axes = axes_row(2, width=4.5)
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
