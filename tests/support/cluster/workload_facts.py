"""What papers say of workloads, to compare drawn ones with."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from astrarium.cluster.contract import Job
from astrarium.cluster.workloads.apps import DAY, HOUR, DrawnApp
from astrarium.core.quantities import Time


class Facts(NamedTuple):
    """*load*: mean GPUs it takes to keep up from first arrival to last."""

    apps: int
    jobs: int
    single_share: float
    median_jobs: float
    median_task_hours: float
    median_app_gpu_days: float
    gpu_hours: float
    span_hours: float
    load: float


def facts(apps: Sequence[DrawnApp]) -> Facts:
    """Return the facts about a set of apps; jobs are counted as submitted, those of the first phase."""
    counts = [len(app.phases[0]) for app in apps]
    tasks = [task(job) for app in apps for job in app.jobs for _ in range(job.least)]
    arrivals = [app.arrival for app in apps]
    total = sum(app.work for app in apps)
    span = max(arrivals) - min(arrivals)
    return Facts(
        apps=len(apps),
        jobs=sum(counts),
        single_share=counts.count(1) / len(apps),
        median_jobs=median(counts),
        median_task_hours=median(tasks) / HOUR,
        median_app_gpu_days=median(app.work for app in apps) / DAY,
        gpu_hours=total / HOUR,
        span_hours=span / HOUR,
        load=total / span if span else float("inf"),
    )


def task(job: Job) -> Time:
    """Return how long each GPU of the job is busy where it has as few as it can."""
    return job.work // job.least


def iteration(job: Job) -> Time:
    return job.work // job.iterations


def model_of(app: DrawnApp) -> str:
    return app.phases[0][0].model
