"""The smallest bound on rho that everybody can be held to.

With a bound every app has a deadline. What it cannot do between an instant and its deadline, it must have
done before that instant; if all of that fits on the GPUs before the instant, whichever it is, there is a way
to meet all deadlines, with GPUs that are divided at will. (It is a flow of work through time, and these
instants are its smallest cuts.) Real gangs may need a little longer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrarium.cluster.parts import Vector
from astrarium.cluster.policies._astrarium_prospects import Prospect
from astrarium.core.units import Time

HAIR = 1e-6
DOUBLINGS, HALVINGS = 60, 12


def smallest_bound(now: Time, prospects: Sequence[Prospect], gpus: int) -> float:
    lived = np.array([float(now - each.row.arrived) for each in prospects])
    left = np.array([each.left for each in prospects])
    span = np.array([each.span for each in prospects])
    ideal = np.array([each.ideal for each in prospects])

    def fits(bound: float) -> bool:
        return in_time(left, span, bound * ideal - lived, gpus)

    low = high = float(((span + lived) / ideal).max())  # nobody is faster than it can be
    for _ in range(DOUBLINGS):
        if fits(high):
            break
        low, high = high, 2 * high
    for _ in range(HALVINGS if high > low else 0):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def in_time(left: Vector, span: Vector, deadlines: Vector, gpus: int) -> bool:
    """Whether all can be done, each by its deadline, counted from now."""
    rate, starts = left / span, np.maximum(0.0, deadlines - span)
    instants = np.concatenate([starts, deadlines])
    order = np.argsort(instants, kind="stable")
    instants = instants[order]
    slopes = np.cumsum(np.concatenate([rate, -rate])[order])
    due = np.cumsum(slopes[:-1] * np.diff(instants))
    return bool((due <= gpus * instants[1:] * (1 + HAIR) + 1.0).all())
