"""Hyper-parameter sweeps are found in a trace of Philly's virtual clusters.

The trace names no users and no apps. Jobs of a virtual cluster that come within two minutes of each other and
want as many GPUs are a sweep; ten or more make an app.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import msgspec

from astrarium.cluster.workloads.apps import DAY
from astrarium.cluster.workloads.traces import TraceJob
from astrarium.core.quantities import SECOND, Time

GAP: Time = 120 * SECOND
WINDOW: Time = 14 * DAY
CLUSTERS = 6
FEWEST_JOBS = 10
MOST_JOBS = 100

Sweep: TypeAlias = Sequence[TraceJob]


class TraceWindow(NamedTuple):
    """What begins in two weeks of a trace: sweeps that are large enough for an app, and jobs on their own."""

    large: list[Sweep]
    lone: list[Sweep]


def best_windows(jobs: Iterable[TraceJob]) -> TraceWindow:
    """Return what begins in the best two weeks of the clusters that have the most sweeps in such a time.

    Arrivals count from the start of these weeks. Of clusters with as many, those whose names come first.
    """
    clusters: dict[str, list[TraceJob]] = {}
    for job in jobs:
        clusters.setdefault(job.team, []).append(job)
    windows = [_best_window(clusters[name]) for name in sorted(clusters)]
    best = sorted(windows, key=lambda window: -len(window.large))[:CLUSTERS]
    large = [sweep[:MOST_JOBS] for window in best for sweep in window.large]
    return TraceWindow(large, [sweep for window in best for sweep in window.lone])


def sweeps_of(jobs: Sequence[TraceJob]) -> list[Sweep]:
    """Return the jobs of one cluster, in order of arrival, cut where a sweep ends; most are alone."""
    cuts = [
        place
        for place, (before, job) in enumerate(pairwise(jobs), start=1)
        if job.gpus != before.gpus or job.arrival - before.arrival > GAP
    ]
    return [jobs[first:last] for first, last in pairwise([0, *cuts, len(jobs)])]


def _best_window(jobs: Sequence[TraceJob]) -> TraceWindow:
    """Return the two weeks that begin with a sweep and hold the most of them; the earliest of such."""
    parts = sweeps_of(jobs)
    starts = [part[0].arrival for part in parts if len(part) >= FEWEST_JOBS]
    if not starts:
        return TraceWindow([], [])
    start = max(starts, key=lambda start: (sum(start <= other < start + WINDOW for other in starts), -start))
    inside = [_from(part, start) for part in parts if start <= part[0].arrival < start + WINDOW]
    large = [part for part in inside if len(part) >= FEWEST_JOBS]
    return TraceWindow(large, [part for part in inside if len(part) == 1])


def _from(sweep: Sweep, start: Time) -> Sweep:
    return [msgspec.structs.replace(job, arrival=job.arrival - start) for job in sweep]
