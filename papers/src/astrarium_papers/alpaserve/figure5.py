"""Figure 5: latency against the rate of requests. The sweep goes on beyond the paper's, to where the eight
stages are nearly saturated: there the lines cross."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium.core.quantities import SECOND
from astrarium.placement.groups.runtime import DEFAULT
from astrarium.placement.problem import ALONE
from astrarium_papers.alpaserve._common import cases
from astrarium_papers.alpaserve._common.served import Statistics
from astrarium_papers.alpaserve._common.settings import (
    COUNT,
    CV,
    MODEL,
    PARALLEL,
    PIPELINE,
    REPLICATION,
    compared,
    crossing,
    draw_sweep,
    on_their_requests,
    ratio_rows,
    ratios,
    sweep,
)
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "Latency against the rate of requests, 8 models on 8 GPUs (Figure 5)"
RATES = (0.8, 4.0, 8.0, 12.0, 16.0, 20.0, 22.0, 24.0, 25.0, 26.0, 27.0)
QUICK = (0.8, 8.0, 20.0, 26.0, 27.0)
# The authors' code, 1000 s: mean and p99 in seconds, of model parallelism and of replication. Its rates go
# from 0.8 to 24 in equal steps.
AUTHORS = {
    0.8 + 3 * 23.2 / 19: ((0.330, 0.58), (0.439, 1.42)),
    20.0: ((0.620, 1.83), (0.895, 3.00)),
    24.0: ((1.03, 3.35), (1.21, 3.78)),
}
DRAWN_IN_PAPER = 24.0  # requests a second, where its axis ends


def run(effort: Effort) -> Findings:
    seconds, seeds = effort.pick((2_000.0, 3), (20_000.0, 10))
    rates = effort.pick(QUICK, RATES)

    def measure(rate: float, seed: int) -> dict[str, Statistics]:
        return compared(rate, CV, seconds, seed)

    data = {"values": list(rates), "placements": sweep(effort, rates, seeds, measure, "requests/s:")}
    return Findings([*ratio_rows(data, "at {:g} requests/s"), *_authors_rows()], _claims(data), data)


def _authors_rows() -> list[Row]:
    """The paper prints no number of these curves."""
    rows = []
    for rate, printed in AUTHORS.items():
        measured = on_their_requests(rate, 1_000.0)
        for (name, ours), theirs in zip(measured.items(), printed, strict=True):
            for what, value, number in (("mean", ours.mean, theirs[0]), ("p99", ours.p99, theirs[1])):
                label = f"{name} at {rate:.3g} requests/s, {what}: beside the authors' code, on its requests"
                rows.append(Row(label, value, number, "s", tolerance=0.01))
    return rows


def peak(name: str) -> float:
    """Return the requests a second that a placement serves at most, with the simulator's overheads."""
    shape = PIPELINE if name == PARALLEL else ALONE
    interval = cases.forms(MODEL)[shape].interval(1) * (1 + DEFAULT.stage_overhead * shape.stages)
    return COUNT // shape.stages * SECOND / interval


def _claims(data: dict[str, Any]) -> list[Claim]:
    by_mean = ratios(data)
    by_p99 = ratios(data, "p99")
    crossed = crossing(data["values"], [ratio - 1 for ratio in by_mean])
    low = [ratio for rate, ratio in zip(data["values"], by_mean, strict=True) if 4 <= rate <= 12]
    peaks = {name: peak(name) for name in data["placements"]}
    at = "they do not cross" if crossed is None else f"they cross at {crossed:.1f} requests/s"
    return [
        Claim(
            "at low rates model parallelism greatly reduces latency",
            min(low) > 1.2,
            f"from 4 to 12 requests/s replication takes {min(low):.2f} to {max(low):.2f} times its mean; "
            f"at {data['values'][0]:g}, where waiting is rare, {by_mean[0]:.2f}",
        ),
        Claim(
            "the benefit diminishes as the rate approaches the peak",
            by_mean[-1] < by_mean[-2] < max(by_mean),
            f"replication over model parallelism at {data['values'][-2]:g} and {data['values'][-1]:g}/s: "
            f"mean {by_mean[-2]:.2f}, {by_mean[-1]:.2f}; p99 {by_p99[-2]:.2f}, {by_p99[-1]:.2f}",
        ),
        Claim(
            "eventually model parallelism is worse than replication",
            crossed is not None,
            f"{at}; the peaks are {peaks[PARALLEL]:.1f} (model parallelism) and {peaks[REPLICATION]:.1f}"
            + _beyond(crossed),
        ),
    ]


def _beyond(crossed: float | None) -> str:
    if crossed is None or crossed <= DRAWN_IN_PAPER:
        return ""
    return f". That is beyond the paper's axis, which ends at {DRAWN_IN_PAPER:g}"


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(2)
    for axis, what, label in zip(axes, ("mean", "p99"), ("mean latency (s)", "p99 latency (s)"), strict=True):
        draw_sweep(axis, data, what)
        axis.set(xlabel="requests/s, all models together", ylabel=label, ylim=(0, None))
    save(figure, path)
