"""Figure 6b: batching with a timeout against deferred batching, for one model and for the zoo.

The paper does not say whose ResNet50 it is; we take Table 2's (8 GPUs as there), with 50 ms. Its timeout,
exec = max(now, a + k), may hold a batch until it is too late; ours sends it at the last start that keeps
its first deadline. So where the paper's single-model curve drops, ours levels off.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.symphony._settings import RESNET50, goodput, scenario

TITLE = "Timeout batching relative to deferred, by timeout (Figure 6b)"
SINGLE = "ResNet50, 50 ms, 8 GPUs"
ZOO = "37 models, 64 GPUs"
GATHERS = ("window", "fcfs")
REACHED = 97.0  # percent of deferred: "can reach the same goodput"
MUCH_LOWER = 85.0
FCFS_NOTE = (
    "with fcfs only heads that are lost anyway are dropped, and on the zoo sending at once does as "
    "well as holding back: what deferral gains there comes with the gather that the authors run (window)"
)


def run(effort: Effort) -> Findings:
    percents = effort.pick([0, 12.5, 40], [0, 2.5, 5, 7.5, 10, 12.5, 15, 17.5, 20, 25, 30, 40])
    curves: dict[str, dict[str, list[float]]] = {}
    for name in (SINGLE, ZOO):
        curves[name] = {gather: _relative(name, gather, percents, effort) for gather in GATHERS}
    data = {"timeout": percents, "percent": curves}
    return Findings(_rows(percents, curves), _claims(curves), data)


def _case(name: str, policy: dict[str, Any], effort: Effort) -> Any:
    if name == SINGLE:
        return scenario({"ResNet50": {**RESNET50, "slo": "50ms"}}, 8, policy, effort.pick(6, 60))
    return scenario("zoo:A100", 64, policy, effort.pick(2, 20))


def _relative(name: str, gather: str, timeouts: list[float], effort: Effort) -> list[float]:
    """Return goodput with each timeout (percent of the SLO) in percent of deferred goodput."""
    deferred = {"name": "deferred", "gather": gather}
    best = goodput(_case(name, deferred, effort), effort, f"{name}: deferred, {gather}").goodput
    ratios = []
    for timeout in timeouts:
        policy = {"name": "timeout", "timeout": f"{timeout}%", "gather": gather}
        label = f"{name}: timeout {timeout} %, {gather}"
        ratios.append(100 * goodput(_case(name, policy, effort), effort, label).goodput / best)
    return ratios


def _rows(timeouts: list[float], curves: dict[str, dict[str, list[float]]]) -> list[Row]:
    """The paper prints no percentage for this figure."""
    rows = []
    for name, by_gather in curves.items():
        for gather, percents in by_gather.items():
            at = timeouts[percents.index(max(percents))]
            note = f"at a timeout of {at} % of the SLO; none (eager) gives {percents[0]:.1f} %"
            rows.append(
                Row(f"{name}, {gather}: best timeout of deferred", max(percents), unit="%", note=note)
            )
    return rows


def _claims(curves: dict[str, dict[str, list[float]]]) -> list[Claim]:
    claims = []
    for gather in GATHERS:
        single = curves[SINGLE][gather]
        zoo = curves[ZOO][gather]
        claims += [
            _rises_and_falls(SINGLE, gather, single),
            _rises_and_falls(ZOO, gather, zoo),
            Claim(
                f"one model: the best timeout reaches deferred ({gather})",
                max(single) >= REACHED,
                f"{max(single):.1f} % of deferred",
            ),
            Claim(
                f"the mix: every timeout stays much lower than deferred ({gather})",
                max(zoo) < MUCH_LOWER,
                f"the best reaches {max(zoo):.1f} %" + (f"; {FCFS_NOTE}" if gather == "fcfs" else ""),
            ),
        ]
    return claims


def _rises_and_falls(name: str, gather: str, percents: list[float]) -> Claim:
    best = percents.index(max(percents))
    between = 0 < best < len(percents) - 1
    margin = max(percents) - max(percents[0], percents[-1])
    note = f"none {percents[0]:.1f} %, best {max(percents):.1f} %, longest {percents[-1]:.1f} %"
    if gather == "fcfs":
        note += "; fcfs gives up only what is lost anyway, so sending at once costs little there"
    return Claim(f"{name}: a timeout first helps, then hurts ({gather})", between and margin > 1, note)


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(2)
    for axis, gather in zip(axes, GATHERS, strict=True):
        for name, by_gather in data["percent"].items():
            axis.plot(data["timeout"], by_gather[gather], marker="o", label=name)
        axis.axhline(100, color="black", linewidth=1, linestyle="--", label="deferred")
        axis.set(xlabel="timeout (% of the SLO)", ylabel="goodput, % of deferred", ylim=(0, 115))
        axis.set_title(f"gather: {gather}")
        axis.legend(loc="lower left")
    save(figure, path)
