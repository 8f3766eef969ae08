"""Tables for a terminal have one style, for every level."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from astrarium.core.quantities import SECOND, Time

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def plain_table(first: str, *others: str) -> Table:
    """Return an empty table: the first column names what its row is about, the others hold numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", title_style="bold")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table


def as_it_is(text: str, no_wrap: bool = False) -> Text:
    """What people call their apps is no markup."""
    from rich.text import Text

    return Text(text, no_wrap=no_wrap or None)


def number(value: float | None) -> str:
    """Return two decimals for small numbers, none for large ones, a dash for what was not measured."""
    if value is None:
        return "-"
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers as people write them: 0, 1, 2, 5 is '0-2, 5'."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def unit_of(seconds: float) -> tuple[str, float]:
    return ("h", 3600.0) if seconds >= 4 * 3600 else ("min", 60.0) if seconds >= 600 else ("s", 1.0)


def moment(at: Time) -> str:
    """As people say it, and as `--at` takes it."""
    seconds = at / SECOND
    if seconds < 120:
        return f"{seconds:.4g}s"
    return f"{seconds / 60:.4g}min" if seconds < 36_000 else f"{seconds / 3600:.4g}h"
