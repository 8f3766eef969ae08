"""Figure 12: how long requests wait before their batch starts, at each system's own goodput."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium.reproduce.findings import Claim, Effort, Findings, Row
from astrarium.reproduce.symphony._at_goodput import measure, percentiles
from astrarium.reproduce.symphony._settings import TABLE2

TITLE = "Queueing delay at each system's goodput, 8 GPUs (Figure 12)"
SLO_MS = {"ResNet50": 25.0, "InceptionResNetV2": 70.0}
LONGEST = 99  # percentile: the very longest wait of a long run says more about the run than the system
NOTES: dict[tuple[str, str], str] = {}


def run(effort: Effort) -> Findings:
    data: dict[str, Any] = {model: {} for model in TABLE2}
    for (model, system), runs in measure(effort).items():
        data[model][system] = {
            "rate": runs.rate,
            "mean_ms": float(runs.waits_ms.mean()),
            "percentiles_ms": percentiles(runs.waits_ms),
        }
    rows = [row for model, systems in data.items() for row in _rows(model, systems)]
    return Findings(rows, _claims(data), data)


def _rows(model: str, systems: dict[str, Any]) -> list[Row]:
    rows = []
    for rival in ("Nexus", "Clockwork"):
        note = NOTES.get((model, rival), "")
        for what, percent in (("median", 50), ("longest", LONGEST)):
            times = _wait(systems, rival, percent) / _wait(systems, "Symphony", percent)
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
            f"{clockwork:.1f} ms, Nexus {nexus:.1f} ms",
        ),
        Claim(
            "Shepherd's wait is comparable to Symphony's",
            all(0.5 < times < 2 for times in shepherd.values()),
            ", ".join(f"{model}: its mean is {times:.2f}x" for model, times in shepherd.items()),
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium.reproduce.drawing import SYSTEM_COLORS, axes_row, save

    figure, axes = axes_row(len(data))
    for axis, (model, systems) in zip(axes, data.items(), strict=True):
        shares = [percent / 100 for percent in range(101)]
        for system, found in systems.items():
            axis.plot(found["percentiles_ms"], shares, label=system, color=SYSTEM_COLORS[system])
        axis.axvline(SLO_MS[model] / 2, color="#666666", lw=1, ls="--", label="half the SLO")
        axis.set(title=model, xlabel="queueing delay (ms)", ylabel="share of requests", ylim=(0, 1.02))
        axis.set_xlim(0, SLO_MS[model])
        axis.legend(fontsize=8)
    save(figure, path)
