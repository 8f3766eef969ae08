"""Hyper-parameter sweeps in a trace of Philly's virtual clusters, which names no users and no apps.

Jobs of a cluster that come within two minutes of each other and want as many GPUs are taken for one sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec

from astrarium.core.units import SECOND, Time
from astrarium.workloads.cluster_apps import DAY
from astrarium.workloads.cluster_traces import PhillyJob

GAP: Time = 120 * SECOND
WINDOW: Time = 14 * DAY
CLUSTERS = 6
FEWEST_JOBS, MOST_JOBS = 10, 100

Sweep: TypeAlias = Sequence[PhillyJob]


def best_windows(jobs: Iterable[PhillyJob]) -> tuple[list[Sweep], list[Sweep]]:
    """Sweeps, and jobs on their own, of the clusters with the most sweeps in two weeks.

    Arrivals count from the start of these weeks. Of clusters with as many, those whose names come first.
    """
    clusters: dict[str, list[PhillyJob]] = {}
    for job in jobs:
        clusters.setdefault(job.vc, []).append(job)
    found = sorted((_best_window(clusters[vc]) for vc in sorted(clusters)), key=lambda each: -len(each[0]))
    sweeps = [sweep[:MOST_JOBS] for large, _ in found[:CLUSTERS] for sweep in large]
    return sweeps, [sweep for _, lone in found[:CLUSTERS] for sweep in lone]


def sweeps_of(jobs: Sequence[PhillyJob]) -> list[Sweep]:
    """All jobs of one cluster, in order of arrival, cut where a sweep ends; most parts are one job long."""
    cuts = [
        place
        for place, (before, job) in enumerate(pairwise(jobs), start=1)
        if job.gpus != before.gpus or job.arrival - before.arrival > GAP
    ]
    return [jobs[first:last] for first, last in pairwise([0, *cuts, len(jobs)])]


def _best_window(jobs: Sequence[PhillyJob]) -> tuple[list[Sweep], list[Sweep]]:
    """The two weeks that begin with a sweep and hold the most of them; the earliest of such."""
    parts = sweeps_of(jobs)
    starts = [part[0].arrival for part in parts if len(part) >= FEWEST_JOBS]
    if not starts:
        return [], []
    start = max(starts, key=lambda start: (sum(start <= other < start + WINDOW for other in starts), -start))
    inside = [_from(part, start) for part in parts if start <= part[0].arrival < start + WINDOW]
    large = [part for part in inside if len(part) >= FEWEST_JOBS]
    return large, [part for part in inside if len(part) == 1]


def _from(sweep: Sweep, start: Time) -> Sweep:
    return [msgspec.structs.replace(job, arrival=job.arrival - start) for job in sweep]
