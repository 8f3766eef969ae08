"""Figure 3.9: synchronous BOHB on 4, 8 and 16 GPUs, CIFAR-10."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrarium_papers.findings import Claim, Effort, Findings
from astrarium_papers.fluid import _curves
from astrarium_papers.fluid._runs import ALONE, DYNAMIC

TITLE = "Synchronous BOHB on 4, 8 and 16 GPUs, CIFAR-10 (Figure 3.9)"
draw = _curves.draw


def run(effort: Effort) -> Findings:
    data = _curves.measured("sync-bohb", _settings, effort)
    return Findings(_curves.rows(data), _claims(data), data)


def _settings(gpus: int, policy: str) -> Mapping[str, Any]:
    return {"iterations": 81}


def _claims(data: dict[str, Any]) -> list[Claim]:
    alone, fluid = (_curves.mean_times(data, policy) for policy in (ALONE, DYNAMIC))
    gained = alone[4] / alone[16]
    with_it = fluid[4] / fluid[16]
    note = f"without Fluid: {_curves.gpus_and_seconds(alone)}; with: {_curves.gpus_and_seconds(fluid)}"
    return [
        Claim("without Fluid, four times the GPUs are far from four times as fast", gained < 3, note),
        Claim("Fluid is faster on each", all(fluid[gpus] < alone[gpus] for gpus in alone), note),
        Claim(
            "Fluid scales better",
            with_it > gained,
            f"from 4 to 16 GPUs {with_it:.2f}x with, {gained:.2f}x without: CIFAR-10 gains nothing from more "
            "than 3 GPUs for one trial, and packing helps most where GPUs are few",
        ),
    ]
