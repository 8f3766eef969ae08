"""Finish-time fairness (rho of Themis) is how long an app takes, over how long it would have taken by itself.

The papers do not agree on the second. Two are offered, by name:

- `share` (section 3.2): by itself on its part of the cluster, as many GPUs as there are for each app;
- `equation-1` (sections 4.3.1 and 4.3.2): all of its work on as much of the cluster as it can ever use, times
  the number of apps.

They differ where an app could not use the whole cluster: then the second is larger, and rho smaller. The
second also asks for less where jobs of a phase are unlike: it waits for nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal

from astrarium.cluster.arrange import planned
from astrarium.cluster.contract import App, Job
from astrarium.cluster.state import AppRow, ClusterState, JobRow
from astrarium.core.units import Time

Definition = Literal["share", "equation-1"]
Forecast = Callable[[Job], Time]


def alone(app: App, gpus: float) -> Time:
    """Return how long an app takes on so many GPUs of its own, close together and divided at will."""
    return sum(phase_alone(phase, gpus, lambda job: job.work) for phase in app.phases)


def phase_alone(jobs: Sequence[Job], gpus: float, work: Forecast) -> Time:
    """Return how long a phase takes on so many GPUs of its own. It is no faster than its longest job, nor
    than all GPUs at work all the time. Gangs that are larger than what it has take turns with nobody: they
    run for a part of the time."""
    longest = max(work(job) / min(job.most, max(gpus, 1e-9)) for job in jobs)
    together = sum(work(job) for job in jobs) / min(gpus, sum(job.most for job in jobs))
    return round(max(longest, together))


def ideal(app: App, size: int, contention: float, definition: Definition) -> Time:
    """Return T_id of an app, in a cluster of *size* GPUs that so many apps shared on average."""
    if definition == "share":
        return alone(app, size / max(1.0, contention))
    demand = max(sum(job.most for job in phase) for phase in app.phases)  # GPUs that it can use at most
    return round(app.work / min(size, demand) * contention)  # T_cluster of Equations 1 and 2, shared


def rho(took: Time, app: App, size: int, contention: float, definition: Definition) -> float:
    """Return the finish-time fairness of an app that took so long from its arrival to its end."""
    return took / max(1, ideal(app, size, contention, definition))


# What is left to do, as far as anybody may know: policies that put the short before the long go by it.


def forecast(job: Job) -> Time:
    return job.forecast


def job_left(now: Time, row: AppRow, job: JobRow, state: ClusterState) -> Time:
    """Return the work that is left of a job, as its owner reckons. A job says how many of its iterations are
    done; how long the others take is the owner's guess. Where a curve decides when it ends, nobody knows how
    many there are."""
    if row.app.kind == "curve":
        return max(1, job.job.forecast - state.done(now, job))
    return max(1, round(job.job.forecast * (1 - _part_done(now, job, state))))


def _part_done(now: Time, job: JobRow, state: ClusterState) -> float:
    done = job.done
    if job.gpus:
        done += round(max(0, now - job.since) * state.pace(job.job, job.gpus))
    return min(1.0, done / max(1, job.job.work))


def work_left(now: Time, row: AppRow, state: ClusterState) -> Time:
    """Return the GPU time that is left of an app, in this phase and those that follow."""
    present = sum(job_left(now, row, job, state) for job in row.unfinished())
    return present + sum(job.forecast for phase in _to_come(row) for job in phase)


def time_left(now: Time, row: AppRow, gpus: Collection[int], state: ClusterState) -> float:
    """Return how long an app takes from now on these GPUs; infinity where no job could run there."""
    plan = planned(row, gpus, state.floor)
    used, speed = sum(map(len, plan.values())), throughput(row, gpus, state)
    if not speed:
        return float("inf")
    left = {job.job.id: job_left(now, row, job, state) for job in row.unfinished()}
    present = phase_alone([job.job for job in row.unfinished()], used, lambda job: left[job.id])
    later = sum(phase_alone(phase, len(gpus), forecast) for phase in _to_come(row))
    return present * used / speed + later


def throughput(row: AppRow, gpus: Collection[int], state: ClusterState) -> float:
    """Return the work done in a unit of time by all of an app's jobs, if it had these GPUs."""
    plan = planned(row, gpus, state.floor)
    return sum(state.pace(row.jobs[job].job, on) for job, on in plan.items() if on)


def _to_come(row: AppRow) -> Sequence[Sequence[Job]]:
    return row.app.phases[row.phase + 1 :]
