"""Figure 4.13: how much the finish rate depends on b, the rate of the anticipated delay. Three modes."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev
from typing import Any

from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.orloj._finish import finish_rates, requests, scenario
from astrarium_papers.orloj._settings import SYSTEMS
from astrarium_papers.orloj._tables import MULTIPLES
from astrarium_papers.orloj._workloads import modes

TITLE = "Finish rates by the anticipated delay's parameter b (Figure 4.13)"
RATES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # per millisecond
STABLE = 0.05


def run(effort: Effort) -> Findings:
    rates = effort.pick([1e-6, 1e-1], list(RATES))
    multiples = effort.pick([1.5, 3.0], list(MULTIPLES))
    work = [(multiple, rate) for multiple in multiples for rate in rates]
    reached = dict(zip(work, effort.map(lambda case: _point(*case, effort), work), strict=True))
    curves = {str(multiple): [reached[multiple, rate] for rate in rates] for multiple in multiples}
    data = {"b": rates, "multiples": multiples, "points": curves}
    return Findings(_rows(data), [_claim(data)], data)


def _point(multiple: float, rate: float, effort: Effort) -> dict[str, float]:
    effort.say(f"b {rate:g}, {multiple:g}x")
    system = SYSTEMS["Orloj"]
    system = system._replace(policy={**system.policy, "b": rate})
    rates = finish_rates(scenario(modes(3), multiple, system, requests(effort)), effort)
    return {"mean": mean(rates), "std": stdev(rates)}


def _spread(points: list[dict[str, float]]) -> float:
    means = [point["mean"] for point in points]
    return max(means) - min(means)


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for multiple in data["multiples"]:
        points = data["points"][str(multiple)]
        listed = ", ".join(f"{b:g}: {point['mean']:.2f}" for b, point in zip(data["b"], points, strict=True))
        what = f"{multiple:g}x: largest difference between values of b"
        rows.append(Row(what, _spread(points), note=f"the paper prints none; ours by b {listed}"))
    return rows


def _claim(data: dict[str, Any]) -> Claim:
    spreads = {multiple: _spread(data["points"][str(multiple)]) for multiple in data["multiples"]}
    note = "at most " + ", ".join(f"{spread:.2f} at {multiple:g}x" for multiple, spread in spreads.items())
    return Claim("the finish rate does not depend on b", max(spreads.values()) <= STABLE, note)


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, (axis,) = axes_row(1)
    for multiple in data["multiples"]:
        points = data["points"][str(multiple)]
        means, stds = ([point[name] for point in points] for name in ("mean", "std"))
        axis.errorbar(data["b"], means, stds, capsize=2, label=f"{multiple:g}x")
    axis.set(xscale="log", xlabel="b (per millisecond)", ylabel="finish rate", ylim=(0, 1.05))
    axis.legend(title="SLO over P99", fontsize=8)
    save(figure, path)
