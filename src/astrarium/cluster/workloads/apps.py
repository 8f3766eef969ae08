"""Workloads draw these apps; a set of them can be described, and made smaller.

The fields carry the names of the cluster level's own structures, so that `msgspec.convert(drawn, App,
from_attributes=True)` makes one of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal, Protocol

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.units import SECOND, Time

HOUR: Time = 3600 * SECOND
DAY: Time = 24 * HOUR

Kind = Literal["jobs", "halving", "curve"]


class DrawnJob(msgspec.Struct, frozen=True):
    """A job of a workload. *work*: how long all of its iterations take on one GPU. It runs on *least* to
    *most* GPUs at once. *expected* is the work that its owner says, where that is not the truth.

    Jobs of an app that try the same hyper-parameters in phase after phase have one *configuration*.
    """

    id: int
    work: Time
    least: int
    most: int
    model: str
    iterations: int = 1
    configuration: int = 0
    expected: Time | None = None

    @property
    def iteration(self) -> Time:
        return self.work // self.iterations

    @property
    def task(self) -> Time:
        """Return how long each GPU of the job is busy where it has as few as it can."""
        return self.work // self.least


class DrawnApp(msgspec.Struct, frozen=True):
    """An app of a workload: jobs of a phase run side by side, phases one after another; numbers of jobs do
    not repeat.

    `jobs`: run to their ends. `curve`: a tuner stops jobs by their curves; the work is up to that point.
    `halving`: the jobs of a later phase are the better half of those before.
    """

    id: int
    name: str
    arrival: Time
    phases: tuple[tuple[DrawnJob, ...], ...]
    kind: Kind = "jobs"
    team: str = ""

    @property
    def jobs(self) -> tuple[DrawnJob, ...]:
        return tuple(job for phase in self.phases for job in phase)

    @property
    def work(self) -> Time:
        return sum(job.work for job in self.jobs)

    @property
    def model(self) -> str:
        return self.phases[0][0].model

    @property
    def demand(self) -> int:
        """Return the GPUs that the app can use at once."""
        return max(sum(job.most for job in phase) for phase in self.phases)


class Facts(msgspec.Struct, frozen=True):
    """What papers say of workloads. *load*: mean GPUs it takes to keep up from first arrival to last."""

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
    tasks = [job.task for app in apps for job in app.jobs for _ in range(job.least)]
    total, span = sum(app.work for app in apps), _span(apps)
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


def stretched(apps: Iterable[DrawnApp], work: float, arrivals: float) -> tuple[DrawnApp, ...]:
    """Return apps with iterations *work* times as long, which come *arrivals* times as late."""
    if min(work, arrivals) <= 0:
        raise InputError("work" if work <= 0 else "arrivals", min(work, arrivals), "a factor above 0")
    return tuple(
        msgspec.structs.replace(
            app,
            arrival=round(app.arrival * arrivals),
            phases=tuple(tuple(_longer(job, work) for job in phase) for phase in app.phases),
        )
        for app in apps
    )


def scaled(
    apps: Sequence[DrawnApp], gpu_hours: float = 1000.0, load: float | None = 50.0
) -> tuple[DrawnApp, ...]:
    """Return the apps with *gpu_hours* of work in all, over such a time that *load* GPUs keep up with it.

    With no *load*, arrivals move closer by the same factor as work gets less: the load stays as drawn.
    """
    total = sum(app.work for app in apps)
    factor = gpu_hours * HOUR / total
    if load is None or not _span(apps):
        return stretched(apps, factor, factor)
    if load <= 0:
        raise InputError("load", load, "a number of GPUs above 0")
    return stretched(apps, factor, gpu_hours * HOUR / load / _span(apps))


def _longer(job: DrawnJob, factor: float) -> DrawnJob:
    """Return the job with longer iterations, in whole nanoseconds, so that work stays a multiple of them."""
    expected = None if job.expected is None else max(1, round(job.expected * factor))
    work = job.iterations * max(1, round(job.iteration * factor))
    return msgspec.structs.replace(job, work=work, expected=expected)


def _span(apps: Sequence[DrawnApp]) -> Time:
    if not apps:
        raise InputError("apps", None, "at least one app")
    arrivals = [app.arrival for app in apps]
    return max(arrivals) - min(arrivals)


class RecordedJob(Protocol):
    """A row of a trace of jobs: *duration* on all of its *gpus*, or what its owner *expected*."""

    @property
    def name(self) -> str: ...
    @property
    def arrival(self) -> Time: ...
    @property
    def gpus(self) -> int: ...
    @property
    def duration(self) -> Time: ...
    @property
    def model(self) -> str: ...
    @property
    def team(self) -> str: ...
    @property
    def iterations(self) -> int: ...
    @property
    def expected(self) -> Time | None: ...


def single_apps(rows: Iterable[RecordedJob]) -> tuple[DrawnApp, ...]:
    """Return each job as an app of its own that needs all of its GPUs at once, in order of arrival."""
    ordered = sorted(rows, key=lambda row: row.arrival)
    return tuple(
        DrawnApp(id_, row.name, row.arrival, ((_gang(row),),), team=row.team)
        for id_, row in enumerate(ordered)
    )


def _gang(row: RecordedJob) -> DrawnJob:
    expected = None if row.expected is None else row.expected * row.gpus
    work = row.duration * row.gpus
    return DrawnJob(0, work, row.gpus, row.gpus, row.model, row.iterations, expected=expected)
