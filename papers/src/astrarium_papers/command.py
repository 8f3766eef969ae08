"""astrarium reproduce NAME..."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astrarium.cli.options import Json, NoFolder, Out, Overwrite

if TYPE_CHECKING:
    from astrarium_papers.registry import Reproduction

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Such as symphony/table2, or all; none lists them."),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="A small form: minutes become seconds, numbers rougher.")
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Simulations at the same time.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Switch a cause on or off, such as startup=0s for Themis's figures; may be given again.",
    ),
]
Markdown = Annotated[
    Path | None,
    typer.Option("--markdown", metavar="PAGE", help="Write all tables to this page too, in its place."),
]


def reproduce(
    context: typer.Context,
    name: Names = None,
    quick: Quick = False,
    jobs: Jobs = 1,
    switched: Settings = None,
    markdown: Markdown = None,
    json: Json = False,
    out: Out = None,
    overwrite: Overwrite = False,
    no_folder: NoFolder = False,
) -> None:
    """Measure again what the papers printed."""
    from astrarium.cli import output
    from astrarium_papers import registry
    from astrarium_papers.tables import reproduction_tables

    if not name:
        _list(json)
        return
    names = _chosen(name)
    settings = _settings(switched or [])
    registry.check_settings(names, settings)
    _check_page(markdown)
    at = output.target("reproduce", "-".join(name), out, overwrite, no_folder)
    done = [_run(name, quick, jobs, settings) for name in names]
    result = {"reproductions": [reproduction.shown() for reproduction in done]}
    if at.path is not None:
        with at.draft() as draft:
            _write(draft, done, result, output.command_line(context))
    if markdown is not None:
        from astrarium_papers.markdown import page

        markdown.write_text(page(done, output.command_line(context)), encoding="utf-8")
    output.emit(
        json, result, [table for reproduction in done for table in reproduction_tables(reproduction)], at.path
    )


def _list(json: bool) -> None:
    from rich.table import Table

    from astrarium.cli.output import emit
    from astrarium_papers import registry

    titles = {name: registry.title(name) for name in registry.names()}
    table = Table("name", "what it is", box=None, pad_edge=False)
    for name, title in titles.items():
        table.add_row(name, title)
    emit(json, {"reproductions": [{"name": n, "title": t} for n, t in titles.items()]}, [table], None)


def _chosen(names: list[str]) -> list[str]:
    """Return the reproductions; every name is looked up before the first is run."""
    from astrarium.core.errors import InputError, one_of
    from astrarium_papers import registry

    known = registry.names()
    names = [registry.spelled(name) for name in names]
    for name in names:
        if name != "all" and name not in known:
            raise InputError("reproduction", name, one_of(["all", *known], name))
    return known if "all" in names else list(dict.fromkeys(names))


def _check_page(page: Path | None) -> None:
    """Check the page before the work begins: it may take long."""
    from astrarium.core.errors import InputError

    if page is not None and (page.is_dir() or not page.parent.is_dir()):
        raise InputError("--markdown", str(page), "a file in a folder that is there")


def _settings(settings: list[str]) -> dict[str, str]:
    from astrarium.core.errors import InputError

    for setting in settings:
        if not all(setting.partition("=")):
            raise InputError("--set", setting, "a name and a value, such as startup=0s")
    return {name: value for name, _, value in (setting.partition("=") for setting in settings)}


def _run(name: str, quick: bool, jobs: int, settings: dict[str, str]) -> Reproduction:
    from astrarium.cli.progress import status
    from astrarium_papers import registry
    from astrarium_papers.findings import Effort

    with status(name) as say:
        return registry.run(name, Effort(quick=quick, jobs=jobs, progress=say, settings=settings))


def _write(draft: Path, done: list[Reproduction], result: dict[str, Any], command: str) -> None:
    from astrarium.run import folder
    from astrarium.run.folder import file_name
    from astrarium_papers.tables import reproduction_tables

    plots = draft / "plots"
    plots.mkdir()
    for reproduction in done:
        reproduction.figure(plots / f"{file_name(reproduction.name)}.png")
    folder.write_tables(
        draft, [table for reproduction in done for table in reproduction_tables(reproduction)]
    )
    folder.write_summary(draft, result)
    folder.write_readme(draft, command)
