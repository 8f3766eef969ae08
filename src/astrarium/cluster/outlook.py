"""What an app has still to do, and how long that takes on GPUs of a shape: what its agent knows."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_high
from typing import NamedTuple

from astrarium.cluster.apps import Job
from astrarium.cluster.estimates import (
    Later,
    Slowdown,
    Task,
    at_once,
    in_turns,
    later_time,
    longest_first,
    sizes,
)
from astrarium.cluster.ledger import AppRow
from astrarium.cluster.machines import Spread
from astrarium.cluster.shapes import Shape, spreads
from astrarium.cluster.slowdown import Slowdowns
from astrarium.cluster.state import ClusterState
from astrarium.core.units import Time


class Claim(NamedTuple):
    """What an app says, over what is known of it: the work of its jobs, and how much slower they get on one
    machine (*near*) and on several (*apart*). All ones: it says the truth."""

    work: float = 1.0
    near: float = 1.0
    apart: float = 1.0


class Claimed:
    """S as an app claims it to be. Being apart makes nobody faster, whoever claims so."""

    def __init__(self, known: Slowdowns, network: str, claim: Claim) -> None:
        self._known, self._network, self._claim = known, network, claim
        self._found: dict[tuple[str, Spread], float] = {}

    def of(self, model: str, spread: Spread) -> float:
        found = self._found.get((model, spread))
        if found is None:
            found = self._found[model, spread] = self._looked_up(model, spread)
        return found

    def _looked_up(self, model: str, spread: Spread) -> float:
        known = self._known.of(model, self._network, spread)
        if spread <= Spread.MACHINE:
            return known * self._claim.near
        return max(1.0, known * self._claim.apart)


class Outlook(NamedTuple):
    """*present*: jobs of this phase, the longest first. *later*: phases to come, known or guessed."""

    present: list[Task]
    later: list[list[Task] | Later]
    slowdowns: Claimed

    @property
    def smallest(self) -> int:
        """The fewest GPUs with which anything goes on."""
        return min(task.least for task in self.present)

    def left(self, whole: Shape) -> float:
        """How long until its end on these GPUs, of which there is at least one."""
        return _phase(self.present, whole, self.slowdowns) + sum(
            self._later(phase, whole) for phase in self.later
        )

    def _later(self, phase: list[Task] | Later, whole: Shape) -> float:
        if isinstance(phase, Later):
            return later_time(phase, whole.gpus, _wherever(whole, self.slowdowns))
        return _phase(phase, whole, self.slowdowns)

    def placement_matters(self) -> bool:
        return any(
            task.most > 1 and self.slowdowns.of(task.model, Spread.CLUSTER) > self._nearest(task)
            for task in self.tasks()
        )

    def racks_matter(self) -> bool:
        of = self.slowdowns.of
        return any(of(task.model, Spread.CLUSTER) > of(task.model, Spread.RACK) for task in self.tasks())

    def tasks(self) -> list[Task]:
        guessed = [
            each for phase in self.later for each in ([phase.each] if isinstance(phase, Later) else phase)
        ]
        return self.present + guessed

    def _nearest(self, task: Task) -> float:
        return self.slowdowns.of(task.model, Spread.MACHINE)


def outlook(now: Time, row: AppRow, state: ClusterState, claim: Claim) -> Outlook:
    """Equation 2: real jobs for this phase. Successive halving finds out later who goes on."""
    present = [
        _task(each.job, claim, state.done(now, each)) for each in row.jobs.values() if not each.finished
    ]
    later = [_foreseen(row, phase, claim) for phase in row.app.phases[row.phase + 1 :]]
    network = next((machine.network for machine in state.floor.machines.values()), "")
    return Outlook(longest_first(present), later, Claimed(state.slowdowns, network, claim))


def _task(job: Job, claim: Claim, done: Time = 0) -> Task:
    """A forecast of a curve is the longest that it may take: jobs that end earlier are good news."""
    return Task(max(1.0, job.forecast * claim.work - done), job.least, job.most, job.model)


def _foreseen(row: AppRow, phase: Sequence[Job], claim: Claim) -> list[Task] | Later:
    if row.app.kind != "halving":
        return longest_first([_task(job, claim) for job in phase])
    now = [each.job for each in row.jobs.values()]
    if all(job.iterations for job in (*now, *phase)):
        iteration = median_high(job.forecast / job.iterations for job in now)
        work = iteration * median_high(job.iterations for job in phase)
    else:
        work = median_high(job.forecast for job in phase)
    return Later(len(phase), Task(work * claim.work, phase[0].least, phase[0].most, phase[0].model))


def _phase(tasks: list[Task], whole: Shape, slowdowns: Claimed) -> float:
    own = sizes(tasks, whole.gpus)
    if own is None:
        return in_turns(tasks, whole.gpus, _wherever(whole, slowdowns))
    where = spreads(own, whole)
    slower = [slowdowns.of(task.model, spread) for task, spread in zip(tasks, where, strict=True)]
    return at_once(tasks, own, slower)


def _wherever(whole: Shape, slowdowns: Claimed) -> Slowdown:
    def of(model: str, size: int) -> float:
        return slowdowns.of(model, whole.spread(size))

    return of
