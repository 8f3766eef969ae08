"""What `astrarium run` does with a file that has a train function: the search runs live.

It runs on the GPUs of this machine, on emulated ones, or on a Ray cluster, one policy and seed after another.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import typer

from astrarium.cli import output
from astrarium.core.errors import InputError, read_from
from astrarium.core.level import Level, Run
from astrarium.core.quantities import SECOND
from astrarium.run.folder import file_name, write_runs
from astrarium.run.waiting import waiting
from astrarium.tuning.live.loop.limits import LiveLimits
from astrarium.tuning.live.progress import SearchProgress
from astrarium.tuning.live.run.folder import folder_lock
from astrarium.tuning.live.run.spec import SearchSpec
from astrarium.tuning.live.training.workers import Emulated
from astrarium.tuning.live.tune import trained
from astrarium.tuning.live.tuned import with_checkpoint
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.report.files import FILES
from astrarium.tuning.scenario.read import TuningScenario
from astrarium.tuning.scenario.sampler import sampler_of

SearchRun = Run[TuningScenario, TuningRecord]
LIVE_STATE = "live"
EARLIER = "earlier"
CUT_SHORT = "it was interrupted"  # what a live run says of its end
INTERRUPTED = 130  # the exit status
_LIVE_NOTE = {LIVE_STATE: "checkpoints, logs and recordings of live runs: `--resume` goes on with them"}


class Wanted(NamedTuple):
    """The options of a live search: where its folder is, and whether it goes on with what is there."""

    file: Path
    seeds: int
    out: Path | None
    overwrite: bool
    no_folder: bool
    resume: bool


def search(
    context: typer.Context,
    level: Level[TuningScenario, TuningRecord],
    chosen: Mapping[str, TuningScenario],
    wanted: Wanted,
    json: bool,
) -> None:
    """Run a search live, with each policy that was chosen, and each seed."""
    scenario = next(iter(chosen.values()))
    if scenario.train is None:
        expected = "a train function: this file has a task alone, which `astrarium simulate` runs"
        raise InputError("train", None, expected, scenario.source)
    at = _target(wanted)
    with _told_how_to_go_on(at.path):
        runs = _run_all(level, chosen, wanted, at.path)
    tables = level.report.tables(runs)
    shown = {**level.report.shown(runs), "live": True}
    if at.path is not None:
        with _filled(at) as draft:
            (draft / LIVE_STATE).mkdir()  # it will stand beside the rest: named, and not touched
            title = wanted.file.name
            command = output.command_line(context)
            write_runs(draft, runs, title, command, True, tables, shown, _LIVE_NOTE)
            (draft / LIVE_STATE).rmdir()
    output.emit(json, {"level": level.name, **shown}, tables, at.path)
    _leave(runs, at.path)


def _run_all(
    level: Level[TuningScenario, TuningRecord],
    chosen: Mapping[str, TuningScenario],
    wanted: Wanted,
    folder: Path | None,
) -> list[SearchRun]:
    """Run all that is wanted. *folder* keeps checkpoints while trials train; None: they go with the run."""
    runs: list[SearchRun] = []
    for label, more in product(chosen, range(wanted.seeds)):
        scenario = chosen[label].with_seed(chosen[label].seed + more)
        state = None if folder is None else folder / LIVE_STATE / f"{file_name(label)}-{scenario.seed}"
        with read_from(scenario.source):
            record = _live(label, scenario, state, wanted.resume)
        summary = with_checkpoint(level.summarize(scenario, record), record, state)
        runs.append(Run(level, scenario, label, record, summary))
        if record.over == CUT_SHORT:
            break
    return runs


def _live(label: str, scenario: TuningScenario, state: Path | None, resume: bool) -> TuningRecord:
    where = f"; checkpoints in {state}" if state is not None else ""
    count = gpus(scenario) or "all"
    kind = "GPUs" if scenario.emulated is None else "emulated GPUs"
    print(f"{label}, seed {scenario.seed}: live on {count} {kind}{where}", file=sys.stderr, flush=True)
    resume = resume and state is not None and state.is_dir()  # of several runs, some had not begun
    with SearchProgress(label) as progress:
        return run_live(scenario, state, resume, progress.show)


def _leave(runs: Sequence[SearchRun], folder: Path | None) -> None:
    """End with an error code if the search was interrupted, or found nothing at all."""
    if runs[-1].record.over == CUT_SHORT:
        if folder is not None:
            _tell_how_to_go_on(folder)
        raise typer.Exit(INTERRUPTED)
    if any(run.summary.best is None for run in runs):
        raise typer.Exit(1)


@contextmanager
def _told_how_to_go_on(folder: Path | None) -> Iterator[None]:
    """A run that was interrupted while it started leaves nothing; those before it can be gone on with."""
    try:
        yield
    except KeyboardInterrupt:
        if folder is None or not (folder / LIVE_STATE).is_dir():
            raise
        _tell_how_to_go_on(folder)
        raise typer.Exit(INTERRUPTED) from None


def _tell_how_to_go_on(folder: Path) -> None:
    advice = f"add --out {folder} --resume to the command, and it goes on"
    print(f"interrupted: {advice}", file=sys.stderr)


def _target(wanted: Wanted) -> output.Target:
    """Return the folder: a run that goes on has one already, all others need one that is free."""
    chosen = wanted.out
    kept = wanted.out is not None and (wanted.out / LIVE_STATE).is_dir()
    if not wanted.resume:
        if chosen is not None and kept and not wanted.no_folder:
            _cleared(chosen, wanted.overwrite)
        return output.target("run", wanted.file.stem, chosen, wanted.overwrite, wanted.no_folder)
    if chosen is None or wanted.no_folder:
        raise InputError("--resume", None, "--out DIR with it: the folder of the run that goes on")
    if not kept:
        expected = f"the folder of a live run, to go on with: this one has no {LIVE_STATE}"
        raise InputError("--out", str(chosen), expected)
    return output.Target(chosen, False)


def _cleared(folder: Path, overwrite: bool) -> None:
    """Remove what a live run kept; one that was cut off may have left nothing else."""
    if not overwrite:
        expected = (
            "an empty or new folder: a live run is here, which --resume goes on with (or add --overwrite)"
        )
        raise InputError("--out", str(folder), expected)
    with ExitStack() as locks:  # all or nothing: of several runs, one may be under way
        for state in [path for path in (folder / LIVE_STATE).iterdir() if path.is_dir()]:
            locks.enter_context(folder_lock(state))
        shutil.rmtree(folder / LIVE_STATE)


@contextmanager
def _filled(at: output.Target) -> Iterator[Path]:
    """Fill the folder of a live run, which is there already: its report is put beside what it keeps."""
    assert at.path is not None
    draft = at.path / ".draft"
    try:
        draft.mkdir(parents=True, exist_ok=True)
        with waiting("writing tables and drawing plots"):
            yield draft
        parts = list(draft.iterdir())
        _make_room(at.path, {*FILES, *(part.name for part in parts)}, at.overwrite)
        for part in parts:
            part.replace(at.path / part.name)
    except OSError as error:
        expected = f"a folder that can be written: {error.strerror}"
        raise InputError("--out", str(at.path), expected) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _make_room(folder: Path, names: set[str], overwrite: bool) -> None:
    """The report that a run left before it went on has times that the new one has not: it stays."""
    there = [folder / name for name in sorted(names) if (folder / name).exists()]
    if not there:
        return
    aside = folder / f"{EARLIER}-{len(list(folder.glob(f'{EARLIER}-*'))) + 1}"
    aside.mkdir()
    for path in there:
        path.rename(aside / path.name)
    for path in folder.glob(f"{EARLIER}-*") if overwrite else ():
        shutil.rmtree(path)


def run_live(
    scenario: TuningScenario, folder: Path | None, resume: bool, progress: Callable[[Any], None]
) -> TuningRecord:
    """*folder* keeps checkpoints and results, and *resume* goes on with what is there."""
    assert scenario.train is not None
    build: str = scenario.train
    spec = SearchSpec(
        space=scenario.space,
        search=scenario.search,
        sampler=sampler_of(scenario.sampler, scenario.space, scenario.goal, scenario.seed),
        policy=scenario.policy,
        goal=scenario.goal,
        target=scenario.target,
        metric=scenario.metric,
        seed=scenario.seed,
        folder=folder,
        resume=resume,
        progress=progress,
        limits=LiveLimits() if scenario.live.longest is None else LiveLimits(longest=scenario.live.longest),
    )
    options = scenario.emulated
    emulated = options is not None and Emulated(packing=options.packing, scaling=options.scaling)
    return trained(build, spec, scenario.engine, None, gpus(scenario), emulated, **settings(scenario))


def gpus(scenario: TuningScenario) -> int | None:
    """Return how many GPUs the file asks for; None: all that are there.

    What a simulation takes by default is a guess about other machines.
    """
    chosen = scenario.raw.get("gpus") is not None or scenario.emulated is not None
    return scenario.gpus if chosen else None


def settings(scenario: TuningScenario) -> dict[str, Any]:
    """Return the settings of trial processes that the file has."""
    live = scenario.live
    times = {"checkpoint_seconds": live.checkpoints, "patience": live.patience}
    others = {name: getattr(live, name) for name in ("packing", "gate", "keep", "threads", "address")}
    in_seconds = {name: None if value is None else value / SECOND for name, value in times.items()}
    return {name: value for name, value in {**in_seconds, **others}.items() if value is not None}
