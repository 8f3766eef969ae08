"""Where the time of requests went on their way, stage by stage, as a table for a terminal."""

from __future__ import annotations

from rich.table import Table

from astrarium.core.units import to_ms
from astrarium.serving.placement.evaluation import Evaluation, stage_report


def stage_table(evaluation: Evaluation) -> Table:
    """A model's first line bears its name and how many of its requests were in time."""
    table = Table("model", "stage", title="where time went")
    for name in ("of the mean", "p50 ms", "p95 ms", "p99 ms"):
        table.add_column(name, justify="right")
    named = ""
    for line in stage_report(evaluation):
        model = "" if line.model == named else f"{line.model} ({_in_time(evaluation, line.model)} in time)"
        times = (f"{to_ms(time):,.2f}" for time in (line.p50, line.p95, line.p99))
        table.add_row(model, line.stage, f"{line.part:.1%}", *times)
        named = line.model
    return table


def _in_time(evaluation: Evaluation, name: str) -> str:
    return f"{evaluation.of(name).attainment or 0.0:.1%}"
