"""What every level's report has in common: summaries as plain data, rows as columns, files of rows."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from astrarium.core.level import Run


def plain(struct: Any) -> dict[str, Any]:
    """Return a struct as the dictionary that JSON shows."""
    found: dict[str, Any] = msgspec.to_builtins(struct)
    return found


def by_label(runs: Sequence[Run[Any, Any]]) -> dict[str, Run[Any, Any]]:
    """Return runs by their labels, with the seed in each where runs differ in it."""
    several = len({run.seed for run in runs}) > 1
    return {f"{run.label}, seed {run.seed}" if several else run.label: run for run in runs}


def side_by_side(runs: Sequence[Run[Any, Any]]) -> dict[str, Any]:
    """Return the summaries of several runs by their labels; of one run the summary itself."""
    if len(runs) == 1:
        return plain(runs[0].summary)
    return {"policies": {label: plain(run.summary) for label, run in by_label(runs).items()}}


def columns(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Mapping[str, Sequence[Any]]:
    """Return rows as columns by name."""
    cells = list(zip(*rows, strict=True)) or [()] * len(names)
    return {name: list(column) for name, column in zip(names, cells, strict=True)}


def write_csv(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)
