"""Figure 3.10: ASHA on 4, 8 and 16 GPUs, CIFAR-10.

Without Fluid there are as many trials at a time as GPUs. With it, there are 8 whatever the GPUs: the text
says that the number can be set freely then, and that 8 were best without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astrarium_papers.findings import Claim, Effort, Findings
from astrarium_papers.fluid import _curves
from astrarium_papers.fluid._runs import ALONE, DYNAMIC

TITLE = "ASHA on 4, 8 and 16 GPUs, CIFAR-10 (Figure 3.10)"
CONCURRENCY = 8
SIMILAR = 1.15
draw = _curves.draw


def run(effort: Effort) -> Findings:
    data = _curves.measured("asha", _settings, effort)
    return Findings(_curves.rows(data), _claims(data), data)


def _settings(gpus: int, policy: str) -> Mapping[str, Any]:
    trials = gpus if policy == ALONE else CONCURRENCY
    return {"iterations": 81, "candidates": 243, "concurrency": trials}


def _claims(data: dict[str, Any]) -> list[Claim]:
    alone, fluid = (_curves.mean_times(data, policy) for policy in (ALONE, DYNAMIC))
    note = f"without Fluid: {_curves.gpus_and_seconds(alone)}; with: {_curves.gpus_and_seconds(fluid)}"
    return [
        Claim(
            "without Fluid, 8 workers are best",
            min(alone, key=lambda gpus: alone[gpus]) == CONCURRENCY,
            f"{note}. Values here do not depend on how many train at a time: more workers find more",
        ),
        Claim(
            "with Fluid, 4 GPUs do about as well as 8 without",
            fluid[4] < SIMILAR * alone[8],
            f"{note}. Packed, 8 trials on 4 GPUs are at most 1.7 times as much as 4: less than 8 on 8",
        ),
        Claim("with Fluid, 4 GPUs do better than 4 without", fluid[4] < alone[4], note),
        Claim("with Fluid, more GPUs do better than 8 without", fluid[16] < alone[8], note),
    ]
