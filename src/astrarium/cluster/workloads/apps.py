"""Workloads are apps and the instants at which they arrive: drawn, or the jobs of a trace, one app each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from astrarium.cluster.contract import App, Job
from astrarium.cluster.workloads.traces import TraceJob
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND, Time

HOUR: Time = 3600 * SECOND
DAY: Time = 24 * HOUR


class DrawnApp(App, frozen=True, kw_only=True):
    """An app of a workload comes at *arrival*; `msgspec.convert(drawn, App, from_attributes=True)` is the
    app alone. The work of jobs that a curve decides on is up to the point where the tuner stops them."""

    arrival: Time

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(job for phase in self.phases for job in phase)


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
    if not apps:
        raise InputError("apps", None, "at least one app")
    arrivals = [app.arrival for app in apps]
    span = max(arrivals) - min(arrivals)
    factor = gpu_hours * HOUR / sum(app.work for app in apps)
    if load is None or not span:
        return stretched(apps, factor, factor)
    if load <= 0:
        raise InputError("load", load, "a number of GPUs above 0")
    return stretched(apps, factor, gpu_hours * HOUR / load / span)


def _longer(job: Job, factor: float) -> Job:
    """Return the job with longer iterations, in whole nanoseconds, so that work stays a multiple of them."""
    expected = None if job.expected is None else max(1, round(job.expected * factor))
    work = job.iterations * max(1, round(job.work // job.iterations * factor))
    return msgspec.structs.replace(job, work=work, expected=expected)


def single_apps(jobs: Iterable[TraceJob]) -> tuple[DrawnApp, ...]:
    """Return each job as an app of its own that needs all of its GPUs at once, in order of arrival."""
    ordered = sorted(jobs, key=lambda job: job.arrival)
    return tuple(
        DrawnApp(id_, job.name, ((_gang(job),),), job.team, arrival=job.arrival)
        for id_, job in enumerate(ordered)
    )


def _gang(job: TraceJob) -> Job:
    expected = None if job.expected is None else job.expected * job.gpus
    return Job(0, job.duration * job.gpus, job.gpus, job.gpus, job.model, expected, job.iterations)
