"""A prospect is what our own policy expects of an app: what is left, how fast it could be, and its T_id.

All of it is known now: what owners say, paces that were seen, and the apps that are there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import Literal, NamedTuple

from astrarium.cluster.contract import Job
from astrarium.cluster.fairness import Definition, Ideal
from astrarium.cluster.machines import Floor, Spread
from astrarium.cluster.state import AppRow, ClusterState, Contention, JobRow
from astrarium.cluster.work_left import part_done
from astrarium.core.quantities import Time

RhoDefinition = Definition | Literal["both"]


@dataclass(eq=False)
class AppProspect:
    """What is left of an app and how long it takes. *left*: GPU time. *span*: how long that takes at best,
    wherever its jobs are now: were a bad place to count, one app that lies badly for a while would raise the
    bound for all. *ideal*: T_id.

    *loss*: GPU time that is gone if all of it is stopped now: startups, and work since the last checkpoints.
    *width*: the GPUs that all of its jobs use at their largest.
    """

    row: AppRow
    left: float
    span: float
    loss: float
    width: int
    ideal: float = 1.0
    same: int = 0  # equal for apps that are the same, whenever they came

    @property
    def app(self) -> int:
        return self.row.app.id

    @property
    def rate(self) -> float:
        """Return the GPUs that the app uses on the mean, if it is as fast as can be."""
        return self.left / self.span

    def best(self, now: Time) -> float:
        """Return the rho of the app, if it runs from now on."""
        return (now - self.row.arrived + self.span) / self.ideal

    def deadline(self, bound: float) -> float:
        """Return when the app must end for a rho of at most *bound*."""
        return self.row.arrived + bound * self.ideal


class _Phase(NamedTuple):
    """All jobs of a phase are taken to be as the median one."""

    jobs: int
    work: float  # of the median job
    first: Job


class _KnownApp(NamedTuple):
    """What does not change: T_id by each definition, a number that is equal for apps that are the same."""

    ideals: list[Ideal]
    same: int
    phases: list[_Phase]


class Prospects:
    """They are kept from one decision to the next and renewed for apps that changed. *definition* of rho: of
    `both`, the one by which an app fares worse."""

    def __init__(self, definition: RhoDefinition) -> None:
        self._definition = definition
        self._known: dict[int, _KnownApp] = {}

    def of(self, now: Time, state: ClusterState) -> list[AppProspect]:
        self._known = {app: self._known.get(app) or self._new(row) for app, row in state.apps.items()}
        largest = _largest_units(state.floor)
        prospects = [
            _prospect(now, row, state, largest, known.phases)
            for row, known in zip(state.apps.values(), self._known.values(), strict=True)
        ]
        size = max(1, state.floor.size)
        for prospect, crowd in zip(prospects, _crowds(now, prospects, state), strict=True):
            known = self._known[prospect.app]
            prospect.same = known.same
            prospect.ideal = min(ideal(size, crowd) for ideal in known.ideals)
        return prospects

    def _new(self, row: AppRow) -> _KnownApp:
        both: tuple[Definition, ...] = ("share", "equation-1")
        names = both if self._definition == "both" else (self._definition,)
        phases = [
            _Phase(len(jobs), median_high(job.forecast for job in jobs), jobs[0]) for jobs in row.app.phases
        ]
        return _KnownApp([Ideal(row.app, name) for name in names], hash(row.app.phases), phases)


def _prospect(
    now: Time, row: AppRow, state: ClusterState, largest: _LargestUnits, phases: Sequence[_Phase]
) -> AppProspect:
    size = max(1, state.floor.size)
    left = 0.0
    longest = 0.0
    width = 0
    loss = 0.0
    for job in row.jobs.values():
        if not job.finished:
            more = job_left(now, row, job, state)
            more = more * _slower(job.job, state, largest)
            most = job.job.most
            left = left + more
            width = width + most
            longest = max(longest, more / min(most, size))
            if job.gpus:
                loss += len(job.gpus) * lost_by_stopping(now, job, state)
    span = max(longest, left / min(size, width))
    for count, work, first in phases[row.phase + 1 :]:
        job_work = work * _slower(first, state, largest)
        most = first.most
        left += count * job_work
        span += max(job_work / min(most, size), count * job_work / min(size, count * most))
    return AppProspect(row, left, max(1.0, span), loss, width)


def job_left(now: Time, row: AppRow, job: JobRow, state: ClusterState) -> float:
    """Return the work that is left of a job. How many of its iterations are done, a job says; how long the
    others take is the owner's guess, which counts the less the more was seen. Where a curve decides when it
    ends, nobody knows how many there are."""
    if not job.gpus and not job.done:  # as most that wait: asked again and again, it must be cheap
        return max(1.0, float(job.job.forecast))
    if row.app.kind == "curve":
        return max(1.0, job.job.forecast - state.done(now, job))
    part = part_done(now, job, state)
    return max(1.0, (job.job.forecast * (1 - part) + part * job.job.work) * (1 - part))


def lost_by_stopping(now: Time, job: JobRow, state: ClusterState) -> Time:
    return state.startup + state.unsaved(now, job)


class _LargestUnits(NamedTuple):
    """How many GPUs the largest slot and the largest machine have."""

    slot: int
    machine: int


def _largest_units(floor: Floor) -> _LargestUnits:
    machines = floor.machines.values()
    slots = (machine.slot or machine.gpus for machine in machines)
    return _LargestUnits(max(slots, default=0), max((machine.gpus for machine in machines), default=0))


def _slower(job: Job, state: ClusterState, largest: _LargestUnits) -> float:
    """Return how much slower a job is that is wider than a slot or a machine, however well it lies."""
    if job.most <= largest.slot or not largest.machine:
        return 1.0
    network = next(iter(state.floor.machines.values())).network
    return state.slowdowns.of(job.model, network, Spread(bisect_left(largest, job.most)))


def _crowds(now: Time, prospects: Sequence[AppProspect], state: ClusterState) -> list[Contention]:
    """Return, for each app, the mean contention in its life, if nobody else comes and the short end first.
    What it was so far would be too kind: a long app that came in a crowd is alone in the end."""
    size = max(1, state.floor.size)
    total = 0.0
    ends = list[tuple[float, int]]()
    for place in sorted(range(len(prospects)), key=lambda place: prospects[place].left):
        total += prospects[place].left
        ends.append((max(prospects[place].span, total / size), place))
    widths = [prospect.width for prospect in prospects]
    apps = 0.0
    gpus = 0.0
    before = 0.0
    crowds = [Contention(1.0, 1.0)] * len(prospects)
    there = len(prospects)
    asked = sum(widths)
    for end, place in sorted(ends):
        apps = apps + (end - before) * there
        gpus = gpus + (end - before) * asked
        before = end
        there = there - 1
        asked = asked - widths[place]
        row = prospects[place].row
        lived = now - row.arrived
        past = state.contention(now, row)
        whole = lived + end
        crowds[place] = Contention((past.apps * lived + apps) / whole, (past.gpus * lived + gpus) / whole)
    return crowds
