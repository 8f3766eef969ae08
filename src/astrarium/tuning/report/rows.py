"""Tuning runs, as rows for a spreadsheet: one file for each kind of thing."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from astrarium.core.units import SECOND
from astrarium.tuning.contract import Put
from astrarium.tuning.record import Decision, TuningRecord
from astrarium.tuning.report.summary import WINDOWS, CandidateSummary
from astrarium.tuning.runtime import Place
from astrarium.tuning.state import TrialRow

CANDIDATES_FILE, TRIALS_FILE, PLACES_FILE = "candidates.csv", "trials.csv", "places.csv"
DECISIONS_FILE, HEAT_FILE = "decisions.csv", "utilization.csv"
FILES = {
    CANDIDATES_FILE: "one row a candidate, the best first: value, iterations, GPU time, how it ended, values",
    TRIALS_FILE: "one row a trial: the candidate that it trained, from when to when, moves, GPU time",
    PLACES_FILE: "one row for each time that a trial was at a place: its GPUs, and its share of them",
    DECISIONS_FILE: "one row for each place that the policy gave, or pause, and why",
    HEAT_FILE: "one row for each GPU and window of time: the part of it that was held",
    "scenario.yaml": "the scenario as it was run, overrides included",
}


def write_rows(record: TuningRecord, candidates: Sequence[CandidateSummary], folder: Path) -> None:
    _write_candidates(candidates, folder / CANDIDATES_FILE)
    trials = ("trial", "group", "candidate", "begins", "iterations", "arrived_s", "started_s", "ended_s",
              "outcome", "reason", "done", "moves", "gpu_s")  # fmt: skip
    _write(folder / TRIALS_FILE, trials, map(_trial_cells, record.rows))
    owner = {row.trial.id: row.trial.candidate for row in record.rows}
    places = (
        (each.trial, owner[each.trial], *_place_cells(each.place), each.start / SECOND, each.end / SECOND)
        for each in record.stays
    )
    _write(folder / PLACES_FILE, ("trial", "candidate", "gpus", "share", "start_s", "end_s"), places)
    decisions = ("at_s", "what", "trial", "candidate", "gpus", "share", "why")
    _write(folder / DECISIONS_FILE, decisions, (_decision_cells(each, owner) for each in record.decisions))
    _write_heat(record, folder / HEAT_FILE)


def _write_candidates(candidates: Sequence[CandidateSummary], path: Path) -> None:
    names = list(dict.fromkeys(name for each in candidates for name in each.configuration))
    columns = ("candidate", "value", "iterations", "gpu_s", "moves", "standing", "reason", "source")
    rows = (
        (*(getattr(each, name) for name in columns), *(each.configuration.get(name) for name in names))
        for each in candidates
    )
    _write(path, (*columns, *(f"configuration.{name}" for name in names)), rows)


def _trial_cells(row: TrialRow) -> list[Any]:
    trial, instants = row.trial, (row.arrived, row.started, row.ended)
    moments = ["" if at < 0 else at / SECOND for at in instants]
    ending = [row.outcome.name.lower(), row.reason, row.done, row.moves, row.gpu_time / SECOND]
    return [trial.id, trial.group, trial.candidate, trial.begins, trial.iterations, *moments, *ending]


def _decision_cells(each: Decision, owner: Mapping[int, int]) -> list[Any]:
    action: Any = each.action
    put = isinstance(action, Put)
    place = _place_cells(action.place) if put else ["", ""]
    what = "put" if put else "pause"
    return [each.at / SECOND, what, action.trial, owner[action.trial], *place, action.why]


def _place_cells(place: Place) -> list[Any]:
    return [" ".join(map(str, place.gpus)), float(place.share)]


def _write_heat(record: TuningRecord, path: Path) -> None:
    length = record.end / SECOND / WINDOWS
    rows = (
        (gpu, window * length, (window + 1) * length, part)
        for gpu, parts in record.windows(WINDOWS).items()
        for window, part in enumerate(parts)
    )
    _write(path, ("gpu", "start_s", "end_s", "held"), rows)


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
