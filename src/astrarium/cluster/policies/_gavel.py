"""Gavel divides time between gangs on GPUs that are all alike: its programs then need no solver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float64]
CLOSE = 1e-9
STEPS = 100  # of a bisection, or of Newton's method


def largest_level(gangs: Vector, gpus: float) -> float:
    """Return the most GPUs on average that every app can have at least (max-min)."""
    return float(min(gpus / len(gangs), gangs.min()))


def smallest_level(least: Callable[[float], Vector], gangs: Vector, gpus: float, bound: float) -> float:
    """Return the smallest level above *bound* that all can have: *least* falls as the level rises."""
    low = bound
    high = bound
    while gangs @ least(high) > gpus:
        low = high
        high = 2 * high + CLOSE
    for _ in range(STEPS):
        middle = (low + high) / 2
        if gangs @ least(middle) <= gpus:
            high = middle
        else:
            low = middle
    return high


def middle(least: Vector, gangs: Vector, gpus: float) -> Vector:
    """Return the analytic centre of least <= x <= 1, gangs @ x <= gpus, where the product of all slacks is
    largest. It is found by Newton's method. The matrix is a diagonal and one outer product, so that a step
    takes linear time."""
    x = np.minimum(least, 1.0)
    spare = gpus - float(gangs @ x)
    free = x < 1 - CLOSE
    if spare <= CLOSE or not free.any():
        return x
    headroom = 1 - x[free]
    gang = gangs[free]
    above = np.minimum(headroom, spare / gang.sum()) / 2  # how much more than the least
    for _ in range(STEPS):
        move = _newton(above, headroom, gang, spare)
        above = above + _longest(above, move, headroom, gang, spare) * move
        if np.abs(move).max() < CLOSE:
            break
    x[free] += above
    return x


def _newton(above: Vector, headroom: Vector, gang: Vector, spare: float) -> Vector:
    left = spare - float(gang @ above)
    slope = 1 / above - 1 / (headroom - above) - gang / left
    curve = 1 / above**2 + 1 / (headroom - above) ** 2
    shared = float(gang @ (slope / curve)) / (left**2 + float(gang @ (gang / curve)))
    step: Vector = slope / curve - gang / curve * shared
    return step


def _longest(above: Vector, move: Vector, headroom: Vector, gang: Vector, spare: float) -> float:
    """Return the part of the step that stays inside."""
    part = 1.0
    while True:
        there = above + part * move
        if there.min() > 0 and (headroom - there).min() > 0 and gang @ there < spare:
            return part
        part /= 2
