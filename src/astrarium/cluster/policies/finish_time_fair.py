"""Finish-time fairness as in Gavel (OSDI 2020, section 4.2) finds parts of time that keep the worst rho
small.

rho of an app is how long it will have taken, over how long it would have taken with an equal part of the
cluster. The second counts what is done at the part there was when it was done, and what is left at the part
there is now. Gavel gives this program to a convex solver; for GPUs that are all alike, it is a bisection over
rho, because at a rho each app needs a part of the time that depends on nobody else. It is not Themis: there
is no auction, and no placement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.policies._gavel import CLOSE, Vector, middle, smallest_level
from astrarium.cluster.policies._time_shares import RoundParameters, TimeShares, capped_demand
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.cluster.work_left import work_left
from astrarium.core.quantities import Time, to_seconds


@dataclass
class Alone:
    """How long an app would have taken alone for what is done, and what was left, at which part."""

    took: float
    left: float
    part: float


@cluster_policies.register("finish-time-fair")
class FinishTimeFair(TimeShares):
    Parameters = RoundParameters

    def __init__(self, parameters: RoundParameters) -> None:
        super().__init__(parameters)
        self._alone: dict[int, Alone] = {}

    def targets(self, now: Time, rows: Sequence[AppRow], state: ClusterState) -> Sequence[float]:
        if not rows:
            return []
        gangs = np.array([float(capped_demand(row, state)) for row in rows])
        gpus = float(state.floor.size)
        left = np.array([to_seconds(work_left(now, row, state)) for row in rows]) / gangs
        lived = np.array([to_seconds(now - row.arrived) for row in rows])
        ideal = self._ideal(rows, left, np.minimum(1.0, gpus / len(rows) / gangs))
        least = _least(left, lived, ideal)
        rho = smallest_level(least, gangs, gpus, float(((lived + left) / ideal).max()))
        return list(map(float, middle(least(rho), gangs, gpus)))

    def _ideal(self, rows: Sequence[AppRow], left: Vector, parts: Vector) -> Vector:
        """Return how long each app would take by itself."""
        alone: dict[int, Alone] = {}
        for row, now_left, part in zip(rows, map(float, left), map(float, parts), strict=True):
            before = self._alone.get(row.app.id, Alone(0.0, now_left, part))
            took = before.took + (before.left - now_left) / before.part
            alone[row.app.id] = Alone(took, now_left, part)
        self._alone = alone
        return np.array([known.took for known in alone.values()]) + left / parts


def _least(left: Vector, lived: Vector, ideal: Vector) -> Callable[[float], Vector]:
    """Return a function from a rho to the part of the time that each app needs for it."""

    def parts(rho: float) -> Vector:
        time = np.maximum(rho * ideal - lived, CLOSE)
        part: Vector = np.minimum(1.0, left / time)
        return part

    return parts
