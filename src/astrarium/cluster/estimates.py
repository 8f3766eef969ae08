"""How long the jobs of an app take on GPUs that it keeps until it ends: T_sh of Themis, without the past.

Equation 1 is the case of one job. Equation 2: phases follow each other, and each ends with its slowest job.
Where all jobs of a phase fit, each has GPUs of its own; where GPUs are too few, jobs take turns, the longest
first, on as few GPUs as they can. A gang that does not fit at all would never end, which is no number to
compare: it counts as if it had to wait for others `UNSERVED` times as long as it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace
from math import ceil
from typing import NamedTuple

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
