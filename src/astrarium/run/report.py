"""What every level's report has in common: summaries as plain data, rows as columns, files of rows."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from astrarium.core.errors import InputError, did_you_mean
from astrarium.core.level import Run, named

T = TypeVar("T")
NamedRows = tuple[Sequence[str], Iterable[Sequence[Any]]]  # names of columns, and the cells of each row


def struct_as_dict(struct: Any) -> dict[str, Any]:
    """Return a struct as the dictionary that JSON shows."""
    fields: dict[str, Any] = msgspec.to_builtins(struct)
    return fields


def side_by_side(runs: Sequence[Run[Any, Any]]) -> dict[str, Any]:
    """Return the summaries of several runs by their labels; of one run the summary itself."""
    if len(runs) == 1:
        return struct_as_dict(runs[0].summary)
    return {"policies": {name: struct_as_dict(run.summary) for name, run in named(runs).items()}}


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
