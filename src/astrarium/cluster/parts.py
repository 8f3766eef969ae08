"""Parts of time for gangs on GPUs that are all alike: Gavel's programs, which then have no need of a solver.

Who needs *gangs[i]* GPUs at once gets them for the part x[i] of the time, between 0 and 1; the sum of
gangs * x is at most the number of GPUs. Such a program asks for the best that the worst can have. Its answer
is a level at which everybody has at least so much: it is found at once, or by bisection, because at a level
each x[i] has a least value that depends on nobody else. Beyond that, often many answers are equally good.
Gavel's solvers (interior point) end in the middle of them, and so does `middle`; a simplex would end in a
corner, where some have all that is left and others nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float64]

CLOSE = 1e-9
STEPS = 100


def largest_level(gangs: Vector, gpus: float) -> float:
    """Max-min: the most GPUs on average that everybody can have at least."""
    return float(min(gpus / len(gangs), gangs.min()))


def smallest_level(least: Callable[[float], Vector], gangs: Vector, gpus: float, bound: float) -> float:
    """Min-max by bisection: *least* falls as the level rises. No level is below *bound*."""
    low, high = bound, bound
    while gangs @ least(high) > gpus:
        low, high = high, 2 * high + CLOSE
    for _ in range(STEPS):
        middle = (low + high) / 2
        if gangs @ least(middle) <= gpus:
            high = middle
        else:
            low = middle
    return high


def middle(least: Vector, gangs: Vector, gpus: float) -> Vector:
    """The analytic centre of least <= x <= 1, gangs @ x <= gpus: the product of all slacks is largest there.

    By Newton's method. The matrix is a diagonal and one outer product, so that a step takes linear time.
    """
    x = np.minimum(least, 1.0)
    spare, free = gpus - float(gangs @ x), x < 1 - CLOSE
    if spare <= CLOSE or not free.any():
        return x
    room, gang = 1 - x[free], gangs[free]
    above = np.minimum(room, spare / gang.sum()) / 2  # how much more than the least
    for _ in range(STEPS):
        move = _newton(above, room, gang, spare)
        above = above + _longest(above, move, room, gang, spare) * move
        if np.abs(move).max() < CLOSE:
            break
    x[free] += above
    return x


def _newton(above: Vector, room: Vector, gang: Vector, spare: float) -> Vector:
    left = spare - float(gang @ above)
    slope = 1 / above - 1 / (room - above) - gang / left
    curve = 1 / above**2 + 1 / (room - above) ** 2
    shared = float(gang @ (slope / curve)) / (left**2 + float(gang @ (gang / curve)))
    step: Vector = slope / curve - gang / curve * shared
    return step


def _longest(above: Vector, move: Vector, room: Vector, gang: Vector, spare: float) -> float:
    """A part of the step that stays inside."""
    part = 1.0
    while True:
        there = above + part * move
        if there.min() > 0 and (room - there).min() > 0 and gang @ there < spare:
            return part
        part /= 2
