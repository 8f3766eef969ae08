"""The numbers of a tuning run: what was found, when, and what it took of the GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from astrarium.core.quantities import SECOND, Time
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.samplers import Goal
from astrarium.tuning.search.contract import Candidate, CandidateScore
from astrarium.tuning.state import TrialRow

WINDOWS = 72  # of a heat map


class BestFound(msgspec.Struct, frozen=True):
    """The best that a search has found: the candidate with the best value that was ever reported.

    *checkpoint* is the file with the best state of that candidate that is kept, if any, and
    *checkpoint_iterations* what it had then: less or more than *iterations* where saving took too long."""

    candidate: int
    value: float
    iterations: int  # that it had then
    at_s: float
    configuration: dict[str, Any]
    checkpoint: str | None = None
    checkpoint_iterations: int | None = None


class CandidateSummary(msgspec.Struct, frozen=True):
    """*value* is the best that it had, *iterations* what it trained for itself and its source before it."""

    candidate: int
    value: float | None
    iterations: int
    gpu_s: float
    moves: int
    standing: str
    reason: str
    source: int | None
    configuration: dict[str, Any]
    metrics: dict[str, float] = {}  # what else it reported with that value


class TuningSummary(msgspec.Struct, frozen=True):
    """*time_to_target_s*: None where there is no target, or nobody reached it. *gpu_hours* are those that
    trials trained for; *utilization* is the part of all GPUs that they held. *remembered*: trials that had
    ended in an earlier run, which this one went on with; times and GPUs are of this one."""

    policy: str
    goal: str
    target: float | None
    gpus: int
    candidates: int
    trials: int
    standings: dict[str, int]  # of candidates: those that occurred
    over: str
    makespan_s: float
    time_to_target_s: float | None
    utilization: float
    gpu_hours: float
    moves: int
    best: BestFound | None
    remembered: int = 0
    by_candidate: list[CandidateSummary] = []  # the best first


def summarize(record: TuningRecord, goal: Goal, target: float | None) -> TuningSummary:
    standings = [candidate.standing.name.lower() for candidate in record.candidates]
    reached = None if target is None else record.reached(target, goal)
    return TuningSummary(
        policy=record.policy,
        goal=goal,
        target=target,
        gpus=len(record.gpus),
        candidates=len(record.candidates),
        trials=len(record.rows),
        standings={name: standings.count(name) for name in sorted(set(standings))},
        over=record.over,
        makespan_s=record.end / SECOND,
        time_to_target_s=None if reached is None else reached / SECOND,
        utilization=record.utilization(),
        gpu_hours=sum(row.gpu_time for row in record.rows) / SECOND / 3600,
        moves=sum(row.moves for row in record.rows),
        best=best_found(record),
        remembered=record.remembered,
        by_candidate=summarize_candidates(record, goal),
    )


def best_found(record: TuningRecord) -> BestFound | None:
    if not record.best:
        return None
    last = record.best[-1]
    candidate = next(entry for entry in record.candidates if entry.number == last.candidate)
    values = dict(candidate.configuration.values)
    return BestFound(last.candidate, last.value, last.iterations, last.at / SECOND, values)


def metrics_of(candidates: Iterable[CandidateSummary]) -> list[str]:
    """Return the names of all numbers that candidates have reported beside their values."""
    return list(dict.fromkeys(name for candidate in candidates for name in candidate.metrics))


def summarize_candidates(record: TuningRecord, goal: Goal) -> list[CandidateSummary]:
    """Return candidates, the best first; those that never had a value last."""
    rows: dict[int, list[TrialRow]] = {}
    for row in record.rows:
        rows.setdefault(row.trial.candidate, []).append(row)
    ordered = sorted(record.candidates, key=lambda candidate: _rank(candidate, goal))
    return [_candidate(candidate, rows.get(candidate.number, []), goal) for candidate in ordered]


def _candidate(candidate: Candidate, rows: Iterable[TrialRow], goal: Goal) -> CandidateSummary:
    best = _best(candidate, goal)
    return CandidateSummary(
        candidate.number,
        None if best is None else best.value,
        candidate.trained,
        sum(row.gpu_time for row in rows) / SECOND,
        sum(row.moves for row in rows),
        candidate.standing.name.lower(),
        candidate.reason,
        candidate.source,
        dict(candidate.configuration.values),
        {} if best is None else dict(best.metrics),
    )


def _best(candidate: Candidate, goal: Goal) -> CandidateScore | None:
    sign = 1 if goal == "min" else -1
    return min(candidate.curve, key=lambda score: (sign * score.value, score.at), default=None)


def _rank(candidate: Candidate, goal: Goal) -> tuple[bool, float, Time, int]:
    best = _best(candidate, goal)
    sign = 1 if goal == "min" else -1
    if best is None:
        return True, 0.0, 0, candidate.number
    return False, sign * best.value, best.at, candidate.number
