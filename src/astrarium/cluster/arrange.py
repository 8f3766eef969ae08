"""An app's own scheduler, which this module stands for, says which of its jobs run on which of its GPUs.

What runs stays where it is as long as its GPUs do. GPUs that are left go to jobs that wait, those with most
left to do first (an app ends with its last job), and then to those that can use more. The widest job chooses
first where to lie, as close together as can be had; a job that grows starts anew, so that it may move.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from astrarium.cluster.contract import Run, Stop
from astrarium.cluster.demand import in_use
from astrarium.cluster.machines import Floor, Spread
from astrarium.cluster.state import AppRow, ClusterState, JobRow

Plan = dict[int, tuple[int, ...]]  # the GPUs of each job


def arrangements(state: ClusterState) -> Iterator[Run | Stop]:
    """Yield what to run and stop, for every app whose GPUs or jobs have changed."""
    while state.unsettled:
        app = next(iter(state.unsettled))
        del state.unsettled[app]
        if app in state.apps and not in_use(state.apps[app]):
            yield from _arranged(state.apps[app], state.floor)


def planned(row: AppRow, gpus: Collection[int], floor: Floor) -> Plan:
    """Return what the jobs of an app would run on, if it had these GPUs."""
    if len(row.jobs) == 1:  # as most apps are: asked again and again, it must be cheap
        (only,) = row.jobs.values()
        if len(only.gpus) == only.job.most and not only.finished and all(gpu in gpus for gpu in only.gpus):
            return {only.job.id: only.gpus}
    jobs = row.unfinished()
    plan = {job.job.id: tuple(gpu for gpu in job.gpus if gpu in gpus) for job in jobs}
    for job in jobs:
        if len(plan[job.job.id]) < job.job.least:
            plan[job.job.id] = ()
    longest_first = sorted(jobs, key=lambda job: job.job.forecast - job.done, reverse=True)
    counts = _counts(jobs, longest_first, plan, len(gpus))
    growing = [job for job in longest_first if counts[job.job.id] > len(plan[job.job.id])]
    left = set(gpus).difference(*(plan[job.job.id] for job in jobs if job not in growing))
    for job in sorted(growing, key=lambda job: counts[job.job.id], reverse=True):
        plan[job.job.id] = closest(left, counts[job.job.id], floor)
        left.difference_update(plan[job.job.id])
    return plan


def _counts(jobs: Sequence[JobRow], longest_first: Sequence[JobRow], plan: Plan, gpus: int) -> dict[int, int]:
    """Return how many GPUs each job gets: gangs that wait start, the longest first; then those that run grow
    by one each, again and again."""
    counts = {job.job.id: len(plan[job.job.id]) for job in jobs}
    left = gpus - sum(counts.values())
    for job in longest_first:
        if not counts[job.job.id] and job.job.least <= left:
            counts[job.job.id] = job.job.least
            left -= job.job.least
    grown = True
    while left and grown:
        grown = False
        for job in jobs:
            if left and 0 < counts[job.job.id] < job.job.most:
                counts[job.job.id] += 1
                left -= 1
                grown = True
    return counts


def _arranged(row: AppRow, floor: Floor) -> Iterator[Run | Stop]:
    plan = planned(row, row.leases, floor)
    jobs = row.unfinished()
    user = {gpu: job for job, gpus in plan.items() for gpu in gpus}
    for job in jobs:  # first those who leave, or leave something to others, so that these can come
        own = job.job.id
        if job.gpus and (not plan[own] or any(user.get(gpu, own) != own for gpu in job.gpus)):
            yield Stop(row.app.id, own)
    moved = [job for job in jobs if plan[job.job.id] and plan[job.job.id] != job.gpus]
    for job in sorted(moved, key=lambda job: len(plan[job.job.id]) - len(job.gpus)):  # who shrinks makes room
        yield Run(row.app.id, job.job.id, plan[job.job.id])


def closest(gpus: Iterable[int], count: int, floor: Floor, near: Iterable[int] = ()) -> tuple[int, ...]:
    """Return *count* of these GPUs that lie close together. They lie beside *near* if possible, then where
    there are just enough, then where most are; in one rack if it has so many."""
    gpus = list(gpus)
    if len(gpus) == 1:
        return tuple(gpus[:count])
    machines = {floor.machine_of(gpu) for gpu in near}
    of = floor.by_machine(gpus)
    chosen = [gpu for machine in sorted(machines & of.keys()) for gpu in of.pop(machine)]
    if len(chosen) < count:
        racks = {floor.rack_of(machine) for machine in machines if machine in floor.machines}
        chosen += _gathered(of, count - len(chosen), floor, racks)
    return tuple(chosen[:count])


def _gathered(of: dict[int, list[int]], missing: int, floor: Floor, racks: set[int]) -> list[int]:
    """Return GPUs machine by machine: after the largest, the rest may fit somewhere just so."""
    chosen: list[int] = []
    if not racks and missing > max((len(gpus) for gpus in of.values()), default=0):
        racks = _smallest_rack(of, missing, floor)
    while missing > len(chosen) and of:
        short = missing - len(chosen)
        *_, best = min(
            (*_rank(gpus, short, floor.rack_of(machine) not in racks), machine)
            for machine, gpus in of.items()
        )
        racks = racks or {floor.rack_of(best)}
        chosen += of.pop(best)
    return chosen


def _smallest_rack(of: dict[int, list[int]], count: int, floor: Floor) -> set[int]:
    """Return the smallest rack that has so many GPUs; none where there is no such rack."""
    totals: dict[int, int] = {}
    for machine, gpus in of.items():
        rack = floor.rack_of(machine)
        totals[rack] = totals.get(rack, 0) + len(gpus)
    enough = [(total, rack) for rack, total in totals.items() if total >= count]
    return {min(enough)[1]} if enough else set()


def _rank(gpus: list[int], count: int, elsewhere: bool) -> tuple[bool, bool, int, int]:
    enough = len(gpus) >= count
    return elsewhere, not enough, len(gpus) if enough else -len(gpus), gpus[0]


def cost_of_spread(row: AppRow, count: int, state: ClusterState) -> tuple[float, int]:
    """Return how many of *count* GPUs would be wasted if the jobs of an app lay on several machines."""
    network = next((machine.network for machine in state.floor.machines.values()), "")
    wide = (job.job.model for job in row.unfinished() if job.job.most > 1)
    slower = max((state.slowdowns.of(model, network, Spread.RACK) for model in wide), default=1.0)
    return (slower - 1.0) * count, count
