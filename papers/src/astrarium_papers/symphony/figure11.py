"""Figure 11: goodput against the latency objective, for even and uneven popularity, smooth and bursty
arrivals."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.symphony._settings import RESNET50, SYSTEMS, goodput, scenario

TITLE = "Goodput against the SLO, 20 ResNet50-like models, 32 GPUs (Figure 11)"
GPUS = 32
COPIES = 20
SLOS_MS = (15, 20, 25, 35, 50, 100)
RIVALS = [system for system in SYSTEMS if system != "Symphony"]
SETTINGS: dict[str, dict[str, Any]] = {
    "equal, Poisson": {"popularity": "equal"},
    "Zipf 0.9, Poisson": {"popularity": {"zipf": 0.9}},
    "equal, Gamma 0.05": {"popularity": "equal", "arrivals": "gamma", "shape": 0.05},
    "Zipf 0.9, Gamma 0.05": {"popularity": {"zipf": 0.9}, "arrivals": "gamma", "shape": 0.05},
}


class Case(NamedTuple):
    setting: str
    system: str
    slo_ms: int


def run(effort: Effort) -> Findings:
    slos = effort.pick((20, 100), SLOS_MS)
    settings = effort.pick(("equal, Poisson", "equal, Gamma 0.05"), tuple(SETTINGS))
    cases = [Case(setting, system, slo) for setting in settings for system in SYSTEMS for slo in slos]
    goodputs = dict(zip(cases, effort.map(lambda case: _goodput(case, effort), cases), strict=True))
    seeds = {
        setting: {system: [goodputs[Case(setting, system, slo)] for slo in slos] for system in SYSTEMS}
        for setting in settings
    }
    curves = {
        setting: {system: [sum(rates) / len(rates) for rates in by_slo] for system, by_slo in systems.items()}
        for setting, systems in seeds.items()
    }
    data = {"slos_ms": list(slos), "settings": curves, "by_seed": seeds}
    return Findings(_rows(data), _claims(curves), data)


def _goodput(case: Case, effort: Effort) -> list[float]:
    """Return the goodput for each seed."""
    copies, gpus, seconds, warmup = effort.pick((4, 4, 0.4, 0.1), (COPIES, GPUS, 8, 2))
    models = {"ResNet50": {"profile": RESNET50["profile"], "slo": f"{case.slo_ms}ms", "copies": copies}}
    policy = SYSTEMS[case.system]
    setting = scenario(models, gpus, policy, seconds, warmup_s=warmup, **SETTINGS[case.setting])
    label = f"{case.setting}, {case.slo_ms} ms: {case.system}"
    return goodput(setting, effort, label, effort.pick(1, 2), effort.pick(0.1, 0.01)).per_seed


def _rows(data: dict[str, Any]) -> list[Row]:
    """The paper printed no numbers for this figure."""
    rows = []
    for setting, systems in data["settings"].items():
        for place in (0, -1):
            what = f"{setting}, {data['slos_ms'][place]} ms: Symphony over the best other"
            note = _by_seed(data["by_seed"][setting], place)
            rows.append(Row(what, _gain(systems, place), unit="x", note=note))
    return rows


def _by_seed(systems: dict[str, list[list[float]]], place: int) -> str:
    """Return Symphony's goodput and the best other's, as each seed found it."""
    best = max(RIVALS, key=lambda rival: sum(systems[rival][place]))
    rates = {system: [f"{rate:,.0f}" for rate in systems[system][place]] for system in ("Symphony", best)}
    return ", ".join(f"{system} {' and '.join(goodputs)} r/s" for system, goodputs in rates.items())


def _gain(systems: dict[str, list[float]], place: int) -> float:
    return systems["Symphony"][place] / max(1.0, *(systems[rival][place] for rival in RIVALS))


def _claims(curves: dict[str, Any]) -> list[Claim]:
    gains = {setting: [_gain(systems, place) for place in (0, -1)] for setting, systems in curves.items()}
    bursty = {setting: _kept(curves, setting) for setting in curves if "Gamma" in setting}
    return [
        Claim(
            "with tight SLOs Symphony gains much, in all four settings",
            all(tight > 1.1 for tight, _ in gains.values()),
            _listed({setting: f"{tight:.2f}x the best other" for setting, (tight, _) in gains.items()}),
        ),
        Claim(
            "bursts cost Nexus more than the others",
            all(kept["Nexus"] == min(kept.values()) for kept in bursty.values()),
            _listed({setting: _shares(kept) for setting, kept in bursty.items()}),
        ),
        Claim(
            "with loose SLOs all systems do well",
            all(_least(systems) > 0.7 for systems in curves.values()),
            _listed({setting: _worst(systems) for setting, systems in curves.items()})
            + "; we suspect that Nexus's replicas cannot help one another when a burst hits a model",
        ),
    ]


def _kept(curves: dict[str, Any], bursty: str) -> dict[str, float]:
    """Return what each system keeps of its goodput when Poisson arrivals become bursty, the mean over the
    SLOs."""
    smooth = curves[bursty.replace("Gamma 0.05", "Poisson")]
    kept = {}
    for system, rates in curves[bursty].items():
        kept[system] = sum(rates) / max(1.0, sum(smooth[system]))
    return kept


def _least(systems: dict[str, list[float]]) -> float:
    """Return the worst system's share of the best one's goodput, at the loosest SLO."""
    return min(rates[-1] for rates in systems.values()) / max(rates[-1] for rates in systems.values())


def _worst(systems: dict[str, list[float]]) -> str:
    worst = min(systems, key=lambda system: systems[system][-1])
    return f"{worst} has {_least(systems):.0%} of the best"


def _listed(notes: dict[str, str]) -> str:
    return "; ".join(f"{setting}: {note}" for setting, note in notes.items())


def _shares(kept: dict[str, float]) -> str:
    return ", ".join(f"{system} keeps {share:.0%}" for system, share in kept.items())


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import SYSTEM_COLORS, axes_row, save

    figure, axes = axes_row(len(data["settings"]), 3.8)
    for axis, (setting, systems) in zip(axes, data["settings"].items(), strict=True):
        for system, rates in systems.items():
            thousands = [rate / 1000 for rate in rates]
            axis.plot(data["slos_ms"], thousands, ".-", label=system, color=SYSTEM_COLORS[system])
        axis.set(title=setting, xlabel="SLO (ms)", ylim=(0, None), xlim=(0, None))
    axes[0].set(ylabel="goodput (1000 requests/s)")
    axes[0].legend(fontsize=8)
    save(figure, path)
