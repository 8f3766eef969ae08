"""A prospect is what our own policy expects of an app: what is left, how fast it could be, and its T_id.

All of it is known now: what owners say, paces that were seen, and the apps that are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import Literal

from astrarium.cluster.agents import Ideal
from astrarium.cluster.state import AppRow, ClusterState, JobRow
from astrarium.core.units import Time

RhoDefinition = Literal["share", "equation-1", "both"]


@dataclass(eq=False)
class AppProspect:
    """What is left of an app and how long it takes. *left*: GPU time. *span*: how long that takes at best,
    from where its jobs are now. *ideal*: T_id.

    *loss*: GPU time that is gone if all of it is stopped now: startups, and work since the last checkpoints.
    """

    row: AppRow
    left: float
    span: float
    loss: float
    ideal: float = 1.0

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


class Prospects:
    """The prospects of all apps. *definition* of rho: of `both`, the one by which an app fares worse."""

    def __init__(self, definition: RhoDefinition) -> None:
        self._definition = definition
        self._ideals: dict[int, list[Ideal]] = {}

    def of(self, now: Time, state: ClusterState) -> list[AppProspect]:
        self._ideals = {app: self._ideals.get(app) or self._alone(row) for app, row in state.apps.items()}
        found = [_prospect(now, row, state) for row in state.apps.values()]
        size = max(1, state.floor.size)
        for each, crowd in zip(found, _crowds(now, found, state), strict=True):
            each.ideal = min(alone(size, crowd) for alone in self._ideals[each.app])
        return found

    def _alone(self, row: AppRow) -> list[Ideal]:
        if self._definition == "both":
            return [Ideal(row.app, "share"), Ideal(row.app, "equation-1")]
        return [Ideal(row.app, self._definition)]


def _prospect(now: Time, row: AppRow, state: ClusterState) -> AppProspect:
    size, left, longest, width, loss = max(1, state.floor.size), 0.0, 0.0, 0, 0.0
    for job in row.jobs.values():
        if not job.finished:
            more = job_left(now, row, job, state)
            left, width = left + more, width + job.job.most
            longest = max(longest, _takes(job, more, size, state))
            if job.gpus:
                loss += len(job.gpus) * lost_by_stopping(now, job, state)
    span = max(longest, left / min(size, width))
    for count, each, most in _later(row):
        left += count * each
        span += max(each / min(most, size), count * each / min(size, count * most))
    return AppProspect(row, left, max(1.0, span), loss)


def job_left(now: Time, row: AppRow, job: JobRow, state: ClusterState) -> float:
    """Return the work that is left of a job. How many of its iterations are done, a job says; how long the
    others take is the owner's guess, which counts the less the more was seen. Where a curve decides when it
    ends, nobody knows how many there are."""
    if row.app.kind == "curve":
        return max(1.0, job.job.forecast - state.done(now, job))
    done: float = job.done
    if job.gpus:
        done += max(0, now - job.since) * state.pace(job.job, job.gpus)
    part = min(1.0, done / max(1, job.job.work))
    return max(1.0, (job.job.forecast * (1 - part) + done) * (1 - part))


def lost_by_stopping(now: Time, job: JobRow, state: ClusterState) -> Time:
    return state.startup + state.unsaved(now, job)


def _takes(job: JobRow, left: float, size: int, state: ClusterState) -> float:
    """Return how long a job takes at best. Where it runs on all GPUs that it can use, it goes on as fast as
    it does there: so a bad place makes an app fare worse, and be served sooner."""
    if len(job.gpus) == job.job.most > 1:
        return left / state.pace(job.job, job.gpus)
    return left / min(job.job.most, size)


def _later(row: AppRow) -> list[tuple[int, float, int]]:
    """Return phases to come: how many jobs, how long and how wide each, all as the median one."""
    phases = row.app.phases[row.phase + 1 :]
    return [(len(jobs), median_high(job.forecast for job in jobs), jobs[0].most) for jobs in phases]


def _crowds(now: Time, prospects: Sequence[AppProspect], state: ClusterState) -> list[float]:
    """Return, for each app, the mean number of apps in its life, if nobody else comes and the short end
    first. What it was so far would be too kind: a long app that came in a crowd is alone in the end."""
    size, total, ends = max(1, state.floor.size), 0.0, list[tuple[float, int]]()
    for place in sorted(range(len(prospects)), key=lambda place: prospects[place].left):
        total += prospects[place].left
        ends.append((max(prospects[place].span, total / size), place))
    area, before, found = 0.0, 0.0, [1.0] * len(prospects)
    for gone, (end, place) in enumerate(sorted(ends)):
        area, before = area + (end - before) * (len(ends) - gone), end
        row = prospects[place].row
        lived = now - row.arrived
        found[place] = (state.contention(now, row) * lived + area) / (lived + end)
    return found
