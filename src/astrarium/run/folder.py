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
from astrarium.core.level import Run

README = "README.txt"
_FILES = {
    "plots": "pictures",
    "scenario.yaml": "the scenario as it was run, overrides included",
    "summary.json": "what the command prints with --json",
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
    number, free = 1, target
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


def write_runs(
    draft: Path,
    runs: Sequence[Run[Any, Any]],
    title: str,
    command: str,
    outcomes: bool = True,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write runs of one level: what each was, side by side, and as pictures; several have a folder each.

    *outcomes* says whether each request, job, trial or app gets its row. *notes* say what other files of the
    folder are. The *command* makes the folder again.
    """
    report, told = runs[0].level.report, dict(notes or {})
    for run in runs:
        place = draft if len(runs) == 1 else unused(draft / file_name(_label(run, runs)))
        place.mkdir(exist_ok=True)
        (place / "scenario.yaml").write_text(run.scenario.to_yaml(), encoding="utf-8")
        report.write(run, place, outcomes)
        if place != draft:
            write_summary(place, run.summary)
            told[place.name] = f"the run of {_label(run, runs)}: summary, scenario, rows, timeline"
    write_summary(draft, report.shown(runs))
    write_tables(draft, report.tables(runs))
    (draft / "plots").mkdir(exist_ok=True)
    report.draw(runs, draft / "plots", title)
    write_readme(draft, command, {**report.files, **told})


def file_name(text: str) -> str:
    """Return a text as letters, digits and a few signs, which every file system takes."""
    return re.sub(r"[^\w.=%+-]+", "-", text).strip("-.") or "run"


def _label(run: Run[Any, Any], runs: Sequence[Run[Any, Any]]) -> str:
    several = any(each.seed != run.seed for each in runs)
    return f"{run.label}-{run.seed}" if several else run.label


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
    found = [path.name for path in sorted(folder.iterdir())]
    width = max(map(len, found), default=0) + 2
    lines = [f"{name:{width}}{known.get(name, '')}".rstrip() for name in found]
    text = "\n".join(["A run of astrarium. To make it again:", "", f"    {command}", "", *lines, ""])
    (folder / README).write_text(text, encoding="utf-8")
