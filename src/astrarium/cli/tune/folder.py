"""The folder that is written of tuning runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from astrarium.cli import output
from astrarium.cli.tune.run import LIVE_STATE, TuneRun
from astrarium.core.errors import InputError
from astrarium.run import folder
from astrarium.run.waiting import waiting
from astrarium.tuning.live.run import folder_lock
from astrarium.tuning.report.summary import WINDOWS
from astrarium.tuning.report.tables import FILES, ratios, write_rows


class Wish(NamedTuple):
    """The options about folders."""

    file: Path
    folder: Path | None
    overwrite: bool
    no_folder: bool
    resume: bool


EARLIER = "earlier"
_LIVE_NOTE = {LIVE_STATE: "checkpoints, logs and recordings of live runs: `--resume` goes on with them"}


def target(wish: Wish) -> output.Target:
    """A run that goes on has a folder already; all others need one that is free."""
    chosen, kept = wish.folder, wish.folder is not None and (wish.folder / LIVE_STATE).is_dir()
    if not wish.resume:
        if chosen is not None and kept and not wish.no_folder:
            _cleared(chosen, wish.overwrite)
        return output.target("tune", wish.file.stem, chosen, wish.overwrite, wish.no_folder)
    if chosen is None or wish.no_folder:
        raise InputError("--resume", None, "--folder DIR with it: the folder of the run that goes on")
    if not kept:
        told = f"the folder of a live run, to go on with: this one has no {LIVE_STATE}"
        raise InputError("--folder", str(chosen), told)
    return output.Target(chosen, False)


def _cleared(folder: Path, overwrite: bool) -> None:
    """Of what a live run kept; one that was cut off may have left nothing else."""
    if not overwrite:
        told = "an empty or new folder: a live run is here, which --resume goes on with (or add --overwrite)"
        raise InputError("--folder", str(folder), told)
    with ExitStack() as locks:  # all or nothing: of several runs, one may be under way
        for state in [each for each in (folder / LIVE_STATE).iterdir() if each.is_dir()]:
            locks.enter_context(folder_lock(state))
        shutil.rmtree(folder / LIVE_STATE)


@contextmanager
def filled(at: output.Target, live: bool) -> Iterator[Path]:
    """A folder to fill. That of a live run is there already: its report is put beside what it keeps."""
    if not live:
        with at.draft() as draft:
            yield draft
        return
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
        told = f"a folder that can be written: {error.strerror}"
        raise InputError("--folder", str(at.path), told) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _make_room(folder: Path, names: set[str], overwrite: bool) -> None:
    """The report that a run left before it went on has times that the new one has not: it stays."""
    there = [folder / name for name in sorted(names) if (folder / name).exists()]
    if not there:
        return
    aside = folder / f"{EARLIER}-{len(list(folder.glob(f'{EARLIER}-*'))) + 1}"
    aside.mkdir()
    for each in there:
        each.rename(aside / each.name)
    for each in folder.glob(f"{EARLIER}-*") if overwrite else ():
        shutil.rmtree(each)


def shown(runs: Sequence[TuneRun]) -> dict[str, Any]:
    """What --json prints: of one run its candidates and its heat map too."""
    if len(runs) == 1:
        [run] = runs
        about = {"live": run.live, "seed": run.seed, "search": run.scenario.search}
        heat = {str(gpu): parts for gpu, parts in run.record.windows(WINDOWS).items()}
        candidates = [output.plain(each) for each in run.candidates]
        return {**about, **output.plain(run.summary), "by_candidate": candidates, "heat_map": heat}
    seeds = list(dict.fromkeys(run.seed for run in runs))
    found = {
        seed: {run.label: output.plain(run.summary) for run in runs if run.seed == seed} for seed in seeds
    }
    told = {"live": runs[0].live, "search": runs[0].scenario.search, "seeds": seeds, "sooner": _sooner(runs)}
    return {**told, "policies": found[seeds[0]]} if len(seeds) == 1 else {**told, "by_seed": found}


def _sooner(runs: Sequence[TuneRun]) -> dict[str, dict[str, list[float]]]:
    """How many times sooner than the first policy, for each seed in which both have such a time."""
    labels = list(dict.fromkeys(run.label for run in runs))
    of = {label: [run.summary for run in runs if run.label == label] for label in labels}
    names = ("makespan_s", "time_to_target_s")
    return {
        label: {name.removesuffix("_s"): ratios(of[label], of[labels[0]], name) for name in names}
        for label in labels[1:]
    }


def write(
    draft: Path,
    runs: Sequence[TuneRun],
    result: dict[str, Any],
    tables: Sequence[Any],
    title: str,
    command: str,
) -> None:
    notes = {**FILES, **(_LIVE_NOTE if runs[0].live else {})}
    for run in runs:
        place = draft if len(runs) == 1 else draft / _name(run, runs)
        _write_run(place, run)
        if place != draft:
            folder.write_summary(place, output.plain(run.summary))
            notes[place.name] = f"the run of {run.label} with seed {run.seed}: summary, scenario, rows"
    folder.write_summary(draft, result)
    folder.write_tables(draft, tables)
    _draw(draft / "plots", [run for run in runs if run.seed == runs[0].seed], title)
    if not runs[0].live:
        folder.write_readme(draft, command, notes)
        return
    (draft / LIVE_STATE).mkdir()  # it will stand beside the rest: named, and not touched
    folder.write_readme(draft, command, notes)
    (draft / LIVE_STATE).rmdir()


def _name(run: TuneRun, runs: Sequence[TuneRun]) -> str:
    several = any(each.seed != run.seed for each in runs)
    return output.file_name(run.label) + (f"-{run.seed}" if several else "")


def _write_run(place: Path, run: TuneRun) -> None:
    place.mkdir(exist_ok=True)
    (place / "scenario.yaml").write_text(run.scenario.to_yaml(), encoding="utf-8")
    write_rows(run.record, run.candidates, place)


def _draw(plots: Path, runs: Sequence[TuneRun], title: str) -> None:
    from astrarium.tuning.report.plots import Drawn, draw_best, draw_heat, draw_trials

    plots.mkdir()
    drawn = [Drawn(run.label, run.record, run.summary) for run in runs]
    draw_heat(drawn, plots / "utilization.png")
    draw_best(drawn, plots / "best.png", f"{title}: the best so far")
    draw_trials(drawn, plots / "trials.png")
