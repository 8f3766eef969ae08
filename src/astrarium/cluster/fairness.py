"""Finish-time fairness (rho of Themis) is how long an app takes, over how long it would have taken by itself.

The paper has two forms of the second, and its authors' simulator a third. All are offered, by name:

- `share` (section 3.2): by itself on its part of the cluster, as many GPUs as there are for each app;
- `equation-1` (sections 4.3.1 and 4.3.2): all of its work on as much of the cluster as it can ever use, times
  the number of apps;
- `demand` (the simulator): by itself on the cluster, times the GPUs that all apps could use over those that
  there are, at least 1.

They differ where an app could not use the whole cluster: then the second is the largest, and rho smallest. It
also asks for less where jobs of a phase are unlike: it waits for nobody. By the third an app is compared with
itself in an empty cluster, slowed down as all are: it does not matter how many it shares with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import fsum  # rounded once, as every Python does: that of `sum` differs from 3.12 on
from typing import Literal

from astrarium.cluster.arrange import Plan, planned
from astrarium.cluster.contract import App, Job
from astrarium.cluster.state import AppRow, ClusterState, Contention, JobRow
from astrarium.core.units import Time

Definition = Literal["share", "equation-1", "demand"]
Forecast = Callable[[Job], float]


def forecast(job: Job) -> float:
    return job.forecast


class PhaseWork:
    """The work of a phase, with sums done once."""

    def __init__(self, jobs: Sequence[Job], work: Forecast) -> None:
        self.total = sum(map(work, jobs))
        self.most = sum(job.most for job in jobs)
        longest: dict[int, float] = {}
        for job in jobs:
            longest[job.most] = max(longest.get(job.most, 0.0), work(job))
        self._longest = list(longest.items())

    def alone(self, gpus: float) -> float:
        """Return how long the phase takes on so many GPUs of its own. It is no faster than its longest job,
        nor than all GPUs at work all the time. Gangs that are larger than what it has take turns with nobody:
        they run for a part of the time."""
        found = self.total / min(gpus, self.most)
        for width, work in self._longest:
            found = max(found, work / min(width, gpus))
        return found


class Ideal:
    """T_id of one app by size and contention of the cluster; *work* is what its jobs are taken to need."""

    def __init__(self, app: App, definition: Definition, work: Forecast = forecast) -> None:
        self._definition = definition
        self._phases = [PhaseWork(phase, work) for phase in app.phases]
        self._widest = max(phase.most for phase in self._phases)
        self._total = sum(phase.total for phase in self._phases)

    def __call__(self, size: int, contention: Contention) -> float:
        if self._definition == "share":
            return max(1.0, self._alone(size / max(1.0, contention.apps)))
        if self._definition == "demand":
            return max(1.0, self._alone(size) * max(1.0, contention.gpus / size))
        return max(1.0, self._total / min(size, self._widest) * contention.apps)

    def _alone(self, gpus: float) -> float:
        return fsum(phase.alone(gpus) for phase in self._phases)


def rho(took: Time, app: App, size: int, contention: Contention, definition: Definition) -> float:
    """Return the finish-time fairness of an app that took so long from its arrival to its end."""
    return took / Ideal(app, definition, lambda job: job.work)(size, contention)


# What is left to do, as far as anybody may know: policies that put the short before the long go by it.


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
