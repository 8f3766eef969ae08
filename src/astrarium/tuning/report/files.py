"""A finished search as tables, rows, files, a timeline and pictures."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astrarium.core.level import Run
from astrarium.core.quantities import SECOND
from astrarium.run.report import NamedRows, columns, picked, struct_as_dict, write_csv
from astrarium.run.tables import moment
from astrarium.run.timeline import Entry, process, slice_of, thread, timeline, write_timeline
from astrarium.tuning.contract import Put
from astrarium.tuning.record import Decision, TuningRecord
from astrarium.tuning.report import tables as tuning_tables
from astrarium.tuning.report.heat_map import fitting, heat_map
from astrarium.tuning.report.summary import WINDOWS, CandidateSummary, TuningSummary, metrics_of, summarize
from astrarium.tuning.runtime import Place
from astrarium.tuning.state import TrialRow

if TYPE_CHECKING:
    from astrarium.tuning.scenario.read import TuningScenario

Runs = Sequence["Run[TuningScenario, TuningRecord]"]
FILES = {
    "candidates.csv": "one row a candidate, the best first: value, iterations, GPU time, ending, values",
    "trials.csv": "one row a trial: the candidate that it trained, from when to when, moves, GPU time",
    "curves.csv": "one row for each value that a candidate has reported, and other numbers with it",
    "places.csv": "one row for each time that a trial was at a place: its GPUs, and its share of them",
    "decisions.csv": "one row for each place that the policy gave, or pause, and why",
    "utilization.csv": "one row for each GPU and window of time: the part of it that was held",
    "timeline.json": "who trained where when: open it in https://ui.perfetto.dev or chrome://tracing",
}
TRIALS = ("trial", "group", "candidate", "begins", "iterations", "arrived_s", "started_s", "ended_s",
          "outcome", "reason", "done", "moves", "gpu_s")  # fmt: skip
PLACES = ("trial", "candidate", "gpus", "share", "start_s", "end_s")
DECISIONS = ("at_s", "what", "trial", "candidate", "gpus", "share", "why")
CANDIDATES = ("candidate", "value", "iterations", "gpu_s", "moves", "standing", "reason", "source")
CURVES = ("candidate", "iterations", "at_s", "value")
HEAT = ("gpu", "start_s", "end_s", "held")
MOST_SLICES = 20_000


def summarize_run(scenario: TuningScenario, record: TuningRecord) -> TuningSummary:
    return summarize(record, scenario.goal, scenario.good)


def tables(runs: Runs) -> list[Any]:
    """Return heat maps of the first seed on one time axis; of a single run its candidates too."""
    first = [run for run in runs if run.seed == runs[0].seed]
    by_policy = {run.label: [one.summary for one in runs if one.label == run.label] for run in first}
    failures = tuning_tables.failures_line(first[-1].summary.by_candidate)
    lines = [failures, tuning_tables.remembered_line(run.summary for run in first)]
    parts: list[Any] = [_best_line(runs), *(line for line in lines if line is not None)]
    parts += [tuning_tables.overview_table(by_policy), *_heat_maps(first, seeds=len(first) < len(runs))]
    if len(runs) == 1:
        parts.append(tuning_tables.candidates_table(runs[0].summary.by_candidate))
    if len(first) == 1 and len(runs) > 1:
        parts.append(tuning_tables.seeds_table({run.seed: run.summary for run in runs}))
    return parts


def _best_line(runs: Runs) -> Any:
    """Return the best of all runs; of equals that of the last policy, with the first seed."""
    sign = 1 if runs[0].scenario.goal == "min" else -1
    places = [(sign * run.summary.best.value, run.seed, -n) for n, run in enumerate(runs) if run.summary.best]
    if not places:
        return tuning_tables.best_line(runs[-1].summary)
    run = runs[-min(places)[2]]
    whose = [run.label] if len({one.label for one in runs}) > 1 else []
    whose += [f"seed {run.seed}"] if len({one.seed for one in runs}) > 1 else []
    return tuning_tables.best_line(run.summary, ", ".join(whose))


def _heat_maps(runs: Runs, seeds: bool) -> list[Any]:
    from shutil import get_terminal_size

    end = max(run.record.end for run in runs)
    width = WINDOWS
    if sys.stdout.isatty():
        width = min(fitting(get_terminal_size().columns, run.record.gpus) for run in runs)
    labels = [f"{run.label}, seed {run.seed}" if seeds else run.label for run in runs]
    return [
        line
        for label, run in zip(labels, runs, strict=True)
        for line in heat_map(label, run.record, end, width)
    ]


def shown(runs: Runs) -> dict[str, Any]:
    """Return what --json prints: of one run its candidates and its heat map too."""
    about = {"live": False, "search": runs[0].scenario.search.name}
    if len(runs) == 1:
        [run] = runs
        heat = {str(gpu): parts for gpu, parts in run.record.windows(WINDOWS).items()}
        return {"seed": run.seed, **about, **struct_as_dict(run.summary), "heat_map": heat}
    seeds = list(dict.fromkeys(run.seed for run in runs))
    briefs = {seed: {run.label: _brief(run.summary) for run in runs if run.seed == seed} for seed in seeds}
    content = {**about, "seeds": seeds, "sooner": _sooner(runs)}
    return {**content, "policies": briefs[seeds[0]]} if len(seeds) == 1 else {**content, "by_seed": briefs}


def _brief(summary: TuningSummary) -> dict[str, Any]:
    return {key: value for key, value in struct_as_dict(summary).items() if key != "by_candidate"}


def _sooner(runs: Runs) -> dict[str, dict[str, list[float]]]:
    """Return how many times sooner than the first policy each was, by seed, where both have a time."""
    labels = list(dict.fromkeys(run.label for run in runs))
    of = {label: [run.summary for run in runs if run.label == label] for label in labels}
    names = ("makespan_s", "time_to_target_s")
    return {
        label: {
            name.removesuffix("_s"): tuning_tables.ratios(of[label], of[labels[0]], name) for name in names
        }
        for label in labels[1:]
    }


def write(run: Run[TuningScenario, TuningRecord], folder: Path, outcomes: bool) -> None:
    """Write rows of everything, if *outcomes*, and the timeline."""
    record = run.record
    if outcomes:
        kinds = {"candidates": _candidates(run.summary.by_candidate), **_rows(record)}
        for name, (names, cells) in kinds.items():
            write_csv(folder / f"{name}.csv", names, cells)
    write_timeline(folder / "timeline.json", trials_timeline(record))


def draw(runs: Runs, plots: Path, title: str) -> None:
    """Draw the runs of the first seed: how full GPUs were, how good the best was, who trained where."""
    from astrarium.tuning.report.plots import draw_best, draw_heat, draw_trials

    first = [run for run in runs if run.seed == runs[0].seed]
    draw_heat(first, plots / "utilization.png")
    draw_best(first, plots / "best.png", f"{title}: the best so far")
    draw_trials(first, plots / "trials.png")


def rows(record: TuningRecord) -> Mapping[str, Mapping[str, Sequence[Any]]]:
    """Return trials, places, decisions and use as columns; times in seconds."""
    return {name: columns(names, cells) for name, (names, cells) in _rows(record).items()}


def _rows(record: TuningRecord) -> dict[str, NamedRows]:
    """Return the rows of each kind, with the names of their columns."""
    return {
        "trials": (TRIALS, map(_trial_cells, record.rows)),
        "curves": _curves(record),
        "places": (PLACES, _places(record)),
        "decisions": (DECISIONS, _decisions(record)),
        "utilization": (HEAT, _heat(record)),
    }


def explain(run: Run[TuningScenario, TuningRecord], item: str) -> list[str]:
    """Say where a trial trained, why it was put there, and how it ended."""
    record = run.record
    row = picked({str(row.trial.id): row for row in record.rows}, item, "trial")
    trial = row.trial
    lines = [f"trial {trial.id} of candidate {trial.candidate}, under {run.label}"]
    lines.append(f"It comes at {moment(row.arrived)}, to train {trial.iterations} iterations.")
    for decision in record.decisions:
        action: Any = decision.action
        if action.trial == trial.id:
            where = f"is put on {_where(action.place)}" if isinstance(action, Put) else "pauses"
            lines.append(f"At {moment(decision.at)} it {where}{': ' + action.why if action.why else '.'}")
    why = f": {row.reason}" if row.reason else ""
    return [*lines, f"It ends at {moment(row.ended)}, {row.outcome.name.lower()}{why}."]


def _where(place: Place) -> str:
    gpus = ", ".join(map(str, place.gpus))
    return f"GPU {gpus} ({float(place.share):.0%} of it)" if len(place.gpus) == 1 else f"GPUs {gpus}"


def trials_timeline(record: TuningRecord) -> Entry:
    """Return a track for each GPU, with a slice for each time that a trial was there."""
    owner = {row.trial.id: row.trial.candidate for row in record.rows}
    tracks = [entry for gpu in record.gpus for entry in thread(1, gpu, f"GPU {gpu}")]
    slices = [
        slice_of(f"candidate {owner[stay.trial]}", 1, gpu, stay.start, stay.end)
        for stay in record.stays[:MOST_SLICES]
        for gpu in stay.place.gpus
    ]
    shown = {"policy": record.policy, "places": len(record.stays), "places_shown": len(slices)}
    return timeline([process(1, "GPUs"), *tracks, *slices], shown)


def _candidates(candidates: Sequence[CandidateSummary]) -> NamedRows:
    names = list(dict.fromkeys(name for candidate in candidates for name in candidate.configuration))
    metrics = metrics_of(candidates)
    cells = (
        (
            *(getattr(candidate, name) for name in CANDIDATES),
            *(candidate.metrics.get(name) for name in metrics),
            *(candidate.configuration.get(name) for name in names),
        )
        for candidate in candidates
    )
    titles = [*(f"metric.{name}" for name in metrics), *(f"configuration.{name}" for name in names)]
    return [*CANDIDATES, *titles], cells


def _curves(record: TuningRecord) -> NamedRows:
    scores = [(one.number, score) for one in record.candidates for score in one.curve]
    names = list(dict.fromkeys(name for _, score in scores for name in score.metrics))
    cells = (
        (
            number,
            score.iterations,
            score.at / SECOND,
            score.value,
            *(score.metrics.get(name, nan) for name in names),
        )
        for number, score in scores
    )
    return [*CURVES, *(f"metric.{name}" for name in names)], cells


def _places(record: TuningRecord) -> Iterator[Sequence[Any]]:
    owner = {row.trial.id: row.trial.candidate for row in record.rows}
    for stay in record.stays:
        times = (stay.start / SECOND, stay.end / SECOND)
        yield (stay.trial, owner[stay.trial], *_place_cells(stay.place), *times)


def _decisions(record: TuningRecord) -> Iterator[Sequence[Any]]:
    owner = {row.trial.id: row.trial.candidate for row in record.rows}
    return (_decision_cells(decision, owner) for decision in record.decisions)


def _heat(record: TuningRecord) -> Iterator[Sequence[Any]]:
    length = record.end / SECOND / WINDOWS
    for gpu, parts in record.windows(WINDOWS).items():
        for window, part in enumerate(parts):
            yield (gpu, window * length, (window + 1) * length, part)


def _trial_cells(row: TrialRow) -> list[Any]:
    trial = row.trial
    instants = (row.arrived, row.started, row.ended)
    moments = ["" if at < 0 else at / SECOND for at in instants]
    ending = [row.outcome.name.lower(), row.reason, row.done, row.moves, row.gpu_time / SECOND]
    return [trial.id, trial.group, trial.candidate, trial.begins, trial.iterations, *moments, *ending]


def _decision_cells(decision: Decision, owner: Mapping[int, int]) -> list[Any]:
    action: Any = decision.action
    put = isinstance(action, Put)
    place = _place_cells(action.place) if put else ["", ""]
    what = "put" if put else "pause"
    return [decision.at / SECOND, what, action.trial, owner[action.trial], *place, action.why]


def _place_cells(place: Place) -> list[Any]:
    return [" ".join(map(str, place.gpus)), float(place.share)]
