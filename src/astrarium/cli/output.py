"""Where results go: one JSON object or tables on stdout, a run folder on disk, everything else on stderr."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from astrarium.run.waiting import waiting

if TYPE_CHECKING:
    from astrarium.core.level import Run


class Target:
    """The run folder that a verb will write, checked before the work begins."""

    def __init__(self, path: Path | None, overwrite: bool, proposed: bool = False) -> None:
        self.path = path
        self.overwrite = overwrite
        self.proposed = proposed

    @contextmanager
    def draft(self) -> Iterator[Path]:
        from astrarium.run.folder import run_folder

        assert self.path is not None
        home = self.path.parent

        def placed(place: Path) -> None:
            self.path = home / place.name

        with (
            run_folder(self.path, self.overwrite, placed if self.proposed else None) as draft,
            waiting("writing tables and drawing plots"),
        ):
            yield draft


def target(verb: str, name: str, out: Path | None, overwrite: bool, no_folder: bool) -> Target:
    from astrarium.run.folder import check_free, file_name, unused

    if no_folder:
        return Target(None, False)
    if out is None:
        date = datetime.now().strftime("%Y%m%d-%H%M%S")
        return Target(unused(Path("runs") / f"{date}-{verb}-{file_name(name)}"), False, proposed=True)
    check_free(out.resolve(), overwrite)
    return Target(out, overwrite)


def command_line(context: typer.Context) -> str:
    """Return what was typed, for the README of the folder."""
    arguments = context.find_root().obj
    return shlex.join(["astrarium", *(sys.argv[1:] if arguments is None else arguments)])


class Results(NamedTuple):
    """Finished runs, and what is shown of them beside the tables and facts of their level.

    *more* tables and *shown* facts are put behind the level's own; *files* lie in the folder too, *notes* say
    what they are, and what is in *draw* is called with the folder of pictures.
    """

    runs: Sequence[Run[Any, Any]]
    title: str
    more: Sequence[Any] = ()
    shown: Mapping[str, Any] = MappingProxyType({})
    files: Mapping[str, str | bytes] = MappingProxyType({})
    notes: Mapping[str, str] = MappingProxyType({})
    draw: Iterable[Any] = ()


def finish(context: typer.Context, at: Target, results: Results, as_json: bool, outcomes: bool) -> None:
    """Write the folder of finished runs, and show their tables."""
    from astrarium.run.folder import write_runs

    runs = results.runs
    report = results.runs[0].level.report
    tables = [*report.tables(runs), *results.more]
    facts = {**report.shown(runs), **results.shown}
    if at.path is not None:
        with at.draft() as draft:
            for name, text in results.files.items():
                (draft / name).write_bytes(text.encode() if isinstance(text, str) else text)
            (draft / "plots").mkdir()
            for picture in results.draw:
                picture(draft / "plots")
            command = command_line(context)
            write_runs(draft, runs, results.title, command, outcomes, tables, facts, results.notes)
    emit(as_json, {"level": runs[0].level.name, **facts}, tables, at.path)


def by_policy(runs: Sequence[Run[Any, Any]]) -> dict[str, Any]:
    """Return a run that was compared with no other under its policy's name too, as several are shown."""
    from astrarium.run.report import struct_as_dict

    return {"policies": {runs[0].label: struct_as_dict(runs[0].summary)}} if len(runs) == 1 else {}


def table(*left: str, right: Sequence[str] = (), rows: Iterable[Sequence[Any]] = ()) -> Any:
    """Return a table without lines; the columns on the *right* hold numbers."""
    from rich.table import Table

    shown = Table(*left, box=None, pad_edge=False)
    for title in right:
        shown.add_column(title, justify="right")
    for row in rows:
        shown.add_row(*row)
    return shown


def emit(as_json: bool, result: Mapping[str, Any], tables: Iterable[Any], folder: Path | None) -> None:
    """Print the one thing that goes to stdout."""
    if as_json:
        import msgspec

        place = None if folder is None else str(folder)
        sys.stdout.write(msgspec.json.encode({**result, "folder": place}).decode() + "\n")
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a pipe has no width; tables need some
    for table in tables:
        console.print(table, soft_wrap=getattr(table, "no_wrap", None) is True)  # sentences stay whole
    if folder is not None:
        console.print(f"written to {folder}", highlight=False, soft_wrap=True)
