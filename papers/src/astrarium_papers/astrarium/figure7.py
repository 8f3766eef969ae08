"""The settings of Symphony's Figure 7: astrarium over the better of deferred and eager.

Not all of the sample was unseen: thresholds of the policy were chosen with every fourth of its settings in
view, and then with some others that had come out low. So a second sample is drawn that nobody looked at while
the policy was made; that one says how well it holds.

One seed of a few seconds is rough where arrivals are bursty: whatever comes out low is measured again with
three seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from astrarium.core.errors import InputError
from astrarium.serving.goodput import search
from astrarium_papers.astrarium._settings import ASTRARIUM, DEFERRED, EAGER, OURS
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.symphony.figure7 import SAMPLED, Setting, sample, scenario_of

TITLE = "Over the better of deferred and eager on Figure 7's settings"
POLICIES = {OURS: ASTRARIUM, "deferred": DEFERRED, "eager": EAGER}
DRAWN = "Figure 7's sample"
FRESH = "fresh sample"
FRESH_SEED = 3  # 2 was fresh once: a setting it drew showed what bursts need
FRESH_SIZE = 60
TUNED_ON = 4  # every fourth setting of Figure 7's sample
LOW = 0.99
QUICK_LENGTH = (1_500, 1)  # requests, and seconds, at the least
LENGTH = (180_000, 4)  # the same


def samples(effort: Effort) -> dict[str, list[Setting]]:
    drawn = sample(SAMPLED)
    fresh = [setting for setting in sample(FRESH_SIZE, FRESH_SEED) if setting not in drawn]
    return {DRAWN: drawn[:: effort.pick(60, 1)], FRESH: fresh[:: effort.pick(60, 1)]}


def run(effort: Effort) -> Findings:
    data: dict[str, Any] = {}
    for name, settings in samples(effort).items():
        measured = effort.map(lambda setting: measure(setting, effort), settings)
        data[name] = [
            {**setting._asdict(), "name": str(setting), "place": place, **goodputs}
            for place, (setting, goodputs) in enumerate(zip(settings, measured, strict=True))
            if goodputs is not None
        ]
    rows = [row for name, cases in data.items() for row in _rows(name, cases, len(samples(effort)[name]))]
    return Findings(rows, [_claim(name, cases) for name, cases in data.items()], data)


def measure(setting: Setting, effort: Effort) -> dict[str, Any] | None:
    """`ratio` with one seed and, if that is low, `again` with three; None where the SLO is shorter than one
    request takes, or where the others serve nothing."""
    effort.say(str(setting))
    try:
        once = _goodputs(setting, 1, effort)
    except InputError:
        return None
    ratio = _ratio(once)
    if ratio is None:
        return None
    again = _ratio(_goodputs(setting, effort.pick(2, 3), effort)) if ratio < LOW else None
    return {"goodput": once, "ratio": ratio, "again": again}


def _goodputs(setting: Setting, seeds: int, effort: Effort) -> dict[str, float]:
    length, tolerance = effort.pick((QUICK_LENGTH, 0.05), (LENGTH, 0.01))
    return {
        name: search(scenario_of(setting, policy, *length), seeds=seeds, tolerance=tolerance / seeds).goodput
        for name, policy in POLICIES.items()
    }


def _ratio(goodputs: dict[str, float]) -> float | None:
    best = max(goodput for policy, goodput in goodputs.items() if policy != OURS)
    return goodputs[OURS] / best if best > 0 else None


def settled(case: dict[str, Any]) -> float:
    """Return the ratio with three seeds where there are three."""
    return float(case["ratio"] if case["again"] is None else case["again"])


def _rows(name: str, cases: Sequence[dict[str, Any]], drawn_settings: int) -> list[Row]:
    ratios = [case["ratio"] for case in cases]
    low = [case for case in cases if case["ratio"] < LOW]
    drawn = f"of {len(cases)}; {drawn_settings - len(cases)} skipped (a request does not fit in the SLO)"
    rows = [
        Row(f"{name}: mean", mean(ratios), note=f"one seed, {drawn}"),
        Row(f"{name}: least", min(ratios), note=f"one seed: {_least(cases)['name']}"),
        Row(f"{name}: least, settled", min(map(settled, cases)), note="low ones with three seeds"),
        Row(f"{name}: settings ahead", sum(ratio > 1 for ratio in ratios), note=drawn),
        Row(f"{name}: settings under {LOW}", len(low), note=_listed(low)),
    ]
    return rows + (_split(name, cases) if name == DRAWN else [])


def _split(name: str, cases: Sequence[dict[str, Any]]) -> list[Row]:
    """Return rows of the settings that thresholds were chosen on, and of the others."""
    groups = {"every fourth, in view when thresholds were chosen": True, "the others": False}
    rows = []
    for words, seen in groups.items():
        ratios = [case["ratio"] for case in cases if (case["place"] % TUNED_ON == 0) is seen]
        if ratios:
            rows.append(
                Row(f"{name}, {words}: mean", mean(ratios), note=f"least {min(ratios):.3f}, one seed")
            )
    return rows


def _least(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return min(cases, key=lambda case: float(case["ratio"]))


def _listed(low: Sequence[dict[str, Any]]) -> str:
    return "; ".join(f"{case['name']}: {case['ratio']:.3f}, settled {settled(case):.3f}" for case in low)


def _claim(name: str, cases: Sequence[dict[str, Any]]) -> Claim:
    under = [case for case in cases if settled(case) < LOW]
    note = f"least {min(map(settled, cases)):.3f}; low ones measured with three seeds"
    if under:
        note += f"; under: {_listed(under)}"
    words = f"{name}: never more than 1 % under the better of deferred and eager"
    return Claim(words, not under, note)


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(data), 6)
    every = [settled(case) for cases in data.values() for case in cases]
    shown = (min(every) - 0.01, max(every) + 0.01)
    for axis, (name, cases) in zip(axes, data.items(), strict=True):
        ratios = sorted(settled(case) for case in cases)
        share = [100 * (place + 1) / len(ratios) for place in range(len(ratios))]
        axis.plot(share, ratios, marker=".", linewidth=1, color="black")
        for level, style in ((1, "--"), (LOW, ":")):
            axis.axhline(level, color="gray", linewidth=1, linestyle=style)
        axis.set(title=name, xlabel="% of settings, sorted", ylim=shown)
    axes[0].set_ylabel("over the better of deferred and eager")
    save(figure, path)
