"""astrarium tune FILE"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astrarium.cli.options import Json, NoFolder, Overwrite, ScenarioFile, Seed

if TYPE_CHECKING:
    from astrarium.cli.tune.run import TuneRun
    from astrarium.tuning.scenario.read import TuningScenario

BASELINE = "fifo"
INTERRUPTED = 130

Policies = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--policy",
        metavar="POLICY",
        help="Instead of the file's policy, with settings if any: dynamic-fluid or dynamic-fluid:packed=2. "
        "Repeat it to run several on the same search.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "-o", "--override", "--set", metavar="KEY=VALUE", help="Override a field: -o search.iterations=81."
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option("--folder", "--out", metavar="DIR", help="The run folder; runs/<date>-tune-<name> if not."),
]
Compare = Annotated[
    bool, typer.Option("--compare", help=f"Run the same search with {BASELINE} too, side by side.")
]
Simulate = Annotated[
    bool, typer.Option("--simulate", help="Simulate the file's task, though it has a train function.")
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Run so many seeds, from the file's seed on.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the live run whose folder is given.")]


def tune(
    context: typer.Context,
    file: ScenarioFile,
    policy: Policies = None,
    compare: Compare = False,
    simulate: Simulate = False,
    seed: Seed = None,
    seeds: Seeds = 1,
    override: Overrides = None,
    json: Json = False,
    folder: Folder = None,
    overwrite: Overwrite = False,
    no_folder: NoFolder = False,
    resume: Resume = False,
) -> None:
    """Search for hyperparameters: simulated where the file has a task, live where it has a train function."""
    from astrarium.cli import output
    from astrarium.cli.tune import folder as tune_folder
    from astrarium.cli.tune.run import LivePlace, run_all
    from astrarium.core.errors import InputError
    from astrarium.tuning.scenario.read import load

    given = [*(override or []), *([] if seed is None else [f"seed={seed}"])]
    scenario = load(file, given)
    chosen = variants(scenario, policy or [], compare)
    live = scenario.train is not None and not simulate
    if resume and not live:
        raise InputError("--resume", None, "a live run, of a file with train: a simulation is run again")
    at = tune_folder.target(tune_folder.Wish(file, folder, overwrite, no_folder, resume))
    place = LivePlace(at.path, resume) if live else None
    with _told_how_to_go_on(at.path):
        runs = run_all(chosen, seeds, place)
    tables, shown = tables_of(runs), tune_folder.shown(runs)
    if at.path is not None:
        with tune_folder.filled(at, live) as draft:
            tune_folder.write(draft, runs, shown, tables, file.name, output.command_line(context))
    output.emit(json, shown, tables, at.path)
    _leave(runs, at.path)


def _leave(runs: list[TuneRun], folder: Path | None) -> None:
    """Who was interrupted, or found nothing at all, does not end well."""
    if runs[-1].interrupted:
        if folder is not None:
            _tell_how_to_go_on(folder)
        raise typer.Exit(INTERRUPTED)
    if any(run.summary.best is None for run in runs):
        raise typer.Exit(1)


@contextmanager
def _told_how_to_go_on(folder: Path | None) -> Iterator[None]:
    """A run that was interrupted while it started leaves nothing; those before it can be gone on with."""
    from astrarium.cli.tune.run import LIVE_STATE

    try:
        yield
    except KeyboardInterrupt:
        if folder is None or not (folder / LIVE_STATE).is_dir():
            raise
        _tell_how_to_go_on(folder)
        raise typer.Exit(INTERRUPTED) from None


def _tell_how_to_go_on(folder: Path) -> None:
    told = f"add --folder {folder} --resume to the command, and it goes on"
    print(f"interrupted: {told}", file=sys.stderr)


def variants(scenario: TuningScenario, specs: list[str], compare: bool) -> dict[str, TuningScenario]:
    """All of them checked before the first is run; the baseline first."""
    from astrarium.cli.variants import variants_of
    from astrarium.tuning.scenario.read import DEFAULT_POLICY

    def made(name: str, settings: dict[str, Any]) -> TuningScenario:
        same = name == scenario.policy and not settings
        return scenario if same else scenario.with_policy(name, **settings)

    own = DEFAULT_POLICY if scenario.policy == BASELINE else scenario.policy
    if compare and len(specs) < 2:
        specs = [BASELINE, *(specs or [own])]
    return variants_of(specs, made) if specs else {scenario.policy: scenario}


def tables_of(runs: list[TuneRun]) -> list[Any]:
    """Heat maps of the first seed on one time axis; of a single run its candidates too."""
    from astrarium.tuning.report import tables as made

    first = [run for run in runs if run.seed == runs[0].seed]
    by_policy = {run.label: [one.summary for one in runs if one.label == run.label] for run in first}
    lines = [made.failures_line(first[-1].candidates), made.remembered_line(run.summary for run in first)]
    tables: list[Any] = [_best_line(runs), *(line for line in lines if line is not None)]
    tables += [made.overview_table(by_policy), *_heat_maps(first, seeds=len(first) < len(runs))]
    if len(runs) == 1:
        tables.append(made.candidates_table(runs[0].candidates))
    if len(first) == 1 and len(runs) > 1:
        tables.append(made.seeds_table({run.seed: run.summary for run in runs}))
    return tables


def _best_line(runs: list[TuneRun]) -> Any:
    """Of all runs; of equals that of the last policy, with the first seed."""
    from astrarium.tuning.report.tables import best_line

    sign = 1 if runs[0].scenario.goal == "min" else -1
    places = [(sign * run.summary.best.value, run.seed, -n) for n, run in enumerate(runs) if run.summary.best]
    if not places:
        return best_line(runs[-1].summary)
    run = runs[-min(places)[2]]
    whose = [run.label] if len({one.label for one in runs}) > 1 else []
    whose += [f"seed {run.seed}"] if len({one.seed for one in runs}) > 1 else []
    return best_line(run.summary, ", ".join(whose))


def _heat_maps(runs: list[TuneRun], seeds: bool) -> list[Any]:
    from shutil import get_terminal_size

    from astrarium.tuning.report.summary import WINDOWS
    from astrarium.tuning.report.tables import fitting, heat_map

    end, width = max(run.record.end for run in runs), WINDOWS
    if sys.stdout.isatty():
        width = min(fitting(get_terminal_size().columns, run.record.gpus) for run in runs)
    return [line for run in runs for line in heat_map(_label(run, seeds), run.record, end, width)]


def _label(run: TuneRun, seeds: bool) -> str:
    return f"{run.label}, seed {run.seed}" if seeds else run.label
