"""Apps on a cluster: the numbers of a run, by app and in all.

rho is told under all definitions of `cluster.fairness`, of apps that finished. Where machines came or went,
the size of the cluster is its mean over the app's life.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import get_args

import msgspec

from astrarium.cluster.auction.tally import AuctionTally
from astrarium.cluster.fairness import Definition, rho
from astrarium.cluster.record import ClusterRecord, FillLevel, Ran
from astrarium.cluster.state import AppRow, Outcome
from astrarium.core.quantities import SECOND, Time

DEFINITIONS: tuple[Definition, ...] = get_args(Definition)
HOUR = 3600 * SECOND


class Distribution(msgspec.Struct, frozen=True):
    """How one number is distributed over all apps that have it."""

    mean: float
    median: float
    p95: float
    worst: float


class AppSummary(msgspec.Struct, frozen=True):
    """*gpu_hours* were leased to it, in *ran_gpu_hours* its jobs ran; *score* is weighed by GPU time.

    What has not come is none: the first GPU, or the end.
    """

    name: str
    team: str
    kind: str
    outcome: str
    reason: str
    arrived_s: float
    waited_s: float | None
    ended_s: float | None
    took_s: float | None
    gpu_hours: float
    ran_gpu_hours: float
    work_gpu_hours: float
    contention: float
    rho: dict[str, float]
    score: float | None
    runs: int


class TeamSummary(msgspec.Struct, frozen=True):
    """*gpu_hours* were leased to its apps, of which it *borrowed* some; *lent*: others had them meanwhile.
    *rho* is that of its app that fared worst, *waited_s* the mean until the first GPU."""

    team: str
    apps: int
    finished: int
    guaranteed: int
    gpu_hours: float
    borrowed_gpu_hours: float
    lent_gpu_hours: float
    rho: float | None
    waited_s: float | None
    never_served: int


class ClusterSummary(msgspec.Struct, frozen=True):
    """*leased* and *busy*: parts of all GPU time from the first arrival to the last end."""

    policy: str
    gpus: int  # at most
    apps: int
    outcomes: dict[str, int]  # those that occurred
    makespan_s: float
    rho: dict[str, Distribution]
    completion_s: Distribution | None
    waited_s: Distribution | None
    gpu_hours: float
    work_gpu_hours: float
    score: float | None
    leased: float
    busy: float
    runs: int
    auctions: AuctionTally | None = None  # None: the policy holds none
    by_app: list[AppSummary] = []  # in order of arrival
    by_team: list[TeamSummary] = []  # as listed


def summarize(record: ClusterRecord) -> ClusterSummary:
    apps = summarize_apps(record)
    finished = [app for app in apps if app.rho]
    begin, end = _life(record)
    total = _integral(record.levels, begin, end, "gpus")
    outcomes = [app.outcome for app in apps]
    return ClusterSummary(
        policy=record.policy,
        gpus=max((level.gpus for level in record.levels), default=0),
        apps=len(apps),
        outcomes={kind: outcomes.count(kind) for kind in dict.fromkeys(outcomes)},
        makespan_s=(end - begin) / SECOND,
        rho={name: _spread([app.rho[name] for app in finished]) for name in DEFINITIONS if finished},
        completion_s=_spread_of(app.took_s for app in finished),
        waited_s=_spread_of(app.waited_s for app in apps),
        gpu_hours=sum(app.gpu_hours for app in apps),
        work_gpu_hours=sum(app.work_gpu_hours for app in apps),
        score=_mean_score(record.ran),
        leased=_integral(record.levels, begin, end, "leased") / total if total else 0.0,
        busy=_integral(record.levels, begin, end, "busy") / total if total else 0.0,
        runs=len(record.ran),
        auctions=record.auctions,
        by_app=apps,
    )


def summarize_apps(record: ClusterRecord) -> list[AppSummary]:
    """Return what became of each app, in order of arrival."""
    runs: dict[int, list[Ran]] = {}
    for run in record.ran:
        runs.setdefault(run.app, []).append(run)
    levels = record.levels
    sizes = [*levels[:1], *(after for before, after in pairwise(levels) if after.gpus != before.gpus)]
    return [_app(row, runs.get(row.app.id, []), sizes) for row in record.rows]


def _app(row: AppRow, runs: Sequence[Ran], sizes: Sequence[FillLevel]) -> AppSummary:
    ended = row.ended if row.outcome is not Outcome.OPEN else -1
    return AppSummary(
        name=row.app.name,
        team=row.app.team,
        kind=row.app.kind,
        outcome=row.outcome.name.lower(),
        reason=row.reason,
        arrived_s=row.arrived / SECOND,
        waited_s=None if row.started < 0 else (row.started - row.arrived) / SECOND,
        ended_s=None if ended < 0 else ended / SECOND,
        took_s=None if ended < 0 else (ended - row.arrived) / SECOND,
        gpu_hours=row.service / HOUR,
        ran_gpu_hours=row.ran / HOUR,
        work_gpu_hours=row.app.work / HOUR,
        contention=row.contention.apps,
        rho=_rho(row, sizes),
        score=_mean_score(runs),
        runs=len(runs),
    )


def _rho(row: AppRow, sizes: Sequence[FillLevel]) -> dict[str, float]:
    """Return rho by each definition; *sizes* has the levels at which the number of GPUs changed."""
    if row.outcome is not Outcome.FINISHED:
        return {}
    took = row.ended - row.arrived
    mean = _integral(sizes, row.arrived, row.ended, "gpus") / took if took else sizes[-1].gpus
    size = max(1, round(mean))
    return {name: rho(took, row.app, size, row.contention, name) for name in DEFINITIONS}


def _life(record: ClusterRecord) -> tuple[Time, Time]:
    ended = [row.ended for row in record.rows if row.outcome is Outcome.FINISHED]
    begin = min((row.arrived for row in record.rows), default=0)
    return begin, max(ended, default=record.end)


def _integral(levels: Sequence[FillLevel], begin: Time, end: Time, name: str) -> int:
    spans = zip(levels, [*(level.at for level in levels[1:]), end], strict=True)
    return sum(
        getattr(level, name) * max(0, min(until, end) - max(level.at, begin)) for level, until in spans
    )


def _mean_score(runs: Sequence[Ran]) -> float | None:
    weights = [len(run.gpus) * (run.end - run.start) for run in runs]
    total = sum(weights)
    return (
        sum(run.score * weight for run, weight in zip(runs, weights, strict=True)) / total if total else None
    )


def _spread_of(values: Iterable[float | None]) -> Distribution | None:
    known = [value for value in values if value is not None]
    return _spread(known) if known else None


def _spread(values: Sequence[float]) -> Distribution:
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    return Distribution(fmean(ordered), median(ordered), p95, ordered[-1])
