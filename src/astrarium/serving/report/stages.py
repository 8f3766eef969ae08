"""Where the time of requests went on their way, stage by stage, as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from astrarium.core.quantities import to_ms
from astrarium.placement.evaluation import StageLine
from astrarium.run.tables import plain_table


def stage_table(
    lines: Sequence[StageLine], attained: Mapping[str, float | None], title: str = "where time went"
) -> Table:
    """Return a table; a model's first row bears its name and how many of its requests were in time."""
    table = plain_table("model", "in time", "stage", "of the mean", "p50 ms", "p95 ms", "p99 ms")
    for column in table.columns[1:3]:
        column.justify = "left"
    table.title = title
    named = ""
    for line in lines:
        head = ("", "") if line.model == named else (line.model, f"{attained[line.model] or 0.0:.2%}")
        times = (f"{to_ms(time):,.2f}" for time in (line.p50, line.p95, line.p99))
        table.add_row(Text(head[0]), head[1], line.stage, f"{line.part:.1%}", *times)
        named = line.model
    return table


def plain_lines(lines: Sequence[StageLine]) -> list[dict[str, Any]]:
    """Return the same as plain data, for --json."""
    return [
        {"model": line.model, "stage": line.stage, "part": line.part}
        | {f"{name}_ms": to_ms(getattr(line, name)) for name in ("p50", "p95", "p99")}
        for line in lines
    ]
