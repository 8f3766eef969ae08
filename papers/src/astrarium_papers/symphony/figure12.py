"""Figure 12: how long requests wait before their batch starts, at each system's own goodput."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.symphony._at_goodput import AtGoodput, Case, measure, percentiles
from astrarium_papers.symphony._settings import SYSTEMS, TABLE2

TITLE = "Queueing delay at each system's goodput, 8 GPUs (Figure 12)"
SLO_MS = {"ResNet50": 25.0, "InceptionResNetV2": 70.0}
LONGEST = 99  # percentile: the very longest wait of a long run says more about the run than the system


def run(effort: Effort) -> Findings:
    runs = measure(effort)
    data = _waits(runs, False)
    delayed = _waits(runs, True)
    rows = [row for model in TABLE2 for row in _rows(model, data[model], delayed[model])]
    return Findings(rows, _claims(data), data)


def _waits(runs: dict[Case, AtGoodput], delayed: bool) -> dict[str, Any]:
    return {
        model: {system: _one(runs[Case(model, system, delayed)]) for system in SYSTEMS} for model in TABLE2
    }


def _one(runs: AtGoodput) -> dict[str, Any]:
    waits = runs.waits_ms
    return {"rate": runs.rate, "mean_ms": float(waits.mean()), "percentiles_ms": percentiles(waits)}


def _rows(model: str, systems: dict[str, Any], delayed: dict[str, Any]) -> list[Row]:
    """The text says "2x to 3x shorter", not which waits; so both the median and the longest."""
    rows = []
    for rival in ("Nexus", "Clockwork"):
        for what, percent in (("median", 50), ("longest", LONGEST)):
            times, then = (
                _wait(some, rival, percent) / _wait(some, "Symphony", percent) for some in (systems, delayed)
            )
            note = f"{then:.2f}x with the network delays of the authors' code, which lengthen every wait"
            what = f"{model}: {what} wait, {rival} over Symphony"
            rows.append(Row(what, times, (2, 3), "x", 0.15, note))
    share = _wait(systems, "Nexus", LONGEST) / SLO_MS[model]
    rows.append(Row(f"{model}: Nexus's longest wait over the SLO", share, 0.5, tolerance=0.15))
    return rows


def _wait(systems: dict[str, Any], system: str, percent: int) -> float:
    return float(systems[system]["percentiles_ms"][percent])


def _claims(data: dict[str, Any]) -> list[Claim]:
    resnet = data["ResNet50"]
    clockwork, nexus = (_wait(resnet, name, LONGEST) for name in ("Clockwork", "Nexus"))
    shepherd = {
        model: systems["Shepherd"]["mean_ms"] / systems["Symphony"]["mean_ms"]
        for model, systems in data.items()
    }
    return [
        Claim(
            "Clockwork's longest wait on ResNet50 does not improve over Nexus's",
            clockwork >= 0.9 * nexus,
            f"{clockwork:.1f} ms, Nexus {nexus:.1f} ms; less than 10 % shorter counts as no better",
        ),
        Claim(
            "Shepherd's wait is comparable to Symphony's",
            all(0.5 < times < 2 for times in shepherd.values()),
            ", ".join(f"{model}: its mean is {times:.2f}x" for model, times in shepherd.items()),
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import SYSTEM_COLORS, axes_row, save

    figure, axes = axes_row(len(data))
    for axis, (model, systems) in zip(axes, data.items(), strict=True):
        shares = [percent / 100 for percent in range(101)]
        for system, waits in systems.items():
            axis.plot(waits["percentiles_ms"], shares, label=system, color=SYSTEM_COLORS[system])
        axis.axvline(SLO_MS[model] / 2, color="#666666", lw=1, ls="--", label="half the SLO")
        axis.set(title=model, xlabel="queueing delay (ms)", ylabel="share of requests", ylim=(0, 1.02))
        axis.set_xlim(0, SLO_MS[model])
        axis.legend(fontsize=8)
    save(figure, path)
