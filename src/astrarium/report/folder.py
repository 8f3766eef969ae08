"""Run folders: everything about a run in one place, written whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from astrarium.core.errors import InputError
from astrarium.serving.record import ServingRecord

README = "README.txt"
PLAN = "plan.yaml"
_FILES = {
    "summary.json": "what the command prints with --json",
    "scenario.yaml": "the scenario as it was run, overrides included",
    "requests.npz": "one row a request: arrival, deadline, model, application, outcome (1 in time, 2 late, "
    "3 dropped, 4 failed), reason (an index into reasons), done, batch (-1: never ran); times in ns",
    "batches.npz": "one row a batch: model, gpu, size, dispatched, started, finished, fate (1 finished, "
    "2 preempted, 3 failed); times in ns",
    "timeline.json": "open it in https://ui.perfetto.dev or chrome://tracing",
    "tables.txt": "what the command prints without --json",
    "plots": "pictures",
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


def write_record(folder: Path, record: ServingRecord, scenario: str, outcomes: bool = True) -> None:
    """Everything about one run but its pictures and its summary."""
    from astrarium.report.timeline import write_timeline

    folder.mkdir(exist_ok=True)
    (folder / "scenario.yaml").write_text(scenario, encoding="utf-8")
    if outcomes:
        _write_columns(folder / "requests.npz", record.requests, reasons=record.reasons)
    _write_columns(folder / "batches.npz", record.batches, models=[m.name for m in record.setup.models])
    write_timeline(record, folder / "timeline.json")


def write_plan(folder: Path, plan: str) -> dict[str, str]:
    """Returns what to say of it."""
    (folder / PLAN).write_text(plan, encoding="utf-8")
    return {PLAN: "the plan that was run: which models live on which GPUs"}


def write_summary(folder: Path, summary: Any) -> None:
    (folder / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary)) + b"\n")


def write_tables(folder: Path, tables: Sequence[Any]) -> None:
    from rich.console import Console

    with (folder / "tables.txt").open("w", encoding="utf-8") as file:
        console = Console(file=file, width=160)
        for table in tables:
            console.print(table)


def write_plots(folder: Path, runs: Sequence[tuple[str, ServingRecord, Any]], title: str) -> None:
    """Two pictures of all runs; of a single one also what an autoscaler would make of it."""
    from astrarium.report.plots import draw_overview
    from astrarium.report.scaling import draw_scaling
    from astrarium.report.schedule import draw_schedule

    plots = folder / "plots"
    plots.mkdir()
    draw_overview(runs, plots / "overview.png", title)
    draw_schedule(runs, plots / "schedule.png")
    if len(runs) == 1:
        draw_scaling(runs[0][1], plots / "scaling.png")


def write_readme(folder: Path, command: str, others: Mapping[str, str] | None = None) -> None:
    """What each file is, and the command that makes the folder again. *others* adds names of ours."""
    known = {**_FILES, **(others or {})}
    found = [path.name for path in sorted(folder.iterdir())]
    width = max(map(len, found), default=0) + 2
    lines = [f"{name:{width}}{known.get(name, '')}".rstrip() for name in found]
    text = "\n".join(["A run of astrarium. To make it again:", "", f"    {command}", "", *lines, ""])
    (folder / README).write_text(text, encoding="utf-8")


def _write_columns(path: Path, columns: Any, **extra: Sequence[str]) -> None:
    import numpy as np

    arrays: dict[str, Any] = {**vars(columns), **{name: np.array(list(v)) for name, v in extra.items()}}
    np.savez(path, **arrays)
