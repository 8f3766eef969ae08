"""Work that is left of an app is reckoned from what anybody may know.

Policies that put the short before the long go by it: owners forecast, and jobs say how much of them is done.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import fsum  # rounded once, as every Python does: that of `sum` differs from 3.12 on

from astrarium.cluster.arrange import Plan, planned
from astrarium.cluster.contract import Job
from astrarium.cluster.fairness import PhaseWork, forecast
from astrarium.cluster.state import AppRow, ClusterState, JobRow
from astrarium.core.quantities import Time


def job_left(now: Time, row: AppRow, job: JobRow, state: ClusterState) -> Time:
    """Return the work that is left of a job, as its owner reckons. A job says how many of its iterations are
    done; how long the others take is the owner's guess. Where a curve decides when it ends, nobody knows how
    many there are."""
    if row.app.kind == "curve":
        return max(1, job.job.forecast - state.done(now, job))
    return max(1, round(job.job.forecast * (1 - part_done(now, job, state))))


def part_done(now: Time, job: JobRow, state: ClusterState) -> float:
    """Return how much of its iterations a job has done, from 0 to 1."""
    done: float = job.done
    if job.gpus:
        done += max(0, now - job.since) * state.pace(job.job, job.gpus)
    return min(1.0, done / max(1, job.job.work))


def work_left(now: Time, row: AppRow, state: ClusterState) -> Time:
    """Return the GPU time that is left of an app, in this phase and those that follow."""
    present = sum(job_left(now, row, job, state) for job in row.unfinished())
    return present + sum(job.forecast for phase in _to_come(row) for job in phase)


def time_left(now: Time, row: AppRow, gpus: Collection[int], state: ClusterState) -> float:
    """Return how long an app takes from now on these GPUs; infinity where no job could run there."""
    plan = planned(row, gpus, state.floor)
    used = sum(map(len, plan.values()))
    speed = _speed(row, plan, state)
    if not speed:
        return float("inf")
    later = fsum(PhaseWork(phase, forecast).alone(len(gpus)) for phase in _to_come(row))
    return _alone(now, row, used, state) * used / speed + later


def _alone(now: Time, row: AppRow, used: int, state: ClusterState) -> float:
    """Return how long the present phase takes on so many GPUs that lie together."""
    jobs = row.unfinished()
    if len(jobs) == 1:  # as most apps are: asked again and again, it must be cheap
        return job_left(now, row, jobs[0], state) / min(used, jobs[0].job.most)
    left = {job.job.id: job_left(now, row, job, state) for job in jobs}
    return PhaseWork([job.job for job in jobs], lambda job: left[job.id]).alone(used)


def throughput(row: AppRow, gpus: Collection[int], state: ClusterState) -> float:
    """Return the work done in a unit of time by all of an app's jobs, if it had these GPUs."""
    return _speed(row, planned(row, gpus, state.floor), state)


def _speed(row: AppRow, plan: Plan, state: ClusterState) -> float:
    return fsum(state.pace(row.jobs[job].job, on) for job, on in plan.items() if on)


def _to_come(row: AppRow) -> Sequence[Sequence[Job]]:
    return row.app.phases[row.phase + 1 :]
