"""A reproduction as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from astrarium.run.tables import number, plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from astrarium_papers.registry import Reproduction


def reproduction_tables(reproduction: Reproduction) -> list[Table]:
    """Return what the paper printed beside what we measure, and what it says of shapes."""
    numbers = plain_table("what", "paper", "ours", "ours/paper", "verdict", "note")
    numbers.title = f"{reproduction.name}: {reproduction.title}"
    if reproduction.skipped:
        numbers.caption = f"skipped: {reproduction.skipped}"
    for row in reproduction.rows:
        cells = (_printed(row.paper), number(row.ours), number(row.ratio))
        numbers.add_row(f"{row.what} {row.unit}".strip(), *cells, row.verdict, row.note)
    claims = plain_table("claim", "here", "note")
    for claim in reproduction.claims:
        claims.add_row(claim.what, claim.verdict, claim.note)
    for column in (*numbers.columns[4:], *claims.columns):
        column.justify = "left"
    for column in (numbers.columns[0], claims.columns[0]):
        column.no_wrap = False  # sentences
    return [numbers, claims] if reproduction.claims else [numbers]


def _printed(paper: float | tuple[float, float] | None) -> str:
    return " to ".join(map(number, paper)) if isinstance(paper, tuple) else number(paper)
