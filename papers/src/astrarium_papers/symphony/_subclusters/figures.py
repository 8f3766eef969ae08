"""A division of models in numbers: what each part holds, what has moved, and how good it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from astrarium_papers.symphony._subclusters import Division, Subclusters

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
NOWHERE = -1
ROUNDING = 1e-9  # sums of rates differ in their last digits by the order of their terms


class Figures:
    """Columns of the members, and the limits, infinite where there are none."""

    def __init__(self, task: Subclusters) -> None:
        members = task.members
        limits = task.limits
        self.task = task
        self.parts = task.parts
        self.weight = task.weight
        self.load = np.array([member.balanced_load for member in members], float)
        self.memory = np.array([member.memory for member in members], float)
        self.rate = np.array([member.rate for member in members], float)
        self.runtime = np.array([member.runtime for member in members], float)
        homes = [NOWHERE if member.today is None else member.today for member in members]
        self.today: Places = np.array(homes, np.int64)
        self.total_load = math.fsum(self.load)
        self.mean_load = self.total_load / self.parts or 1.0
        self.mean_memory = math.fsum(self.memory) / self.parts or 1.0
        self.rate_limit = _or_infinite(limits.rate)
        self.memory_limit = _or_infinite(limits.memory)
        self.moved_limit = _or_infinite(limits.moved)
        self.moved_load_limit = _or_infinite(limits.moved_load) * (self.total_load or 1.0)

        self.balanced = (
            (self.load, self.mean_load, 1.0),
            (self.memory, self.mean_memory, self.weight),
        )
        self.move_limits = (
            (np.ones(len(members)), self.moved_limit),
            (self.load, self.moved_load_limit),
        )

    @property
    def bounded_moves(self) -> bool:
        return bool((self.today >= 0).any()) and min(self.moved_limit, self.moved_load_limit) < math.inf

    def sums(self, column: Floats, assignment: Places) -> Floats:
        """Return sums by part; added up one by one, so that every machine rounds alike."""
        return np.bincount(assignment, column, self.parts).astype(float)

    def sums_of(self, column: Floats, assignment: Places, members: Places) -> Floats:
        return self.sums(column[members], assignment[members])

    def largest(self, column: Floats, assignment: Places) -> Floats:
        largest = np.zeros(self.parts)
        np.maximum.at(largest, assignment, column)
        return largest

    def moved(self, assignment: Places) -> npt.NDArray[np.bool_]:
        return np.asarray((self.today >= 0) & (assignment != self.today))

    def deviations(self, assignment: Places) -> tuple[Floats, Floats]:
        """Return deviations of load and of memory, in shares of the mean, by part."""
        load = np.abs(self.sums(self.load, assignment) / self.mean_load - 1) if self.total_load else 0.0
        memory = (
            np.abs(self.sums(self.memory, assignment) / self.mean_memory - 1) if self.memory.any() else 0.0
        )
        return load + np.zeros(self.parts), memory + np.zeros(self.parts)

    def objective(self, assignment: Places) -> float:
        load, memory = self.deviations(assignment)
        return float(load.max() + self.weight * memory.max())

    def needed_memory(self, assignment: Places) -> Floats:
        return self.sums(self.memory, assignment) + self.largest(self.runtime, assignment)

    def excess(self, assignment: Places) -> float:
        """Return how far the parts are above their limits, in shares of these; 0 if they all are below."""
        rate = over(self.sums(self.rate, assignment), self.rate_limit * (1 + ROUNDING))
        return float(rate.sum() + over(self.needed_memory(assignment), self.memory_limit).sum())

    def few_moves(self, assignment: Places) -> bool:
        moved = self.moved(assignment)
        load = math.fsum(self.load[moved])
        return bool(moved.sum() <= self.moved_limit and load <= self.moved_load_limit * (1 + ROUNDING))

    def allowed(self, assignment: Places) -> bool:
        return self.excess(assignment) == 0 and self.few_moves(assignment)

    def merit(self, assignment: Places) -> tuple[bool, float, float]:
        """Return a key of which less is better: limits first, then the objective."""
        return not self.few_moves(assignment), self.excess(assignment), self.objective(assignment)

    def division(self, assignment: Places, tried: int, optimal: bool) -> Division:
        moved = self.moved(assignment)
        return Division(
            assignment=tuple(assignment.tolist()),
            objective=self.objective(assignment),
            load_imbalance=_spread(self.sums(self.load, assignment), self.mean_load),
            memory_imbalance=_spread(self.sums(self.memory, assignment), self.mean_memory),
            moved=tuple(self.task.members[place].name for place in np.flatnonzero(moved)),
            moved_load=math.fsum(self.load[moved]) / (self.total_load or 1.0),
            tried=tried,
            optimal=optimal,
        )


def over(amount: Any, limit: float) -> Any:
    """Return how far above a limit, as a share of it."""
    if limit == math.inf:
        return np.zeros_like(amount)
    return np.maximum(amount - limit, 0) / (limit or 1.0)


def _or_infinite(limit: float | None) -> float:
    return math.inf if limit is None else float(limit)


def _spread(amounts: Floats, mean: float) -> float:
    return float((amounts.max() - amounts.min()) / mean)
