"""Finish rates (requests in time over all) by case, system and SLO: what Figures 4.7 to 4.11 show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import msgspec
import numpy as np

from astrarium.serving.ledger import Outcome
from astrarium.serving.level import run
from astrarium.serving.record import ServingRecord
from astrarium.serving.report.summary import measured_requests
from astrarium.serving.scenario import Scenario, parse
from astrarium_papers.findings import Effort, Row
from astrarium_papers.orloj._reasons import reason
from astrarium_papers.orloj._settings import (
    ARRIVALS,
    LOAD,
    MAX_BATCH,
    REQUESTS,
    SEEDS,
    SYSTEMS,
    WARMUP,
    System,
)
from astrarium_papers.orloj._tables import FINISH_RATES, MULTIPLES
from astrarium_papers.orloj._workloads import Case

TOLERANCE = 0.15  # of the mean over the SLOs


def rate(case: Case) -> float:
    """Return the requests per second of a case."""
    return LOAD * MAX_BATCH / (case.c0_ms + MAX_BATCH * case.c1 * case.mean_ms) * 1000


def scenario(case: Case, multiple: float, system: System, requests: int, **sections: Any) -> Scenario:
    """Return one model on one GPU; the SLO is *multiple* times the P99 of single execution times."""
    per_second = rate(case)
    warmup = min(WARMUP, requests)
    dynamic = {
        "applications": case.applications,
        "c0": f"{case.c0_ms:.6f}ms",
        "c1": case.c1,
        "estimate": system.estimate,
    }
    slo = f"{multiple * case.p99_ms:.6f}ms"
    workload = {
        **ARRIVALS,
        "rate": f"{per_second:.9g}/s",
        "duration": f"{(warmup + requests) / per_second:.9g}s",
        "warmup": f"{warmup / per_second:.9g}s",
    }
    raw = {
        "cluster": {"gpus": 1},
        "models": {"model": {"profile": {"dynamic": dynamic}, "slo": slo, "max_batch": MAX_BATCH}},
        "policy": system.policy,
        "workload": workload,
    }
    return parse({**raw, **sections})


def finish_rates(setting: Scenario, effort: Effort) -> list[float]:
    """Return a finish rate for each seed."""
    return [finish_rate(setting.with_seed(seed)) for seed in effort.pick(SEEDS[:2], SEEDS)]


def finish_rate(setting: Scenario) -> float:
    return in_time(run(setting))


def in_time(record: ServingRecord) -> float:
    """Return the share of the measured requests that finished in time."""
    outcomes = record.requests.outcome[measured_requests(record)]
    return float(np.mean(outcomes == Outcome.IN_TIME))


def requests(effort: Effort) -> int:
    return int(effort.pick(300, REQUESTS))


def measure(cases: Sequence[Case], effort: Effort, systems: Mapping[str, System] = SYSTEMS) -> dict[str, Any]:
    """Return `cases`: by case ID, then `systems` by name, then `mean` and `std` over the seeds for each
    multiple."""
    multiples = effort.pick([1.5, 3.0], list(MULTIPLES))
    work = [(case, system) for case in cases for system in systems]
    curves = effort.map(lambda pair: _curve(pair[0], pair[1], systems[pair[1]], multiples, effort), work)
    by_case: dict[str, Any] = {case.name: {"title": case.title, "systems": {}} for case in cases}
    for (case, system), curve in zip(work, curves, strict=True):
        by_case[case.name]["systems"][system] = curve
    return {"multiples": multiples, "cases": by_case}


def _curve(
    case: Case, name: str, system: System, multiples: Sequence[float], effort: Effort
) -> dict[str, list[float]]:
    effort.say(f"{case.title}: {name}")
    settings = [scenario(case, multiple, system, requests(effort)) for multiple in multiples]
    runs = [finish_rates(setting, effort) for setting in settings]
    return {"mean": [mean(rates) for rates in runs], "std": [stdev(rates) for rates in runs]}


def printed(case: str, system: str, multiples: Iterable[float]) -> list[float] | None:
    """Return what the paper has for these SLOs; None for a system that it does not have."""
    curve = FINISH_RATES[case].get(system)
    return None if curve is None else [curve[MULTIPLES.index(multiple)] for multiple in multiples]


def rows(data: dict[str, Any]) -> list[Row]:
    """Return a row for each curve: its mean over the SLOs is compared, the note has every point."""
    return [
        _row(name, case["title"], system, curve, data["multiples"])
        for name, case in data["cases"].items()
        for system, curve in case["systems"].items()
    ]


def _row(case: str, title: str, system: str, curve: dict[str, list[float]], multiples: list[float]) -> Row:
    what = f"{title}: {system}, mean over the SLOs"
    ours = mean(curve["mean"])
    paper = printed(case, system, multiples)
    note = f"ours {_points(curve['mean'])} (std at most {max(curve['std']):.2f})"
    if paper is None:
        return Row(what, ours, note=note)
    note += f", paper {_points(paper)}"
    row = Row(what, ours, mean(paper), tolerance=TOLERANCE, note=note)
    if row.verdict == "agrees":
        return row
    return msgspec.structs.replace(row, note=f"{note}; {reason(case, system)}")


def _points(rates: Iterable[float]) -> str:
    return " ".join(f"{value:.2f}" for value in rates)


def draw(data: dict[str, Any], path: Path) -> None:
    """Draw ours as lines with error bars, the paper's points as crosses of the same colour."""
    from astrarium_papers.drawing import axes_grid, save

    figure, axes = axes_grid(len(data["cases"]), columns=5)
    places = list(range(len(data["multiples"])))
    for axis, (name, case) in zip(axes, data["cases"].items(), strict=True):
        for system, curve in case["systems"].items():
            _draw_curve(axis, places, name, system, curve, data["multiples"])
        axis.set_xticks(places, [f"{multiple:g}x" for multiple in data["multiples"]])
        axis.set(title=case["title"], xlabel="SLO over P99", ylim=(-0.03, 1.05))
    axes[0].set_ylabel("finish rate (x: paper)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncol=6, fontsize=8)
    save(figure, path, top=1 - 0.35 / figure.get_figheight())


def _draw_curve(
    axis: Any,
    places: list[int],
    case: str,
    system: str,
    curve: dict[str, list[float]],
    multiples: list[float],
) -> None:
    from astrarium_papers.drawing import SYSTEM_COLORS

    color = SYSTEM_COLORS[system]
    axis.errorbar(places, curve["mean"], curve["std"], color=color, label=system, capsize=2, lw=1.2)
    paper = printed(case, system, multiples)
    if paper is not None:
        axis.plot(places, paper, ls="", marker="x", markersize=5, color=color)
