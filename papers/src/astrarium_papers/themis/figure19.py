"""Figure 19: the fairness knob f and the length of leases, on 256 GPUs.

The worst 1 - f of the apps bid, and at least one. What the lease does to GPU time is what starts cost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium.cluster.report.summary import DEFINITIONS
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.themis._runs import SETTINGS as SETTINGS
from astrarium_papers.themis._runs import over
from astrarium_papers.themis._sweeps import over_settings

TITLE = "The largest rho and GPU time by f and by lease, 256 GPUs (Figure 19)"
KNOBS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
LEASES = (5, 10, 20, 40)  # minutes
BEYOND = 1.5  # how much worse f = 1 is than 0.8
FEW = "one bidder gets all that it can use, so that apps take turns; leftovers by chance even it out"


def run(effort: Effort) -> Findings:
    knobs, leases = effort.pick(((0.0, 0.8, 1.0), (5, 20)), (KNOBS, LEASES))
    settings: list[dict[str, Any]] = [{"f": knob} for knob in knobs]
    settings += [{"f": 0.8, "lease": f"{lease}min"} for lease in leases]
    sweeps = over_settings(settings, effort, seeds=5)
    data = {
        what: {
            "f": {f"{knob:g}": sweep[what] for knob, sweep in zip(knobs, sweeps, strict=False)},
            "lease": {
                f"{lease}": sweep[what] for lease, sweep in zip(leases, sweeps[len(knobs) :], strict=True)
            },
        }
        for what in (*DEFINITIONS, "hours")
    }
    return Findings(_rows(data), _claims(data), data)


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for definition in DEFINITIONS:
        by_f = data[definition]["f"]
        beyond = over(after / at for after, at in zip(by_f["1"], by_f["0.8"], strict=True))
        what = f"{definition}: largest rho with f = 1 over f = 0.8"
        rows.append(Row(what, beyond.median, BEYOND, "x", 0.2, f"{beyond}; {FEW}"))
    for what, knobs in data.items():
        named = "GPU time" if what == "hours" else f"{what}: largest rho"
        for knob, values in knobs.items():
            for value, numbers in values.items():
                spread = over(numbers)
                unit = "h" if what == "hours" else ""
                setting = f"f = {value}" if knob == "f" else f"leases of {value} min"
                rows.append(Row(f"{named}, {setting}", spread.median, unit=unit, note=f"{spread}"))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    claims = [claim for definition in DEFINITIONS for claim in _fairness(data[definition], definition)]
    hours = {knob: _medians(values) for knob, values in data["hours"].items()}
    first, last = _ends(hours["f"])
    short, long = _ends(hours["lease"])
    return [
        *claims,
        Claim("GPU time grows with f", last > first, f"{first:,.0f} h to {last:,.0f} h"),
        Claim("longer leases take less GPU time", long < short, f"{short:,.0f} h to {long:,.0f} h"),
    ]


def _fairness(knobs: dict[str, Any], definition: str) -> list[Claim]:
    by_f = _medians(knobs["f"])
    by_lease = _medians(knobs["lease"])
    short, long = _ends(by_lease)
    note = ", ".join(f"{knob} {worst:.2f}" for knob, worst in by_f.items())
    leases = ", ".join(f"{lease} min {worst:.2f}" for lease, worst in by_lease.items())
    return [
        Claim(f"{definition}: f = 0.8 is better than f = 0", by_f["0.8"] < by_f["0"], note),
        Claim(f"{definition}: f = 1 is worse than f = 0.8", by_f["1"] > by_f["0.8"], note),
        Claim(f"{definition}: shorter leases are fairer", short < long, leases),
    ]


def _medians(values: dict[str, list[float]]) -> dict[str, float]:
    return {value: over(numbers).median for value, numbers in values.items()}


def _ends(values: dict[str, float]) -> tuple[float, float]:
    ends = list(values.values())
    return ends[0], ends[-1]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(4, 3.6)
    for place, knob in enumerate(("f", "lease")):
        for definition in DEFINITIONS:
            values = _medians(data[definition][knob])
            axes[2 * place].plot(list(values), list(values.values()), "o-", label=definition)
        values = _medians(data["hours"][knob])
        axes[2 * place + 1].plot(list(values), list(values.values()), "o-")
        label = "f" if knob == "f" else "lease (min)"
        axes[2 * place].set(xlabel=label, ylabel="largest rho")
        axes[2 * place + 1].set(xlabel=label, ylabel="GPU time (h)")
    axes[0].legend(fontsize=8)
    save(figure, path)
