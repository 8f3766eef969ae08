"""One run beyond capacity: what was still answered in time."""

from __future__ import annotations

from statistics import mean

import msgspec
import numpy as np

from astrarium.serving.ledger import Outcome
from astrarium.serving.level import run
from astrarium.serving.report.summary import measured_requests
from astrarium.serving.scenario import Scenario
from astrarium_papers.astrarium._settings import DEFERRED, Setting, goodputs
from astrarium_papers.findings import Effort

OVERLOAD = 1.3  # times deferred's goodput
SEEDS = (1, 2, 3)


class InTime(msgspec.Struct, frozen=True):
    rate: float  # requests per second
    share: float
    worst: float  # the share of the model that fares worst


def overloads(settings: list[Setting], effort: Effort) -> dict[str, float]:
    """Return requests per second by setting; one seed says well enough where deferred ends."""
    measured = goodputs(settings, {"deferred": DEFERRED}, effort, seeds=1, tolerance=0.01)
    return {setting: OVERLOAD * by_policy["deferred"]["goodput"] for setting, by_policy in measured.items()}


def in_time(case: Scenario, effort: Effort) -> InTime:
    """Return the mean over the seeds of the requests in time."""
    runs = [_once(case.with_seed(seed)) for seed in effort.pick(SEEDS[:1], SEEDS)]
    return InTime(
        mean(run.rate for run in runs), mean(run.share for run in runs), mean(run.worst for run in runs)
    )


def _once(case: Scenario) -> InTime:
    record = run(case)
    measured = measured_requests(record)
    models = record.requests.model[measured]
    outcomes = record.requests.outcome[measured]
    good, every = (
        np.bincount(some, minlength=len(case.models))
        for some in (models[outcomes == Outcome.IN_TIME], models)
    )
    seconds = (record.duration - record.warmup) / 1e9
    worst = float(np.min(good / np.maximum(every, 1)))
    return InTime(float(good.sum()) / seconds, float(good.sum() / every.sum()), worst)
