"""Figure 6: latency against the burstiness of arrivals, at the same rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium_papers.alpaserve._common.served import Statistics
from astrarium_papers.alpaserve._common.settings import (
    RATE,
    compared,
    crossing,
    draw_sweep,
    ratio_rows,
    ratios,
    sweep,
)
from astrarium_papers.findings import Claim, Effort, Findings

TITLE = "Latency against the burstiness of arrivals, 8 models on 8 GPUs (Figure 6)"
CVS = (0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
QUICK = (0.1, 1.0, 3.0, 8.0)


def run(effort: Effort) -> Findings:
    """The authors simulate 100 000 s, once."""
    seconds, seeds = effort.pick((4_000.0, 3), (20_000.0, 10))
    cvs = effort.pick(QUICK, CVS)

    def measure(cv: float, seed: int) -> dict[str, Statistics]:
        return compared(RATE, cv, seconds, seed)

    data = {"values": list(cvs), "placements": sweep(effort, cvs, seeds, measure, "CV")}
    return Findings(ratio_rows(data, "at CV {:g}"), _claims(data), data)


def _claims(data: dict[str, Any]) -> list[Claim]:
    by_mean = ratios(data)
    by_p99 = ratios(data, "p99")
    even = crossing(data["values"], [1 - ratio for ratio in by_mean])
    seen = ", ".join(f"{ratio:.2f} at {cv:g}" for cv, ratio in zip(data["values"], by_mean, strict=True))
    return [
        Claim(
            "the benefit grows with burstiness",
            by_mean[0] < 1 < by_mean[-1] and by_mean[-1] > 0.95 * max(by_mean),
            f"mean latency of replication over model parallelism: {seen}",
        ),
        Claim(
            "with a high CV model parallelism is much faster",
            min(by_mean[-1], by_p99[-1]) > 1.3,
            f"at CV {data['values'][-1]:g} replication takes {by_mean[-1]:.2f} times its mean and "
            f"{by_p99[-1]:.2f} times its p99",
        ),
        Claim(
            "nearly regular arrivals leave it only its overhead",
            by_mean[0] < 1,
            f"replication takes {by_mean[0]:.2f} times its mean at CV {data['values'][0]:g}"
            + ("" if even is None else f"; they are even at CV {even:.1f}"),
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(2)
    for axis, what, label in zip(axes, ("mean", "p99"), ("mean latency (s)", "p99 latency (s)"), strict=True):
        draw_sweep(axis, data, what)
        axis.set(xlabel="coefficient of variation of the gaps", ylabel=label, ylim=(0, None))
    save(figure, path)
