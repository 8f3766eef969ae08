"""Figure 2 and section 3.1: two models on two GPUs, one on each, or both as pipelines over both."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import msgspec
import numpy as np

from astrarium_papers.alpaserve._common import utilization
from astrarium_papers.alpaserve._common.settings import COLORS, PARALLEL, SIMPLE, spread
from astrarium_papers.alpaserve._common.two_models import (
    CASES,
    DRAWN,
    GROUPS,
    Traffic,
    measured,
    placed,
    requests,
    searched,
    theory,
)
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "Two models on two GPUs: latency and utilization (Figure 2, section 3.1)"
SHOWN = (0.0, 25.0)  # seconds of the picture of utilization
PAPER_POISSON = {SIMPLE: 0.70, PARALLEL: 0.55}


def run(effort: Effort) -> Findings:
    data: dict[str, Any] = {"cases": {}}
    for name, case in CASES.items():
        effort.say(case.title)
        data["cases"][name] = measured(case, effort)
    data["utilization"] = utilization.of(placed(0.5), GROUPS, requests(CASES["bursty"], 500.0, 1), SHOWN)
    data["searched"] = searched(effort)
    return Findings(_rows(data), _claims(data), data)


def _rows(data: dict[str, Any]) -> list[Row]:
    poisson = data["cases"]["poisson"]
    rows = [
        Row(
            f"Poisson: mean latency, {name}",
            _mean(poisson[name]),
            paper,
            "s",
            note=_latency_note(poisson, name),
        )
        for name, paper in PAPER_POISSON.items()
    ]
    for name, case in CASES.items():
        row = Row(f"{case.title}: speedup", _speedup(data["cases"][name]), case.speedup, "x", tolerance=0.1)
        rows.append(msgspec.structs.replace(row, note=_speedup_note(data["cases"][name], case)))
    return rows


def _mean(case: dict[str, Any]) -> float:
    return float(mean(case["mean"]))


def _speedup(case: dict[str, Any], suffix: str = "") -> float:
    """Return the speedup of means over all seeds: near saturation one seed alone says little."""
    return _mean(case[SIMPLE + suffix]) / _mean(case[PARALLEL + suffix])


def _latency_note(case: dict[str, Any], name: str) -> str:
    seeds = spread(case[name]["mean"], ".3f")
    bare = _mean(case[f"{name} bare"])
    return f"{seeds}; M/D/1 {theory(name, 0.5):.3f}; without the simulator's overheads {bare:.3f}"


def _speedup_note(latencies: dict[str, Any], case: Traffic) -> str:
    pairs = zip(latencies[SIMPLE]["mean"], latencies[PARALLEL]["mean"], strict=True)
    seeds = spread([simple / parallel for simple, parallel in pairs])
    bare = f"without the simulator's overheads {_speedup(latencies, ' bare'):.2f}"
    if case.cv != 1:
        return f"of single seeds {seeds}; {bare}"
    formulas = theory(SIMPLE, case.share) / theory(PARALLEL, case.share)
    return f"of single seeds {seeds}; M/D/1 {formulas:.2f}; {bare}"


def _claims(data: dict[str, Any]) -> list[Claim]:
    poisson, bursty, uneven = (data["cases"][name] for name in CASES)
    first, second = ({name: _of_model(uneven[name], model) for name in GROUPS} for model in (0, 1))
    return [
        Claim(
            "the benefit grows with burstiness",
            _speedup(bursty) > _speedup(poisson),
            f"{_speedup(poisson):.2f}x at CV 1, {_speedup(bursty):.2f}x at CV 3",
        ),
        Claim(
            "with unequal rates the simple placement is slightly better for the rare model",
            first[SIMPLE] < first[PARALLEL],
            f"{first[SIMPLE]:.3f} s against {first[PARALLEL]:.3f} s on average",
        ),
        Claim(
            "and drastically worse for the popular one",
            second[SIMPLE] > 2 * second[PARALLEL],
            f"{second[SIMPLE]:.2f} s against {second[PARALLEL]:.3f} s on average",
        ),
        Claim(
            "under model parallelism both models see the same latencies",
            abs(first[PARALLEL] / second[PARALLEL] - 1) < 0.03,
            f"means of {first[PARALLEL]:.3f} s and {second[PARALLEL]:.3f} s",
        ),
        _as_formulas(data["cases"]),
        _whole_cluster(data["utilization"]),
        _same_choice(data["searched"]),
    ]


def _of_model(case: dict[str, Any], model: int) -> float:
    return float(mean(of_seed[model] for of_seed in case["by_model"]))


def _as_formulas(cases: dict[str, Any]) -> Claim:
    gaps = {
        f"{CASES[case].title}, {name}": _mean(cases[case][name]) / theory(name, CASES[case].share) - 1
        for case in ("poisson", "uneven")
        for name in GROUPS
    }
    worst = max(gaps, key=lambda which: abs(gaps[which]))
    return Claim(
        "with Poisson arrivals mean latencies are those of M/D/1 queues (section 3.4)",
        abs(gaps[worst]) < 0.1,
        f"the largest difference is {gaps[worst]:+.1%} ({worst})",
    )


def _whole_cluster(case: dict[str, Any]) -> Claim:
    both = {name: case["both_busy"][name] for name in GROUPS}
    return Claim(
        "in bursts model parallelism uses the whole cluster, the simple placement half of it",
        both[PARALLEL] > 1.5 * both[SIMPLE],
        "both GPUs work in "
        + ", ".join(f"{share:.0%} ({name})" for name, share in both.items())
        + " of the time in which any does. The authors' script leaves 5 s out of the middle of its trace; "
        "ours is whole",
    )


def _same_choice(choices: dict[str, list[str]]) -> Claim:
    chosen = "; ".join(f"{policy}: {', '.join(groups)}" for policy, groups in choices.items())
    expected = {"selective-replication": ["1xop1pp1"] * 2, "alpaserve": ["2xop1pp2"]}
    return Claim(
        "asked for few late answers, our policies find these two placements themselves",
        choices == expected,
        f"{chosen} (models x shape, CV 3, an SLO of 5x)",
    )


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(len(CASES) + 1, width=4)
    for axis, (name, case) in zip(axes, CASES.items(), strict=False):
        for placement in GROUPS:
            _distribution(axis, placement, data["cases"][name][placement], by_model=case.share != 0.5)
        axis.set(title=case.title, xlabel="latency (s)", ylim=(0, 1.02), xlim=(0, None))
        axis.legend(fontsize=7)
    axes[0].set(ylabel="part of all requests")
    utilization.draw(axes[-1], data["utilization"])
    save(figure, path)


def _distribution(axis: Any, name: str, case: dict[str, Any], by_model: bool) -> None:
    """Draw a distribution to the 99.5th percentile: the last few would squeeze all others."""
    curves = np.array(case["percentiles"])[:, :-1]
    styles = ((name, "-"), (f"{name}, model 1", ":"), (f"{name}, model 2", "--"))
    for curve, (label, style) in list(zip(curves, styles, strict=True))[: 3 if by_model else 1]:
        axis.plot(curve, DRAWN[:-1] / 100, style, color=COLORS[name], label=label)
    axis.axvline(_mean(case), color=COLORS[name], lw=0.8, ls="-.")
