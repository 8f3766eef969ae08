"""What an app has still to do, and how long that takes on GPUs of a shape: what its agent knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heapreplace
from math import ceil
from statistics import median_high
from typing import NamedTuple

from astrarium.cluster.contract import Job
from astrarium.cluster.machines import Floor, Slowdowns, Spread
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.units import Time

# How a number of GPUs lies on machines, as far as it matters for speed, without saying which they are.


class Part(NamedTuple):
    """GPUs on one machine. *rack* None: in any."""

    gpus: int
    rack: int | None = None


class Shape(NamedTuple):
    """Parts, the largest first. *slot*: so many GPUs of a machine lie closest to each other."""

    parts: tuple[Part, ...]
    slot: int = 1

    @property
    def gpus(self) -> int:
        return sum(part.gpus for part in self.parts)

    def spread(self, size: int) -> Spread:
        """Of so many of its GPUs, as close as it has them."""
        if not self.parts or size <= min(self.slot, self.parts[0].gpus):
            return Spread.SLOT
        if size <= self.parts[0].gpus:
            return Spread.MACHINE
        return _apart(self.parts)


def shape(parts: Iterable[Part], slot: int = 1) -> Shape:
    return Shape(tuple(sorted(parts, key=_largest_first)), slot)


def held(floor: Floor, gpus: Iterable[int]) -> dict[int, Part]:
    """By machine."""
    found: dict[int, Part] = {}
    for gpu in gpus:
        rack, machine, _ = floor.place_of(gpu)
        found[machine] = Part(found[machine].gpus + 1 if machine in found else 1, rack)
    return found


def spreads(sizes: Sequence[int], whole: Shape) -> list[Spread]:
    """Of jobs of these sizes at the same time: the largest first, each where it fits most tightly."""
    if not sizes or max(sizes) <= 1:
        return [Spread.SLOT] * len(sizes)
    left = [part.gpus for part in whole.parts]
    found = [Spread.SLOT] * len(sizes)
    for job in sorted(range(len(sizes)), key=lambda job: -sizes[job]):
        found[job] = _take(left, sizes[job], whole)
    return found


def _take(left: list[int], size: int, whole: Shape) -> Spread:
    """From what is *left* of each part."""
    fitting = [place for place, room in enumerate(left) if room >= size]
    if fitting:
        left[min(fitting, key=lambda place: left[place])] -= size
        return Spread.SLOT if size <= whole.slot else Spread.MACHINE
    used = []
    for place in sorted(range(len(left)), key=lambda place: -left[place]):
        taken = min(left[place], size)
        if taken:
            left[place], size = left[place] - taken, size - taken
            used.append(whole.parts[place])
    return _apart(used)


def _apart(parts: Sequence[Part]) -> Spread:
    """A part that may lie in any rack is taken to lie in another."""
    racks = {part.rack for part in parts}
    if len(parts) > 1 and (len(racks) > 1 or None in racks):
        return Spread.CLUSTER
    return Spread.RACK if len(parts) > 1 else Spread.MACHINE


def _largest_first(part: Part) -> tuple[int, int]:
    return -part.gpus, -1 if part.rack is None else part.rack


# How long the jobs of an app take on GPUs that it keeps until it ends: T_sh of Themis, without the past.


UNSERVED = 10.0
Slowdown = Callable[[str, int], float]  # of a model on a number of GPUs, wherever these would lie


class Task(NamedTuple):
    """What is left of a job, in time on one GPU."""

    left: float
    least: int
    most: int
    model: str = ""


class Later(NamedTuple):
    """A phase to come of a tuner: who is in it is not known, so all are as the median job."""

    jobs: int
    each: Task


def longest_first(tasks: Sequence[Task]) -> list[Task]:
    return sorted(tasks, key=lambda task: -task.left)


def sizes(tasks: Sequence[Task], gpus: int) -> list[int] | None:
    """GPUs of each task where all run at once: first its least, then one each, again and again.

    None: they do not all fit.
    """
    if sum(task.least for task in tasks) > gpus:
        return None
    if sum(task.most for task in tasks) <= gpus:
        return [task.most for task in tasks]
    level = _level(tasks, gpus)
    found = [min(max(level, task.least), task.most) for task in tasks]
    spare = gpus - sum(found)
    for place, task in enumerate(tasks):
        if spare and found[place] < task.most and found[place] == level:
            found[place] += 1
            spare -= 1
    return found


def _level(tasks: Sequence[Task], gpus: int) -> int:
    """The most GPUs that all who can grow so far may have."""
    low, high = 0, max(task.most for task in tasks)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(max(middle, task.least), task.most) for task in tasks) <= gpus:
            low = middle
        else:
            high = middle - 1
    return low


def at_once(tasks: Sequence[Task], own: Sequence[int], slowdowns: Sequence[float]) -> float:
    """All run from now on: the phase ends with the slowest."""
    spans = (
        task.left * slower / size for task, size, slower in zip(tasks, own, slowdowns, strict=True) if size
    )
    return max(spans, default=0.0)


def in_turns(tasks: Sequence[Task], gpus: int, slowdown: Slowdown) -> float:
    """Each takes the GPUs that are free first."""
    if all(task.least == 1 for task in tasks):
        return _one_by_one(tasks, gpus, slowdown)
    free_at, kinds = [0.0] * gpus, {(task.model, task.least) for task in tasks}
    slower = {kind: slowdown(*kind) for kind in kinds}
    for task in tasks:
        if task.least > gpus:
            continue
        free_at.sort()
        ends = free_at[task.least - 1] + task.left * slower[task.model, task.least] / task.least
        free_at[: task.least] = [ends] * task.least
    unserved = sum(task.left / task.least for task in tasks if task.least > gpus)
    return max(free_at) + UNSERVED * unserved


def _one_by_one(tasks: Sequence[Task], gpus: int, slowdown: Slowdown) -> float:
    slower = {model: slowdown(model, 1) for model in {task.model for task in tasks}}
    free_at = [task.left * slower[task.model] for task in tasks[:gpus]]
    heapify(free_at)
    for task in tasks[gpus:]:
        heapreplace(free_at, free_at[0] + task.left * slower[task.model])
    return max(free_at)


def later_time(later: Later, gpus: int, slowdown: Slowdown) -> float:
    """All as one: side by side with equal parts of the GPUs, or in as many rounds as it takes."""
    task, abreast = later.each, gpus // later.each.least
    if not abreast:
        return UNSERVED * later.jobs * task.left / task.least
    size = min(task.most, max(task.least, gpus // later.jobs))
    rounds = ceil(later.jobs / abreast)
    return rounds * task.left * slowdown(task.model, size) / size


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
