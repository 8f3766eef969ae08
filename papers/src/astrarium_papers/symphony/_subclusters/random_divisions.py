"""Divisions are drawn by chance, and the best is kept: what the program is compared with."""

from __future__ import annotations

import math

import numpy as np

from astrarium_papers.symphony._subclusters import Chance
from astrarium_papers.symphony._subclusters.figures import Figures, Places


def best_drawn(figures: Figures, tries: int, chance: Chance) -> Places | None:
    best = None
    least = math.inf
    for _ in range(tries):
        drawn = _drawn(figures, chance)
        objective = figures.objective(drawn)
        if objective < least and figures.allowed(drawn):
            best = drawn
            least = objective
    return best


def _drawn(figures: Figures, chance: Chance) -> Places:
    drawn: Places = np.asarray(chance.integers(0, figures.parts, len(figures.today)), np.int64)
    if not figures.bounded_moves:
        return drawn
    homed = np.asarray(chance.permutation(np.flatnonzero(figures.today >= 0)), np.int64)
    may_move = homed[: _most_moved(figures, homed)]
    stay = np.setdiff1d(homed, may_move)
    drawn[stay] = figures.today[stay]
    return drawn


def _most_moved(figures: Figures, order: Places) -> int:
    """Return how many of the first of *order* may move."""
    within = int(np.searchsorted(np.cumsum(figures.load[order]), figures.moved_load_limit, "right"))
    return int(min(within, figures.moved_limit, len(order)))
