"""From described jobs to those that the device level knows, with the instants at which they arrive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from astrarium.core.quantities import Bytes, Duration
from astrarium.core.units import Time
from astrarium.device.jobs import Job
from astrarium.scenario.jobs import FROM_SALUS, JobEntry, JobScenario, Mix
from astrarium.workloads.salus import Workload, lookup
from astrarium.workloads.salus_trace import TraceJob, trace

Arrival = tuple[Time, Job]


def arrivals(scenario: JobScenario) -> list[Arrival]:
    """In order of time; jobs are numbered in that order."""
    jobs, turn = scenario.jobs, scenario.gpu.turn
    if isinstance(jobs, Mix):
        return arrivals_of(trace(jobs.salus, scenario.seed, jobs.interval, jobs.tail, jobs.early), turn)
    found = sorted((one for entry in jobs for one in _copies(entry, turn)), key=lambda one: one[0])
    return [(at, msgspec.structs.replace(job, id=number)) for number, (at, job) in enumerate(found)]


def arrivals_of(trace: Iterable[TraceJob], turn: Time = 0) -> list[Arrival]:
    return [(each.arrival, job_of(i, each.workload, each.iterations, turn)) for i, each in enumerate(trace)]


def job_of(number: int, workload: Workload, iterations: int, turn: Time = 0, name: str = "") -> Job:
    """Iterations shorter than a *turn* are run as many at a time as fill it: less to simulate."""
    together = max(1, min(iterations, round(turn / workload.iteration)))
    return Job(
        number,
        name or workload.name,
        workload.persistent,
        workload.ephemeral,
        workload.iteration * together,
        max(1, round(iterations / together)),
        demand=workload.demand,
    )


def _copies(entry: JobEntry, turn: Time) -> Iterator[Arrival]:
    workload = _workload(entry)
    iterations = entry.iterations or max(1, round((entry.length or 0) / workload.iteration))
    for place in range(entry.count):
        name = entry.name if entry.count == 1 else f"{entry.name}-{place}"
        job = job_of(0, workload, iterations, turn, name)
        yield entry.arrival + place * entry.every, msgspec.structs.replace(job, priority=entry.priority)


def _workload(entry: JobEntry) -> Workload:
    if entry.workload is not None:
        return lookup(entry.workload.removeprefix(FROM_SALUS))
    size = (entry.persistent or Bytes(0), entry.ephemeral or Bytes(0))
    return Workload(entry.name, "", "", "", *size, entry.iteration or Duration(1), entry.demand or 1.0)
