"""Figure 6a: eager batching against deferred batching as the batching effect grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.symphony._settings import goodput, scenario

TITLE = "Eager batching relative to deferred, by batching effect (Figure 6a)"
GPUS = 32
MODELS = 10
ALPHA_MS = 1
GATHERS = ("window", "fcfs")
NAMES = {
    "window": "drops heads for a target size (window)",
    "fcfs": "takes from the head (fcfs)",
}
SAME = 3.0  # percent: "nearly the same"
NOTE = {
    "window": "the gather that the authors run",
    "fcfs": "collapses rather than degrades when overloaded, so its goodput falls with longer runs",
}


def run(effort: Effort) -> Findings:
    betas = effort.pick([1, 15], [1, 2, 3, 4, 5, 6, 8, 10, 12, 15])
    curves: dict[str, list[float]] = {gather: [] for gather in GATHERS}
    for gather in GATHERS:
        for beta in betas:
            curves[gather].append(_percent(beta, gather, effort))
    return Findings(_rows(betas, curves), _claims(betas, curves), {"beta": betas, "percent": curves})


def _percent(beta_ms: int, gather: str, effort: Effort) -> float:
    """Return eager goodput in percent of deferred goodput."""
    profile = {"alpha": f"{ALPHA_MS}ms", "beta": f"{beta_ms}ms"}
    slo_ms = 2 * (8 * ALPHA_MS + beta_ms)
    models = {"model": {"profile": profile, "slo": f"{slo_ms}ms", "copies": MODELS}}
    percents = {}
    for policy in ("eager", "deferred"):
        case = scenario(models, GPUS, {"name": policy, "gather": gather}, effort.pick(3, 30))
        label = f"beta {beta_ms} ms: {policy}, {gather}"
        percents[policy] = goodput(case, effort, label).goodput
    return 100 * percents["eager"] / percents["deferred"]


def _rows(betas: list[int], curves: dict[str, list[float]]) -> list[Row]:
    """The paper prints no percentage for this figure."""
    return [
        Row(f"beta {beta} ms, {gather}: eager of deferred", percent, unit="%", note=NOTE[gather])
        for gather, percents in curves.items()
        for beta, percent in zip(betas, percents, strict=True)
        if beta in (1, 5, 10, 15)
    ]


def _claims(betas: list[int], curves: dict[str, list[float]]) -> list[Claim]:
    claims = []
    for gather, percents in curves.items():
        first = percents[0]
        last = percents[-1]
        claims += [
            Claim(
                f"nearly the same goodput at beta/alpha = 1 ({gather})",
                abs(first - 100) <= SAME,
                f"eager reaches {first:.1f} % of deferred",
            ),
            Claim(
                f"the stronger the batching effect, the larger deferred's advantage ({gather})",
                _falls(percents) and last < first - SAME,
                f"from {first:.1f} % at beta {betas[0]} ms down to {last:.1f} % at {betas[-1]} ms",
            ),
        ]
    return claims


def _falls(percents: list[float], noise: float = 1.5) -> bool:
    """Return whether no later point stands above an earlier one by more than the noise of the searches
    (percent)."""
    lowest = percents[0]
    for percent in percents:
        if percent > lowest + noise:
            return False
        lowest = min(lowest, percent)
    return True


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, (axis,) = axes_row(1, width=6)
    for gather, percents in data["percent"].items():
        axis.plot(data["beta"], percents, marker="o", label=f"eager, {NAMES[gather]}")
    axis.axhline(100, color="black", linewidth=1, linestyle="--", label="deferred, the same gather")
    axis.set(xlabel="beta (ms), alpha = 1 ms", ylabel="goodput, % of deferred", ylim=(0, 110))
    axis.set_title(f"{MODELS} models on {GPUS} GPUs, SLO 2 l(8), Poisson")
    axis.legend(loc="lower left")
    save(figure, path)
