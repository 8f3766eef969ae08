"""The smallest bound on rho that all apps can be held to gives each of them a deadline.

Work is taken to be divisible: an app uses GPUs at an even rate, from when it has to begin to its deadline.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrarium.cluster.policies._gavel import Vector
from astrarium.cluster.policies.astrarium.prospects import AppProspect
from astrarium.core.quantities import Time

ROUNDING = 1e-6
DOUBLINGS = 60
HALVINGS = 12


def smallest_bound(now: Time, prospects: Sequence[AppProspect], gpus: int) -> float:
    """Return the smallest bound on rho that every app can be held to."""
    left, span = work_and_spans(prospects)
    lived = np.array([float(now - prospect.row.arrived) for prospect in prospects])
    ideal = np.array([prospect.ideal for prospect in prospects])

    def fits(bound: float) -> bool:
        return in_time(left, span, bound * ideal - lived, gpus)

    low = high = float(((span + lived) / ideal).max())  # nobody is faster than it can be
    for _ in range(DOUBLINGS):
        if fits(high):
            break
        low = high
        high = 2 * high
    for _ in range(HALVINGS if high > low else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def work_and_spans(prospects: Sequence[AppProspect]) -> tuple[Vector, Vector]:
    return np.array([prospect.left for prospect in prospects]), np.array(
        [prospect.span for prospect in prospects]
    )


def in_time(left: Vector, span: Vector, deadlines: Vector, gpus: int) -> bool:
    """Return whether all work can be done, each app by its deadline, counted from now."""
    instants, due = _due(left, span, deadlines)
    return bool((due <= gpus * instants * (1 + ROUNDING) + 1.0).all())


def tight_until(left: Vector, span: Vector, deadlines: Vector, gpus: int, margin: float) -> float:
    """Return the last instant by which so much is to be done, for all to meet their deadlines, that GPUs
    could not even rest for a *margin*."""
    instants, due = _due(left, span, np.maximum(deadlines, span))
    return float(instants[due >= gpus * (instants - margin)].max(initial=margin))


def _due(left: Vector, span: Vector, deadlines: Vector) -> tuple[Vector, Vector]:
    """Return instants, and the work that is to be done by then if every app begins as late as it can."""
    rate = left / span
    starts = np.maximum(0.0, deadlines - span)
    instants = np.concatenate([starts, deadlines])
    order = np.argsort(instants, kind="stable")
    instants = instants[order]
    slopes = np.cumsum(np.concatenate([rate, -rate])[order])
    return instants[1:], np.cumsum(slopes[:-1] * np.diff(instants))
