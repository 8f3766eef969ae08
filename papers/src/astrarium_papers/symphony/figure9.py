"""Figure 9: goodput on the model zoos, all models, those that gain much from batching, and the others."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from astrarium.serving import zoo
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.symphony._settings import FAULTY_SHEPHERD, SYSTEMS, goodput, scenario

TITLE = "Goodput on the model zoos, 64 GPUs (Figure 9)"
ZOOS = ("1080Ti", "A100")
SETS = ("Mixed", "Strong", "Weak")
STRONG = 2  # beta / alpha above this: batching pays
FRONTENDS = "Nexus, 8 frontends"
FAULTY = "Shepherd with its authors' fault"
COMPARED = {
    "Symphony": SYSTEMS["Symphony"],
    "Clockwork": SYSTEMS["Clockwork"],
    "Nexus": SYSTEMS["Nexus"],
    FRONTENDS: {"name": "nexus", "frontends": 8},
    "Shepherd": SYSTEMS["Shepherd"],
    FAULTY: FAULTY_SHEPHERD,
}
DRAWN = tuple(system for system in COMPARED if system != FAULTY)  # as in the paper
BASELINES = ("Clockwork", "Nexus", "Shepherd")
# Symphony's goodput over that of the baselines, as the text has it.
PAPER: dict[tuple[str, str], float | tuple[float, float]] = {
    ("1080Ti", "Mixed"): (2.0, 2.4),
    ("A100", "Mixed"): (2.0, 2.4),
    ("1080Ti", "Strong"): 3.5,
    ("A100", "Strong"): 5.7,
    ("1080Ti", "Weak"): 1.23,
    ("A100", "Weak"): 1.10,
}
FRONTEND_LOSS = (0.11, 0.45)
FRONTEND_NOTES = {
    "higher": "goodput ends where the first model misses: here those whose SLO hardly holds two batches of "
    "one (DenseNet121, ResNet152), which suffer most when frontends do not space their requests",
    "lower": "goodput ends where the first model misses, which depends on what Nexus packs with what at "
    "that rate as much as on the frontends",
}


class Case(NamedTuple):
    gpu: str
    models: str
    system: str


def members(gpu: str, which: str) -> list[str]:
    """Return the models of a zoo that belong to Mixed, Strong or Weak."""
    profiles = {name: zoo.lookup(gpu, name) for name in zoo.models(gpu)}
    strong = [name for name, profile in profiles.items() if profile.beta > STRONG * profile.alpha]
    if which == "Strong":
        return strong
    return [name for name in profiles if which == "Mixed" or name not in strong]


def run(effort: Effort) -> Findings:
    zoos = effort.pick(("A100",), ZOOS)
    cases = [Case(gpu, models, system) for gpu in zoos for models in SETS for system in COMPARED]
    goodputs = dict(zip(cases, effort.map(lambda case: _goodput(case, effort), cases), strict=True))
    data: dict[str, Any] = {
        gpu: {models: {system: goodputs[Case(gpu, models, system)] for system in COMPARED} for models in SETS}
        for gpu in zoos
    }
    rows = [row for gpu in zoos for models in SETS for row in _rows(gpu, models, data[gpu][models])]
    return Findings(rows, _claims(data), data)


def _goodput(case: Case, effort: Effort) -> float:
    names = members(case.gpu, case.models)[:: effort.pick(7, 1)]
    models = {name: {"profile": f"zoo:{case.gpu}/{name}"} for name in names}
    gpus, seconds, warmup = effort.pick((8, 0.4, 0.1), (64, 10 if case.models == "Strong" else 20, 2))
    setting = scenario(models, gpus, COMPARED[case.system], seconds, warmup_s=warmup)
    label = f"{case.gpu} {case.models}: {case.system}"
    return goodput(setting, effort, label, tolerance=effort.pick(0.1, 0.005)).goodput


def _rows(gpu: str, models: str, goodputs: dict[str, float]) -> list[Row]:
    best = max(BASELINES, key=lambda system: goodputs[system])
    gain = Row(
        f"{gpu} {models}: Symphony over the best baseline ({best})",
        _over(goodputs, best),
        PAPER[gpu, models],
        "x",
        tolerance=0.1,
        note=_gain_note(goodputs, PAPER[gpu, models]),
    )
    return [
        Row(f"{gpu} {models}: Symphony", goodputs["Symphony"], unit="r/s"),
        gain,
        _frontends(f"{gpu} {models}", goodputs),
    ]


def _gain_note(goodputs: dict[str, float], paper: float | tuple[float, float]) -> str:
    """The paper does not say which baseline its number is about."""
    middle = sum(paper) / 2 if isinstance(paper, tuple) else paper
    closest = min(BASELINES, key=lambda system: abs(math.log(_over(goodputs, system) / middle)))
    return f"{_times(goodputs)}; of the baselines {closest} comes closest to the paper's number"


def _frontends(what: str, goodputs: dict[str, float]) -> Row:
    loss = 1 - goodputs[FRONTENDS] / max(goodputs["Nexus"], 1.0)
    row = Row(f"{what}: what 8 frontends cost Nexus", loss, FRONTEND_LOSS, tolerance=0.1)
    return msgspec.structs.replace(row, note=FRONTEND_NOTES.get(row.verdict, ""))


def _over(goodputs: dict[str, float], system: str) -> float:
    """Return how many times that system's goodput Symphony has; nothing counts as one request/s."""
    return goodputs["Symphony"] / max(goodputs[system], 1.0)


def _times(goodputs: dict[str, float]) -> str:
    return ", ".join(f"{_over(goodputs, system):.2f}x {system}" for system in (*BASELINES, FRONTENDS, FAULTY))


def _claims(data: dict[str, Any]) -> list[Claim]:
    best = all(
        _over(goodputs, system) >= 1
        for sets in data.values()
        for goodputs in sets.values()
        for system in BASELINES
    )
    ordered = {system: all(_ordered(sets, system) for sets in data.values()) for system in BASELINES}
    note = ", ".join(f"{system} {'yes' if holds else 'no'}" for system, holds in ordered.items())
    return [
        Claim("Symphony has the highest goodput in every setting", best),
        Claim(
            "its advantage is largest where batching pays and smallest where it does not",
            all(ordered.values()),
            f"Strong over Mixed over Weak, by the advantage over {note}; we suspect that a mix is held back "
            "by its first model to miss, which weighs on the systems that plan or queue for each model alone",
        ),
    ]


def _ordered(sets: dict[str, Any], system: str) -> bool:
    return _over(sets["Strong"], system) >= _over(sets["Mixed"], system) >= _over(sets["Weak"], system)


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import SYSTEM_COLORS, axes_row, save

    figure, axes = axes_row(len(data), 6.5)
    for axis, (gpu, sets) in zip(axes, data.items(), strict=True):
        for place, system in enumerate(DRAWN):
            at = [group + (place - 2) * 0.17 for group in range(len(sets))]
            rates = [goodputs[system] / 1000 for goodputs in sets.values()]
            bars = axis.bar(at, rates, 0.16, label=system, color=SYSTEM_COLORS[system])
            axis.bar_label(bars, [f"{rate:.1f}" for rate in rates], fontsize=6.5, padding=1)
        axis.set_xticks(range(len(sets)), list(sets))
        axis.set(title=gpu, ylabel="goodput (1000 requests/s)")
    axes[0].legend(fontsize=8)
    save(figure, path)
