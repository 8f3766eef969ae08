"""Rows as a table: for people on a terminal, and as Markdown for the README."""

from __future__ import annotations

from collections.abc import Sequence

from _measure import Row

HEADER = ("what", "measured", "bar", "met", "times the bar", "spread", "repeats")


def show(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*HEADER)
    for row in rows:
        style = {True: "green", False: "red", None: ""}[row.met]
        table.add_row(*cells(row), style=style)
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def markdown(rows: Sequence[Row]) -> str:
    lines = [HEADER, ("---",) * len(HEADER), *(cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(row: Row) -> tuple[str, ...]:
    bar = "" if row.bar is None else f"{'≤' if row.less_is_better else '≥'} {number(row.bar)}"
    met = {True: "yes", False: "NO", None: ""}[row.met]
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    spread = f"{number(min(row.values))} to {number(max(row.values))}"
    measured = f"{number(row.median)} {row.unit}".strip()
    return (row.what, measured, bar, met, ratio, spread, str(len(row.values)))


def number(value: float) -> str:
    """Three digits that matter, and as many zeros as it takes."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
