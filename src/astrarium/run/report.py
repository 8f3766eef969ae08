"""What every level's report has in common: summaries as plain data, rows as columns, files of rows."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from astrarium.core.errors import InputError, did_you_mean
from astrarium.core.level import Run, named
from astrarium.core.quantities import SECOND, Time

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


# Tables for a terminal in one style, for every level.


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
    for each in sorted(numbers):
        if parts and each == parts[-1][-1] + 1:
            parts[-1][1:] = [each]
        else:
            parts.append([each])
    return ", ".join("-".join(map(str, part)) for part in parts)


def unit_of(seconds: float) -> tuple[str, float]:
    return ("h", 3600.0) if seconds >= 4 * 3600 else ("min", 60.0) if seconds >= 600 else ("s", 1.0)


def moment(at: Time) -> str:
    """As people say it, and as `--at` takes it."""
    seconds = at / SECOND
    if seconds < 120:
        return f"{seconds:.4g}s"
    return f"{seconds / 60:.4g}min" if seconds < 36_000 else f"{seconds / 3600:.4g}h"


T = TypeVar("T")
NamedRows = tuple[Sequence[str], Iterable[Sequence[Any]]]  # names of columns, and the cells of each row


def plain(struct: Any) -> dict[str, Any]:
    """Return a struct as the dictionary that JSON shows."""
    found: dict[str, Any] = msgspec.to_builtins(struct)
    return found


def side_by_side(runs: Sequence[Run[Any, Any]]) -> dict[str, Any]:
    """Return the summaries of several runs by their labels; of one run the summary itself."""
    if len(runs) == 1:
        return plain(runs[0].summary)
    return {"policies": {name: plain(run.summary) for name, run in named(runs).items()}}


def picked(items: Mapping[str, T], name: str, what: str) -> T:
    """Return the item that a person names; an error names some of those that there are."""
    if name not in items:
        some = ", ".join([*items][:12]) + (", ..." if len(items) > 12 else "")
        raise InputError("ITEM", name, f"a {what} of the run: {some}{did_you_mean([*items], name)}")
    return items[name]


def columns(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Mapping[str, Sequence[Any]]:
    """Return rows as columns by name."""
    cells = list(zip(*rows, strict=True)) or [()] * len(names)
    return {name: list(column) for name, column in zip(names, cells, strict=True)}


def write_csv(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)
