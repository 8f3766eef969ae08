"""A good division quickly: the largest models first, then the best exchange of two models, again and again.

An exchange is judged by the sum of squared deviations: every exchange that helps two parts helps the sum,
while the largest deviation alone would not move as long as two parts share it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from astrarium_papers.symphony._subclusters.figures import NOWHERE, Figures, Floats, Places, over

FORBIDDEN = 1e6  # what being above a limit by all of it costs, against squared deviations
LEAST_GAIN = 1e-13
LEAST_USE = 1e-3


def first_division(figures: Figures) -> Places:
    """Those with a home stay there if moves are bounded; the others go, largest first, where they fit."""
    stays = figures.bounded_moves
    assignment = figures.today.copy() if stays else np.full_like(figures.today, NOWHERE)
    sizes = figures.load / figures.mean_load + figures.weight * figures.memory / figures.mean_memory
    for place in np.argsort(-sizes, kind="stable"):
        if assignment[place] == NOWHERE:
            assignment[place] = int(np.argmin(_cost_of_joining(figures, assignment, int(place))))
    return assignment


def _cost_of_joining(figures: Figures, assignment: Places, place: int) -> Floats:
    """Return what the sum of squares grows by, and how far above the limits it would be, by part."""
    inside = np.flatnonzero(assignment >= 0)
    cost = np.zeros(figures.parts)
    for column, mean, weight in figures.balanced:
        before = figures.sums_of(column, assignment, inside) / mean
        cost += weight * ((before + column[place] / mean) ** 2 - before**2)
    rate = figures.sums_of(figures.rate, assignment, inside) + figures.rate[place]
    memory = figures.sums_of(figures.memory, assignment, inside) + figures.memory[place]
    cost += FORBIDDEN * (over(rate, figures.rate_limit) + over(memory, figures.memory_limit))
    return cost


class Exchange(NamedTuple):
    """The best exchange of a pair of parts: a model of each, or of one alone where the other is negative."""

    gain: float
    left: int
    right: int


class Swaps:
    """Steepest descent. The best exchange of each pair of parts is kept until one of the two changes."""

    def __init__(self, figures: Figures, assignment: Places, most: int) -> None:
        self.figures = figures
        self.assignment = assignment.copy()
        self._most = most
        self.tried = 1
        parts = figures.parts
        self._best: dict[tuple[int, int], Exchange] = {}
        self._pairs = [(first, second) for first in range(parts) for second in range(first + 1, parts)]

    def run(self) -> None:
        for pair in self._pairs:
            self._look_at(pair)
        for _ in range(self._most):
            if not self._step() and not self._anything_after_all():
                return

    def run_until_allowed(self) -> None:
        """Exchange models no further than the limits of the parts ask for."""
        for pair in self._pairs:
            self._look_at(pair)
        while self.figures.excess(self.assignment) > 0 and self._step():
            pass

    def _step(self) -> bool:
        """Make the best exchange that is known; where moves are scarce it may be too much by now."""
        while self._best:
            pair = max(self._best, key=lambda pair: (self._best[pair].gain, -pair[0], -pair[1]))
            exchange = self._best[pair]
            if exchange.gain <= LEAST_GAIN:
                return False
            if not self._exchanged(pair, exchange):
                self._look_at(pair)
                continue
            for stale in self._pairs:
                if pair[0] in stale or pair[1] in stale:
                    self._look_at(stale)
            return True
        return False

    def _anything_after_all(self) -> bool:
        """A model that went home again left room for other moves, which nobody has looked at since."""
        if not self.figures.bounded_moves:
            return False
        for pair in self._pairs:
            self._look_at(pair)
        return any(exchange.gain > LEAST_GAIN for exchange in self._best.values())

    def _exchanged(self, pair: tuple[int, int], exchange: Exchange) -> bool:
        changed = self.assignment.copy()
        if exchange.left >= 0:
            changed[exchange.left] = pair[1]
        if exchange.right >= 0:
            changed[exchange.right] = pair[0]
        if not self.figures.few_moves(changed):
            return False
        self.assignment = changed
        return True

    def _look_at(self, pair: tuple[int, int]) -> None:
        """Look at all exchanges of a model of the one part, or none, against a model of the other, or
        none."""
        left, right = (_with_nobody(self.assignment, part) for part in pair)
        gains = self._gains(pair, left, right)
        self.tried += gains.size
        row, column = divmod(int(np.argmax(gains)), len(right))
        self._best[pair] = Exchange(float(gains[row, column]), int(left[row]), int(right[column]))

    def _gains(self, pair: tuple[int, int], left: Places, right: Places) -> Floats:
        before = self._cost(pair, left[-1:], right[-1:])
        gains: Floats = before - self._cost(pair, left, right)
        gains[-1, -1] = 0.0  # nobody against nobody
        return self._by_moves(gains, pair, left, right) if self.figures.bounded_moves else gains

    def _cost(self, pair: tuple[int, int], left: Places, right: Places) -> Floats:
        """Return the cost of the two parts after each exchange."""
        figures = self.figures
        cost = np.zeros((len(left), len(right)))
        for column, mean, weight in figures.balanced:
            for amount in self._after(column, pair, left, right):
                cost += weight * (amount / mean - 1) ** 2
        if figures.rate_limit < math.inf:
            for amount in self._after(figures.rate, pair, left, right):
                cost += FORBIDDEN * over(amount, figures.rate_limit)
        if figures.memory_limit < math.inf:
            static = self._after(figures.memory, pair, left, right)
            for amount, extra in zip(static, self._runtime(pair, left, right), strict=True):
                cost += FORBIDDEN * over(amount + extra, figures.memory_limit)
        return cost

    def _after(
        self, column: Floats, pair: tuple[int, int], left: Places, right: Places
    ) -> tuple[Floats, Floats]:
        leaving = _values(column, left)[:, None]
        coming = _values(column, right)[None, :]
        sums = self.figures.sums(column, self.assignment)
        return sums[pair[0]] - leaving + coming, sums[pair[1]] + leaving - coming

    def _runtime(self, pair: tuple[int, int], left: Places, right: Places) -> tuple[Floats, Floats]:
        """Return the largest of each part without the one who goes, and with the one who comes."""
        runtime = self.figures.runtime
        stays_left = _largest_without(runtime, self.assignment, pair[0], left)[:, None]
        stays_right = _largest_without(runtime, self.assignment, pair[1], right)[None, :]
        comes_left = _values(runtime, right)[None, :]
        comes_right = _values(runtime, left)[:, None]
        return np.maximum(stays_left, comes_left), np.maximum(stays_right, comes_right)

    def _by_moves(self, gains: Floats, pair: tuple[int, int], left: Places, right: Places) -> Floats:
        """Where moves are scarce, what counts is the gain for what they use up of what may still move."""
        figures = self.figures
        moved = figures.moved(self.assignment)
        used = np.zeros_like(gains)
        forbidden = np.zeros(gains.shape, bool)
        for column, limit in figures.move_limits:
            change = self._moves(column, left, *pair)[:, None] + self._moves(column, right, *reversed(pair))
            forbidden |= (change > 0) & (math.fsum(column[moved]) + change > limit)
            used = np.maximum(used, change / (limit or 1.0))
        worth: Floats = np.where(forbidden, -np.inf, gains / np.maximum(used, LEAST_USE))
        return worth

    def _moves(self, column: Floats, places: Places, home: int, away: int) -> Floats:
        """Return what moving each of *places* adds to what has moved."""
        today = np.where(places >= 0, self.figures.today[places], NOWHERE)
        leaves = (today >= 0) & (today != away)
        returns = (today >= 0) & (today != home)
        change: Floats = _values(column, places) * (leaves.astype(float) - returns)
        return change


def _with_nobody(assignment: Places, part: int) -> Places:
    return np.append(np.flatnonzero(assignment == part), NOWHERE)


def _values(column: Floats, places: Places) -> Floats:
    return np.where(places >= 0, column[places], 0.0)


def _largest_without(runtime: Floats, assignment: Places, part: int, places: Places) -> Floats:
    inside = np.sort(runtime[assignment == part])[::-1]
    first, second = (*inside[:2], 0.0, 0.0)[:2]
    return (
        np.where(_values(runtime, places) >= first, second, first) if len(inside) else np.zeros(len(places))
    )
