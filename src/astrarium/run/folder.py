"""Run folders: everything about a run in one place, written whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.level import Run, named

README = "README.txt"
SCENARIO = "scenario.yaml"
TRACE = "trace.jsonl"
_FILES = {
    "plots": "pictures",
    "scenario.yaml": "the scenario as it was run, overrides included",
    "summary.json": "what the command prints with --json",
    TRACE: "every event and decision, step by step: `astrarium replay` feeds it to a fresh policy",
    "tables.txt": "what the command prints without --json",
    "timeline.json": "open it in https://ui.perfetto.dev or chrome://tracing",
}


def check_free(target: Path, overwrite: bool) -> None:
    """Before any long work: is this a place that we may write to?"""
    if target.exists() and not target.is_dir():
        raise InputError("--out", str(target), "a folder, not a file")
    if not target.is_dir() or not any(target.iterdir()):
        return
    if not overwrite:
        raise InputError("--out", str(target), "an empty or new folder (or add --overwrite)")
    if not (target / README).is_file() or not (target / "summary.json").is_file():
        raise InputError("--out", str(target), "a run folder, to overwrite it: this one holds other things")


def unused(target: Path) -> Path:
    """*target*, or the same with a number behind it if that is taken."""
    number = 1
    free = target
    while free.exists():
        number += 1
        free = target.with_name(f"{target.name}-{number}")
    return free


@contextmanager
def run_folder(
    target: Path, overwrite: bool = False, placed: Callable[[Path], None] | None = None
) -> Iterator[Path]:
    """A folder to fill; it takes its place when the block ends well, and vanishes when it does not.

    With *placed*, the name is a proposal: if another run took it meanwhile, a number is put behind it, and
    *placed* hears where the folder is.
    """
    target = target.resolve()
    check_free(target, overwrite)
    draft, old = (target.with_name(f".{target.name}.{os.getpid()}.{kind}") for kind in ("draft", "old"))
    try:
        draft.mkdir(parents=True)
        yield draft
        if overwrite and target.exists():
            target.rename(old)
        place = _put_in_place(draft, target, placed is not None)
        if placed is not None:
            placed(place)
    except OSError as error:
        raise InputError("--out", str(target), f"a folder that can be written: {error.strerror}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _put_in_place(draft: Path, target: Path, numbered: bool) -> Path:
    """Renaming fails if a folder that is not empty is there: never does one run replace another's."""
    while True:
        try:
            return draft.rename(target)
        except OSError as error:
            if not numbered or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            target = unused(target)


def file_name(text: str) -> str:
    """Return letters, digits and a few signs: what every file system takes."""
    return re.sub(r"[^\w.=%+-]+", "-", text).strip("-.") or "run"


def write_runs(
    draft: Path,
    runs: Sequence[Run[Any, Any]],
    title: str,
    command: str,
    outcomes: bool = True,
    tables: Sequence[Any] | None = None,
    shown: Mapping[str, Any] | None = None,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write everything about runs of one level: rows, summary, tables, pictures, and what each file is.

    Several runs have a folder each. *tables* and *shown* are the level's own unless given; *notes* say what
    further files are.
    """
    report = runs[0].level.report
    named_runs = named(runs)
    known = {**report.FILES, **(notes or {})}
    for name, run in named_runs.items():
        place = draft if len(runs) == 1 else unused(draft / file_name(name))
        _write_run(place, run, outcomes, alone=place == draft)
        if place != draft:
            known[place.name] = f"the run of {name}: summary, scenario and rows"
    write_summary(draft, {"level": runs[0].level.name, **(report.shown(runs) if shown is None else shown)})
    write_tables(draft, report.tables(runs) if tables is None else tables)
    (draft / "plots").mkdir(exist_ok=True)
    report.draw(runs, draft / "plots", title)
    write_readme(draft, command, known)


def _write_run(place: Path, run: Run[Any, Any], outcomes: bool, alone: bool) -> None:
    place.mkdir(exist_ok=True)
    (place / SCENARIO).write_text(run.scenario.to_yaml(), encoding="utf-8")
    run.level.report.write(run, place, outcomes)
    if not alone:
        write_summary(place, run.summary)


def write_summary(folder: Path, summary: Any) -> None:
    (folder / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary)) + b"\n")


def write_tables(folder: Path, tables: Sequence[Any]) -> None:
    from rich.console import Console

    with (folder / "tables.txt").open("w", encoding="utf-8") as file:
        console = Console(file=file, width=160)
        for table in tables:
            console.print(table)


def write_readme(folder: Path, command: str, others: Mapping[str, str] | None = None) -> None:
    """What each file is, and the command that makes the folder again. *others* adds names of ours."""
    known = {**_FILES, **(others or {})}
    names = [path.name for path in sorted(folder.iterdir())]
    width = max(map(len, names), default=0) + 2
    lines = [f"{name:{width}}{known.get(name, '')}".rstrip() for name in names]
    text = "\n".join(["A run of astrarium. To make it again:", "", f"    {command}", "", *lines, ""])
    (folder / README).write_text(text, encoding="utf-8")
