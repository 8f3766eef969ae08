"""Described jobs become those that the device level knows, with the instants at which they arrive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from astrarium.core.quantities import Bytes, Duration, Time
from astrarium.device import salus as workloads
from astrarium.device import salus_trace
from astrarium.device.contract import Job
from astrarium.device.salus import SalusWorkload
from astrarium.device.salus_trace import TraceJob
from astrarium.device.scenario.limits import Limits
from astrarium.device.scenario.read import JobScenario
from astrarium.device.scenario.schema import FROM_SALUS, JobEntry, Mix

Arrival = tuple[Time, Job]


def arrivals(scenario: JobScenario) -> list[Arrival]:
    """Return the jobs in order of time; they are numbered in that order."""
    jobs = scenario.jobs
    turn = scenario.gpu.turn
    limits = Limits(scenario.gpu)
    unnumbered: list[Arrival] = []
    entries: tuple[JobEntry | Mix, ...] = (jobs,) if isinstance(jobs, Mix) else jobs
    for place, entry in enumerate(entries):
        for at, job in _mix(entry, scenario.seed, turn) if isinstance(entry, Mix) else _copies(entry, turn):
            limits.check(at, job, entry, place)
            unnumbered.append((at, job))
    unnumbered.sort(key=lambda arrival: arrival[0])
    return [(at, msgspec.structs.replace(job, id=number)) for number, (at, job) in enumerate(unnumbered)]


def arrivals_of(trace: Iterable[TraceJob], turn: Time = 0) -> list[Arrival]:
    return [(job.arrival, job_of(i, job.workload, job.iterations, turn)) for i, job in enumerate(trace)]


def job_of(number: int, workload: SalusWorkload, iterations: int, turn: Time = 0, name: str = "") -> Job:
    """Return a job. Iterations shorter than a *turn* are run as many at a time as fill it: less to simulate,
    and as much work."""
    size = (workload.persistent, workload.ephemeral)
    turns = divided(workload.iteration, iterations, turn)
    return Job(number, name or workload.name, *size, *turns, demand=workload.demand)


def divided(iteration: Time, iterations: int, turn: Time) -> tuple[Time, int]:
    """Return how long a turn is, and how many there are: about as long as asked, and as long together as all
    iterations."""
    if turn <= iteration:
        return iteration, iterations
    total = iteration * iterations
    turns = max(1, round(total / turn))
    return max(1, round(total / turns)), turns


def _mix(mix: Mix, seed: int, turn: Time) -> list[Arrival]:
    return arrivals_of(salus_trace.trace(mix.salus, seed, mix.interval, mix.tail, mix.early), turn)


def _copies(entry: JobEntry, turn: Time) -> Iterator[Arrival]:
    workload = _workload(entry)
    iterations = entry.iterations or max(1, round((entry.length or 0) / workload.iteration))
    for place, name in enumerate(entry.names):
        job = job_of(0, workload, iterations, turn, name)
        yield entry.arrival + place * entry.every, msgspec.structs.replace(job, priority=entry.priority)


def _workload(entry: JobEntry) -> SalusWorkload:
    if entry.workload is not None:
        return workloads.lookup(entry.workload.removeprefix(FROM_SALUS))
    size = (entry.persistent or Bytes(0), entry.ephemeral or Bytes(0))
    return SalusWorkload(entry.name, "", "", "", *size, entry.iteration or Duration(1), entry.demand or 1.0)
