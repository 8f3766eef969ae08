"""What is left to do, as far as anybody may know: what policies that put the short before the long go by."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from astrarium.cluster.arrange import planned
from astrarium.cluster.contract import Job
from astrarium.cluster.fairness import phase_alone
from astrarium.cluster.state import AppRow, ClusterState, JobRow
from astrarium.core.units import Time


def forecast(job: Job) -> Time:
    return job.forecast


def job_left(now: Time, row: AppRow, job: JobRow, state: ClusterState) -> Time:
    """Work, as its owner reckons. A job says how many of its iterations are done; how long the others take is
    the owner's guess. Where a curve decides when it ends, nobody knows how many there are."""
    if row.app.kind == "curve":
        return max(1, job.job.forecast - state.done(now, job))
    return max(1, round(job.job.forecast * (1 - _part_done(now, job, state))))


def _part_done(now: Time, job: JobRow, state: ClusterState) -> float:
    done = job.done
    if job.gpus:
        done += round(max(0, now - job.since) * state.pace(job.job, job.gpus))
    return min(1.0, done / max(1, job.job.work))


def work_left(now: Time, row: AppRow, state: ClusterState) -> Time:
    """Of an app: GPU time, in this phase and those that follow."""
    present = sum(job_left(now, row, job, state) for job in row.unfinished())
    return present + sum(job.forecast for phase in _to_come(row) for job in phase)


def time_left(now: Time, row: AppRow, gpus: Collection[int], state: ClusterState) -> float:
    """If it had these GPUs until its end; without end where none of its jobs could run there."""
    plan = planned(row, gpus, state.floor)
    used, speed = sum(map(len, plan.values())), throughput(row, gpus, state)
    if not speed:
        return float("inf")
    left = {job.job.id: job_left(now, row, job, state) for job in row.unfinished()}
    present = phase_alone([job.job for job in row.unfinished()], used, lambda job: left[job.id])
    later = sum(phase_alone(phase, len(gpus), forecast) for phase in _to_come(row))
    return present * used / speed + later


def throughput(row: AppRow, gpus: Collection[int], state: ClusterState) -> float:
    """Work done in a unit of time by all of its jobs, if it had these GPUs."""
    plan = planned(row, gpus, state.floor)
    return sum(state.pace(row.jobs[job].job, on) for job, on in plan.items() if on)


def _to_come(row: AppRow) -> Sequence[Sequence[Job]]:
    return row.app.phases[row.phase + 1 :]
