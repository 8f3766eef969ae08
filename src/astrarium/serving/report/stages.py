"""Where the time of requests went on their way, stage by stage, as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from astrarium.core.units import to_ms
from astrarium.placement.evaluation import Evaluation, StageLine, stage_report


def stage_table(
    lines: Sequence[StageLine], attained: Mapping[str, float | None], title: str = "where time went"
) -> Table:
    """A model's first line bears its name and how many of its requests were in time."""
    from rich.box import SIMPLE_HEAD

    table = Table("model", "in time", "stage", title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.title_justify, table.title_style = "left", "bold"
    for name in ("of the mean", "p50 ms", "p95 ms", "p99 ms"):
        table.add_column(name, justify="right")
    named = ""
    for line in lines:
        head = ("", "") if line.model == named else (line.model, f"{attained[line.model] or 0.0:.2%}")
        times = (f"{to_ms(time):,.2f}" for time in (line.p50, line.p95, line.p99))
        table.add_row(Text(head[0]), head[1], line.stage, f"{line.part:.1%}", *times)
        named = line.model
    return table


def path_lines(evaluation: Evaluation) -> list[StageLine]:
    """Without stages that take no time at all."""
    return [line for line in stage_report(evaluation) if line.part > 0]


def path_attained(evaluation: Evaluation) -> dict[str, float | None]:
    return {model.name: model.attainment for model in evaluation.models}


def plain_lines(lines: Sequence[StageLine]) -> list[dict[str, Any]]:
    """For --json."""
    return [
        {"model": line.model, "stage": line.stage, "part": line.part}
        | {f"{name}_ms": to_ms(getattr(line, name)) for name in ("p50", "p95", "p99")}
        for line in lines
    ]
