"""The files of a run folder that only serving has: columns of requests and batches, plans, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from astrarium.serving.record import ServingRecord

PLAN = "plan.yaml"
FILES = {
    "requests.npz": "one row a request: arrival, deadline, model, application, outcome (1 in time, 2 late, "
    "3 dropped, 4 failed), reason (an index into reasons), done, batch (-1: never ran); times in ns",
    "batches.npz": "one row a batch: model, gpu, size, dispatched, started, finished, fate (1 finished, "
    "2 preempted, 3 failed); times in ns",
}


def write_record(folder: Path, record: ServingRecord, scenario: str, outcomes: bool = True) -> None:
    """Everything about one run but its pictures and its summary."""
    from astrarium.serving.report.timeline import write_timeline

    folder.mkdir(exist_ok=True)
    (folder / "scenario.yaml").write_text(scenario, encoding="utf-8")
    if outcomes:
        _write_columns(folder / "requests.npz", record.requests, reasons=record.reasons)
    _write_columns(folder / "batches.npz", record.batches, models=[m.name for m in record.setup.models])
    write_timeline(record, folder / "timeline.json")


def write_plan(folder: Path, plan: str) -> dict[str, str]:
    """Returns what to say of it."""
    (folder / PLAN).write_text(plan, encoding="utf-8")
    return {PLAN: "the plan that was run: which models live on which GPUs"}


def write_plots(folder: Path, runs: Sequence[tuple[str, ServingRecord, Any]], title: str) -> None:
    """Two pictures of all runs; of a single one also what an autoscaler would make of it."""
    from astrarium.serving.report.plots import draw_overview, draw_scaling, draw_schedule

    plots = folder / "plots"
    plots.mkdir()
    draw_overview(runs, plots / "overview.png", title)
    draw_schedule(runs, plots / "schedule.png")
    if len(runs) == 1:
        draw_scaling(runs[0][1], plots / "scaling.png")


def _write_columns(path: Path, columns: Any, **extra: Sequence[str]) -> None:
    import numpy as np

    arrays: dict[str, Any] = {**vars(columns), **{name: np.array(list(v)) for name, v in extra.items()}}
    np.savez(path, **arrays)
