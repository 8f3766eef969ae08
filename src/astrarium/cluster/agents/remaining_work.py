"""An agent reckons what its app has still to do, and how long that takes on GPUs of a given layout.

The app is taken to keep these GPUs until it ends: the time is T_sh of Themis (section 4.3), without the past.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace
from math import ceil, fsum
from statistics import median_high
from typing import NamedTuple

from astrarium.cluster.agents.layouts import GpuLayout, spreads
from astrarium.cluster.agents.self_report import ReportedSlowdowns, SelfReport
from astrarium.cluster.contract import Job
from astrarium.cluster.machines import Spread
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.quantities import Time

UNSERVED = 10.0  # how many times longer work takes that no GPU is there for
Slowdown = Callable[[str, int], float]  # of a model on a number of GPUs, wherever these would lie


class RemainingJob(NamedTuple):
    """What is left of a job, in time on one GPU."""

    left: float
    least: int
    most: int
    model: str = ""


class LaterPhase(NamedTuple):
    """A phase to come of a tuner: which jobs are in it is not known, so all are as the median job."""

    jobs: int
    median: RemainingJob


def longest_first(jobs: Sequence[RemainingJob]) -> list[RemainingJob]:
    return sorted(jobs, key=lambda job: -job.left)


def sizes(jobs: Sequence[RemainingJob], gpus: int) -> list[int] | None:
    """Return the GPUs of each job where all run at once: first its least, then one each, again and again.

    None: they do not all fit.
    """
    if sum(job.least for job in jobs) > gpus:
        return None
    if sum(job.most for job in jobs) <= gpus:
        return [job.most for job in jobs]
    level = _level(jobs, gpus)
    own = [min(max(level, job.least), job.most) for job in jobs]
    spare = gpus - sum(own)
    for place, job in enumerate(jobs):
        if spare and own[place] < job.most and own[place] == level:
            own[place] += 1
            spare -= 1
    return own


def _level(jobs: Sequence[RemainingJob], gpus: int) -> int:
    """Return the most GPUs that all jobs which can grow so far may have."""
    low = 0
    high = max(job.most for job in jobs)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(max(middle, job.least), job.most) for job in jobs) <= gpus:
            low = middle
        else:
            high = middle - 1
    return low


def at_once(jobs: Sequence[RemainingJob], own: Sequence[int], slowdowns: Sequence[float]) -> float:
    """Return how long jobs take that all run from now on: the phase ends with the slowest."""
    spans = (job.left * slower / size for job, size, slower in zip(jobs, own, slowdowns, strict=True) if size)
    return max(spans, default=0.0)


def in_turns(jobs: Sequence[RemainingJob], gpus: int, slowdown: Slowdown) -> float:
    """Return how long jobs take in turns, each on the GPUs that are free first."""
    if all(job.least == 1 for job in jobs):
        return _one_by_one(jobs, gpus, slowdown)
    free_at = [0.0] * gpus
    kinds = {(job.model, job.least) for job in jobs}
    slower = {kind: slowdown(*kind) for kind in kinds}
    for job in jobs:
        if job.least > gpus:
            continue
        free_at.sort()
        ends = free_at[job.least - 1] + job.left * slower[job.model, job.least] / job.least
        free_at[: job.least] = [ends] * job.least
    unserved = fsum(job.left / job.least for job in jobs if job.least > gpus)
    return max(free_at) + UNSERVED * unserved


def _one_by_one(jobs: Sequence[RemainingJob], gpus: int, slowdown: Slowdown) -> float:
    slower = {model: slowdown(model, 1) for model in {job.model for job in jobs}}
    free_at = [job.left * slower[job.model] for job in jobs[:gpus]]
    heapify(free_at)
    for job in jobs[gpus:]:
        heapreplace(free_at, free_at[0] + job.left * slower[job.model])
    return max(free_at)


def later_time(later: LaterPhase, gpus: int, slowdown: Slowdown) -> float:
    """Return how long a later phase takes: side by side with equal parts of the GPUs, or in rounds."""
    job = later.median
    abreast = gpus // later.median.least
    if not abreast:
        return UNSERVED * later.jobs * job.left / job.least
    size = min(job.most, max(job.least, gpus // later.jobs))
    rounds = ceil(later.jobs / abreast)
    return rounds * job.left * slowdown(job.model, size) / size


class RemainingWork(NamedTuple):
    """What an app has still to do: jobs of the *present* phase, the longest first, and *later* phases."""

    present: list[RemainingJob]
    later: list[list[RemainingJob] | LaterPhase]
    slowdowns: ReportedSlowdowns

    @property
    def smallest(self) -> int:
        """Return the fewest GPUs with which any job runs."""
        return min(job.least for job in self.present)

    def left(self, layout: GpuLayout) -> float:
        """Return how long the app takes to its end on these GPUs, of which there is at least one."""
        return _phase(self.present, layout, self.slowdowns) + fsum(
            self._later(phase, layout) for phase in self.later
        )

    def _later(self, phase: list[RemainingJob] | LaterPhase, layout: GpuLayout) -> float:
        if isinstance(phase, LaterPhase):
            return later_time(phase, layout.gpus, _wherever(layout, self.slowdowns))
        return _phase(phase, layout, self.slowdowns)

    def placement_matters(self) -> bool:
        of = self.slowdowns.of
        wide = [job for job in self.jobs() if job.most > 1]
        return any(of(job.model, Spread.CLUSTER) > of(job.model, Spread.MACHINE) for job in wide)

    def racks_matter(self) -> bool:
        of = self.slowdowns.of
        return any(of(job.model, Spread.CLUSTER) > of(job.model, Spread.RACK) for job in self.jobs())

    def jobs(self) -> list[RemainingJob]:
        guessed = [
            job
            for phase in self.later
            for job in ([phase.median] if isinstance(phase, LaterPhase) else phase)
        ]
        return self.present + guessed


def remaining_work(now: Time, row: AppRow, state: ClusterState, report: SelfReport) -> RemainingWork:
    """Return what is left of an app (Equation 2); of halving, later phases are guessed from the median."""
    present = [
        _remaining_job(job.job, report, state.done(now, job)) for job in row.jobs.values() if not job.finished
    ]
    later = [_foreseen(row, phase, report) for phase in row.app.phases[row.phase + 1 :]]
    network = next((machine.network for machine in state.floor.machines.values()), "")
    return RemainingWork(longest_first(present), later, ReportedSlowdowns(state.slowdowns, network, report))


def _remaining_job(job: Job, report: SelfReport, done: Time = 0) -> RemainingJob:
    """Return what is left of a job; a curve may end it earlier than the forecast, which is good news."""
    return RemainingJob(max(1.0, job.forecast * report.work - done), job.least, job.most, job.model)


def _foreseen(row: AppRow, phase: Sequence[Job], report: SelfReport) -> list[RemainingJob] | LaterPhase:
    if row.app.kind != "halving":
        return longest_first([_remaining_job(job, report) for job in phase])
    now = [job.job for job in row.jobs.values()]
    if all(job.iterations for job in (*now, *phase)):
        iteration = median_high(job.forecast / job.iterations for job in now)
        work = iteration * median_high(job.iterations for job in phase)
    else:
        work = median_high(job.forecast for job in phase)
    return LaterPhase(
        len(phase), RemainingJob(work * report.work, phase[0].least, phase[0].most, phase[0].model)
    )


def _phase(jobs: list[RemainingJob], layout: GpuLayout, slowdowns: ReportedSlowdowns) -> float:
    own = sizes(jobs, layout.gpus)
    if own is None:
        return in_turns(jobs, layout.gpus, _wherever(layout, slowdowns))
    where = spreads(own, layout)
    slower = [slowdowns.of(job.model, spread) for job, spread in zip(jobs, where, strict=True)]
    return at_once(jobs, own, slower)


def _wherever(layout: GpuLayout, slowdowns: ReportedSlowdowns) -> Slowdown:
    def of(model: str, size: int) -> float:
        return slowdowns.of(model, layout.spread(size))

    return of
