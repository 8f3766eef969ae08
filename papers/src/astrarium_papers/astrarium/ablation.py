"""Each part of the policy switched off: what it brings, and where it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from astrarium.serving.goodput import search
from astrarium.serving.scenario import Scenario
from astrarium_papers.astrarium import _lines
from astrarium_papers.astrarium._in_time import OVERLOAD, in_time, overloads
from astrarium_papers.astrarium._settings import ASTRARIUM, DEFERRED, FEW_GPUS, TABLE2_ROWS, ZOO, Setting
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.symphony import figure7

TITLE = "What each part of the policy brings"
FULL = "full"
VARIANTS: dict[str, dict[str, Any]] = {
    FULL: ASTRARIUM,
    "patience 0": {**ASTRARIUM, "patience": 0.0},
    "patience 0.8": {**ASTRARIUM, "patience": 0.8},
    "patience 1": {**ASTRARIUM, "patience": 1.0},
    "no lookahead": {**ASTRARIUM, "lookahead": False},
    "patience 1, no lookahead": {**ASTRARIUM, "patience": 1.0, "lookahead": False},
    "deferred": DEFERRED,
}
OVERLOADED = f"in time, {OVERLOAD} x deferred"

# Of Figure 7: bursts of a model that hardly gains from batches, and tight deadlines of one that gains much.
SAMPLED = (figure7.Setting("VGG16", 16, 1.5, 25, 0.1), figure7.Setting("DenseNet121", 16, 4.0, 20, 1.0))
WORTH = 0.01

Make = Callable[[dict[str, Any]], Scenario]


def columns(effort: Effort) -> dict[str, Make]:
    """Return what goodput is measured on: by column, a scenario for each policy."""
    few = [FEW_GPUS[0], FEW_GPUS[2]]
    settings = effort.pick(few[:1], [*TABLE2_ROWS, _shorter_zoo(), *few])
    makers = {setting.name: _make(setting, effort) for setting in settings}
    if effort.quick:
        return makers
    return makers | {str(setting): _make_sampled(setting) for setting in SAMPLED}


def _make(setting: Setting, effort: Effort) -> Make:
    return lambda policy: setting.scenario(policy, effort)


def _make_sampled(setting: figure7.Setting) -> Make:
    return lambda policy: figure7.scenario_of(setting, policy, 180_000, 4)


def _shorter_zoo() -> Setting:
    return msgspec.structs.replace(ZOO, seconds=20)


def run(effort: Effort) -> Findings:
    rates = _lines.finish_rates(effort)
    data: dict[str, Any] = {"goodput": _goodputs(effort), "in_time": _overloaded(effort), "lines": rates}
    return Findings([*_rows(data), *_lines.rows(rates)], [_claim(data["goodput"]), _lines.claim(rates)], data)


def _goodputs(effort: Effort) -> dict[str, dict[str, float]]:
    makers = columns(effort)
    work = [(column, variant) for column in makers for variant in VARIANTS]

    def measure(pair: tuple[str, str]) -> float:
        column, variant = pair
        effort.say(f"{column}: {variant}")
        seeds, tolerance = effort.pick((1, 0.05), (3, 0.004))
        return search(makers[column](VARIANTS[variant]), seeds, tolerance, jobs=1).goodput

    goodputs: dict[str, dict[str, float]] = {column: {} for column in makers}
    for (column, variant), goodput in zip(work, effort.map(measure, work), strict=True):
        goodputs[column][variant] = goodput
    return goodputs


def _overloaded(effort: Effort) -> dict[str, float]:
    """Return the share of requests in time, by variant."""
    setting = effort.pick(FEW_GPUS[0], _shorter_zoo())
    rate = overloads([setting], effort)[setting.name]

    def measure(policy: dict[str, Any]) -> float:
        return in_time(setting.scenario(policy, effort).with_rate(rate), effort).share

    return dict(zip(VARIANTS, effort.map(measure, VARIANTS.values()), strict=True))


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = [
        Row(f"{column}: {variant}", goodput, unit="r/s", note=_change(variant, goodput, goodputs))
        for column, goodputs in data["goodput"].items()
        for variant, goodput in goodputs.items()
    ]
    shares = data["in_time"]
    return rows + [
        Row(f"{OVERLOADED}: {variant}", share, note=_change(variant, share, shares))
        for variant, share in shares.items()
    ]


def _change(variant: str, value: float, goodputs: Mapping[str, float]) -> str:
    return "" if variant == FULL else f"{value / goodputs[FULL] - 1:+.1%}"


def _claim(goodputs: Mapping[str, Mapping[str, float]]) -> Claim:
    others = {column: _best_other(of_variants) for column, of_variants in goodputs.items()}
    return Claim(
        "no setting gains more than 1 % with a part switched off",
        all(gain <= WORTH for _, gain in others.values()),
        "; ".join(f"{column}: {variant} {gain:+.1%}" for column, (variant, gain) in others.items()),
    )


def _best_other(goodputs: Mapping[str, float]) -> tuple[str, float]:
    variant = max((name for name in goodputs if name != FULL), key=lambda name: goodputs[name])
    return variant, goodputs[variant] / goodputs[FULL] - 1


def draw(data: dict[str, Any], path: Path) -> None:
    """Draw what is left of the full policy's goodput: a row for each variant, a column for each setting."""
    from astrarium_papers.drawing import axes_row, save

    figure, (axis,) = axes_row(1, 11, 4)
    curves = {**data["goodput"], OVERLOADED: data["in_time"]}
    percents = [[100 * goodputs[name] / goodputs[FULL] for goodputs in curves.values()] for name in VARIANTS]
    axis.imshow(percents, cmap="RdBu", vmin=85, vmax=115, aspect="auto")
    for row, shares in enumerate(percents):
        for column, share in enumerate(shares):
            axis.text(column, row, f"{share:.1f}", ha="center", va="center", fontsize=9)
    axis.set_xticks(range(len(curves)), [name.replace(", ", "\n") for name in curves], fontsize=7)
    axis.set_yticks(range(len(VARIANTS)), list(VARIANTS), fontsize=8)
    axis.set_title("goodput (last column: requests in time), % of the full policy's")
    axis.grid(False)
    save(figure, path)
