"""Demand is how many GPUs an app could use, and how many more it would put to use.

Gangs start whole and in order; what is left over goes to jobs that can grow. `usable` counts as if all jobs
started now. `GpuDemand` counts as `arrange` does: jobs that run keep their GPUs, and only the others start.
`needed` is the larger of the two: by `usable` alone, a running gang would be in the way of a small job that
stands before it and waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from astrarium.cluster.state import AppRow, JobRow


def most_usable(row: AppRow) -> int:
    """Return the GPUs that all unfinished jobs of the present phase use at their largest."""
    if len(row.jobs) == 1:  # as most apps are: asked again and again, it must be cheap
        (only,) = row.jobs.values()
        return 0 if only.finished else only.job.most
    return sum(job.job.most for job in row.unfinished())


def wanted(row: AppRow) -> int:
    """Return how many GPUs the app could use at most beyond those that it holds."""
    return max(0, most_usable(row) - len(row.leases))


def usable(row: AppRow, gpus: int) -> int:
    """Return how many of so many GPUs the app's jobs could use, if all of them started now."""
    if len(row.jobs) == 1:
        (only,) = row.jobs.values()
        return min(gpus, only.job.most) if only.job.least <= gpus and not only.finished else 0
    left = gpus
    grown = 0
    for job in row.jobs.values():
        if not job.finished and job.job.least <= left:
            left -= job.job.least
            grown += job.job.most - job.job.least
    return gpus - left + min(left, grown)


def needed(row: AppRow, gpus: int) -> int:
    """Return how many of so many GPUs the app could use, whether its jobs go on or all started now."""
    started = usable(row, gpus)
    if started == gpus or len(row.jobs) == 1:
        return started
    demand = GpuDemand(row)
    return max(started, demand.usable(gpus) if demand.running <= gpus else 0)


def smallest_step(row: AppRow, has: int, offered: int) -> int:
    """Return the fewest GPUs that `usable` counts beyond those that the app has: one, or a whole gang."""
    whole = usable(row, has + offered) - has
    if whole <= 1:
        return max(0, whole)
    sizes = {1, *(job.job.least for job in row.unfinished())}
    fitting = (size for size in sorted(sizes) if size <= whole and usable(row, has + size) >= has + size)
    return next(fitting, whole)


@dataclass(eq=False, slots=True)
class _WaitingGangs:
    """Gangs that wait, follow one another, and need as many GPUs."""

    least: int
    most: int
    count: int = 1


class GpuDemand:
    """The demand of one app, as it stands, says what its jobs would do with any number of GPUs."""

    def __init__(self, row: AppRow) -> None:
        self._has = len(row.leases)
        self.running = 0
        self._growth = 0
        self._gangs: list[_WaitingGangs] = []
        for job in row.jobs.values():
            if not job.finished:
                self._add(job, _goes_on_with(row, job))

    def _add(self, job: JobRow, running: int) -> None:
        least = job.job.least
        most = job.job.most
        if running:
            self.running = self.running + running
            self._growth = self._growth + most - running
        elif self._gangs and (self._gangs[-1].least, self._gangs[-1].most) == (least, most):
            self._gangs[-1].count += 1
        else:
            self._gangs.append(_WaitingGangs(least, most))

    def usable(self, gpus: int) -> int:
        """Return how many of so many GPUs of the app its jobs would run on."""
        left = gpus - self.running
        growth = self._growth
        for gangs in self._gangs:
            started = min(gangs.count, max(0, left) // gangs.least)
            left = left - started * gangs.least
            growth = growth + started * (gangs.most - gangs.least)
        return gpus - max(0, left - growth)

    def more(self, offered: int) -> int:
        """Return how many of the offered GPUs the app would put to use beyond those that it has."""
        return max(0, self.usable(self._has + offered) - self._has)

    def smallest_step(self, held: int, offered: int) -> int:
        """Return the fewest GPUs that the app would use beyond those it has and was *given*: one, or a gang.
        0: it would use none of those offered."""
        for step in sorted({1, *(gangs.least for gangs in self._gangs)}):
            if step <= offered and self.more(held + step) == held + step:
                return step
        return 0


def in_use(row: AppRow) -> bool:
    """Return whether all GPUs of an app are in use by jobs that have them: most often a lease was renewed."""
    used = 0
    for job in row.jobs.values():
        for gpu in job.gpus:
            if gpu not in row.leases:
                return False
            used += 1
    return used == len(row.leases)


def spare(row: AppRow) -> tuple[int, ...]:
    """Return GPUs that the app has a lease for and no use any more: those first that nothing runs on."""
    if in_use(row):
        return ()
    count = len(row.leases) - GpuDemand(row).usable(len(row.leases))
    return idle_first(row)[:count] if count > 0 else ()


def idle_first(row: AppRow) -> tuple[int, ...]:
    """Return the GPUs that the app has a lease for: those first that nothing goes on running on."""
    used = {gpu for job in row.jobs.values() if _goes_on_with(row, job) for gpu in job.gpus}
    return tuple(sorted(row.leases, key=lambda gpu: (gpu in used, gpu)))


def just_expired(row: AppRow) -> list[int]:
    """Return the GPUs that the app's jobs still run on and whose lease has just ended."""
    return [gpu for job in row.jobs.values() for gpu in job.gpus if gpu not in row.leases]


def soonest(frees: list[tuple[float, int]], count: int) -> float | None:
    """Take so many GPUs from a heap of those that are free from an instant on, and return when all are;
    None where there are never so many."""
    taken = list[tuple[float, int]]()
    at = 0.0
    while count > 0 and frees:
        at, there = heappop(frees)
        taken.append((at, there))
        count -= there
    if count > 0 or at == inf:
        for entry in taken:
            heappush(frees, entry)
        return None
    if count < 0:
        heappush(frees, (at, -count))
    return at


def _goes_on_with(row: AppRow, job: JobRow) -> int:
    """Return how many GPUs a job goes on running on: none where its gang has lost a part."""
    if not job.gpus:
        return 0
    running = sum(gpu in row.leases for gpu in job.gpus)
    return running if running >= job.job.least else 0
