"""Figure 4.14: how short requests may be before the scheduler's own time costs finish rate. Three modes.

A simulated scheduler takes no time. We charge every decision with OVERHEAD, as the delay of its order to the
GPU: what a decision of the paper's scheduler takes is not printed, but an insertion takes less than that.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev
from typing import Any

from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.orloj._finish import finish_rates, requests, scenario
from astrarium_papers.orloj._settings import SYSTEMS
from astrarium_papers.orloj._tables import MULTIPLES
from astrarium_papers.orloj._workloads import modes

TITLE = "Finish rates with short requests (Figure 4.14)"
OVERHEAD = "0.5ms"
P99S_MS = (160.0, 80.0, 40.0, 20.0, 10.0, 5.0, 2.5)
SHORTEST_MS = 20.0  # where the paper's finish rates start to fall
STABLE = 0.05  # a smaller loss is none


def run(effort: Effort) -> Findings:
    p99s = effort.pick([160.0, 20.0, 2.5], list(P99S_MS))
    multiples = effort.pick([1.5, 3.0], list(MULTIPLES))
    work = [(multiple, p99) for multiple in multiples for p99 in p99s]
    rates = dict(zip(work, effort.map(lambda case: _point(*case, effort), work), strict=True))
    curves = {str(multiple): [rates[multiple, p99] for p99 in p99s] for multiple in multiples}
    data = {"p99_ms": p99s, "multiples": multiples, "points": curves}
    return Findings(_rows(data), _claims(data), data)


def _point(multiple: float, p99_ms: float, effort: Effort) -> dict[str, float]:
    effort.say(f"P99 {p99_ms:g} ms, {multiple:g}x")
    case = modes(3, scale=p99_ms / modes(3).p99_ms)
    network = {"control": OVERHEAD}
    setting = scenario(case, multiple, SYSTEMS["Orloj"], requests(effort), network=network)
    rates = finish_rates(setting, effort)
    return {"mean": mean(rates), "std": stdev(rates)}


def _losses(data: dict[str, Any]) -> list[float]:
    """Return, for each P99, the largest loss over the SLOs against the longest requests."""
    curves = [[point["mean"] for point in points] for points in data["points"].values()]
    return [max(curve[0] - curve[place] for curve in curves) for place in range(len(data["p99_ms"]))]


def _shortest(data: dict[str, Any]) -> float:
    """Return the least P99 down to which nothing is lost."""
    kept = data["p99_ms"][0]
    for p99, loss in zip(data["p99_ms"], _losses(data), strict=True):
        if loss > STABLE:
            break
        kept = p99
    return float(kept)


def _rows(data: dict[str, Any]) -> list[Row]:
    losses = zip(data["p99_ms"], _losses(data), strict=True)
    listed = ", ".join(f"{p99:g} ms: {loss:.2f}" for p99, loss in losses)
    note = f"every decision takes {OVERHEAD}; largest loss over the SLOs by P99 {listed}"
    what = f"shortest P99 with no more than {STABLE} lost"
    return [Row(what, _shortest(data), SHORTEST_MS, "ms", 0.5, note)]


def _claims(data: dict[str, Any]) -> list[Claim]:
    losses = dict(zip(data["p99_ms"], _losses(data), strict=True))
    longer = max(loss for p99, loss in losses.items() if p99 > SHORTEST_MS)
    shortest = data["p99_ms"][-1]
    return [
        Claim(
            "finish rates are stable while the P99 is well above 20 ms",
            longer <= STABLE,
            f"at most {longer:.2f} lost",
        ),
        Claim(
            "they fall when requests get shorter than that",
            losses[shortest] > STABLE,
            f"{losses[shortest]:.2f} lost at a P99 of {shortest:g} ms",
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, (axis,) = axes_row(1)
    for multiple in data["multiples"]:
        points = data["points"][str(multiple)]
        means, stds = ([point[name] for point in points] for name in ("mean", "std"))
        axis.errorbar(data["p99_ms"], means, stds, capsize=2, label=f"{multiple:g}x")
    axis.axvline(SHORTEST_MS, color="#999999", ls=":", lw=1)
    axis.set(xscale="log", xlabel="P99 of execution times (ms)", ylabel="finish rate", ylim=(0, 1.05))
    axis.legend(title="SLO over P99", fontsize=8)
    save(figure, path)
