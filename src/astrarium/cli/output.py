"""Where results go: one JSON object or tables on stdout, a run folder on disk, everything else on stderr."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from astrarium.placement.evaluation import Evaluation
    from astrarium.serving.goodput import Goodput
    from astrarium.serving.planned.run import PlannedRun
    from astrarium.serving.record import ServingRecord
    from astrarium.serving.report.summary import Summary
    from astrarium.serving.scenario import Scenario


class Target:
    """The run folder that a verb will write, checked before the work begins."""

    def __init__(self, path: Path | None, overwrite: bool, proposed: bool = False) -> None:
        self.path, self.overwrite, self.proposed = path, overwrite, proposed

    @contextmanager
    def draft(self) -> Iterator[Path]:
        from astrarium.run.folder import run_folder
        from astrarium.run.waiting import waiting

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
    from astrarium.run.folder import check_free, unused

    if no_folder:
        return Target(None, False)
    if out is None:
        date = datetime.now().strftime("%Y%m%d-%H%M%S")
        return Target(unused(Path("runs") / f"{date}-{verb}-{file_name(name)}"), False, proposed=True)
    check_free(out.resolve(), overwrite)
    return Target(out, overwrite)


def file_name(text: str) -> str:
    """Letters, digits and a few signs: what every file system takes."""
    return re.sub(r"[^\w.=%+-]+", "-", text).strip("-.") or "run"


def command_line(context: typer.Context) -> str:
    """What was typed, for the README of the folder."""
    arguments = context.find_root().obj
    return shlex.join(["astrarium", *(sys.argv[1:] if arguments is None else arguments)])


def load_scenario(
    file: Path, overrides: list[str] | None, seed: int | None, planned: bool = False
) -> Scenario:
    """*planned*: models need not fit all together on every GPU."""
    from astrarium.serving.scenario import load

    given = [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]
    return load(file, given, planning=planned)


def refuse_plan(plan: Path | None) -> None:
    from astrarium.core.errors import InputError

    if plan is not None:
        raise InputError("--plan", str(plan), "no plan here: jobs share one GPU, only models are placed")


def refuse_stages(stages: bool, router: str | None) -> None:
    from astrarium.core.errors import InputError

    if stages or router is not None:
        option = "--stages" if stages else "--router-wait"
        raise InputError(option, router, "a scenario with models: jobs have no such stages")


class Run(NamedTuple):
    """One simulated run and all that its folder shows."""

    scenario: Scenario
    record: ServingRecord
    summary: Summary
    title: str
    tables: list[Any]
    search: Goodput | None = None  # what led to this run
    plan: str | None = None  # the plan that it followed, as a file has it


def write_run(at: Target, run: Run, shown: dict[str, Any], command: str, outcomes: bool) -> None:
    """*shown* is what --json prints."""
    if at.path is None:
        return
    from astrarium.run import folder
    from astrarium.serving.report import files
    from astrarium.serving.report.plots import draw_probes

    with at.draft() as draft:
        files.write_record(draft, run.record, run.scenario.to_yaml(), outcomes)
        notes = {} if run.plan is None else files.write_plan(draft, run.plan)
        folder.write_summary(draft, shown)
        folder.write_tables(draft, run.tables)
        files.write_plots(draft, [(run.scenario.policy.name, run.record, run.summary)], run.title)
        if run.search is not None:
            draw_probes(run.search, draft / "plots" / "goodput.png")
        folder.write_readme(draft, command, {**files.FILES, **notes})


def emit(as_json: bool, result: dict[str, Any], tables: Iterable[Any], folder: Path | None) -> None:
    """The one thing on stdout."""
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


class Told(NamedTuple):
    """The same for people and for --json."""

    table: Any
    plain: Any


def stages(summary: Summary, record: ServingRecord, done: PlannedRun | None) -> Told:
    """Where time went in a run."""
    from astrarium.serving.planning.stages import stages_of
    from astrarium.serving.report.tables import plain_lines, stage_table

    lines = stages_of(record, done.parts if done else ())
    attained = {name: model.attainment for name, model in summary.models.items()}
    return Told(stage_table(lines, attained), plain_lines(lines))


def routed(found: Evaluation, wait: str) -> Told:
    """Where time went by the way of a router."""
    from astrarium.serving.report.tables import path_attained, path_lines, plain_lines, stage_table

    lines, attained = path_lines(found), path_attained(found)
    title = f"where time went with a router that waits {wait} at most"
    data = {
        "max_wait": wait,
        "attainment": found.attainment,
        "models": attained,
        "stages": plain_lines(lines),
    }
    return Told(stage_table(lines, attained, title), data)


def plain(struct: Any) -> dict[str, Any]:
    """A struct as the dictionary that JSON shows."""
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(struct)
    return found
