"""Usher by the weighted achieved occupancy: the average over a batch's time, not its busiest moment.

Elvinger's thesis, section 5.3.1: far more models share a GPU this way. The thesis found it too optimistic.
"""

from __future__ import annotations

from astrarium.placement.policies import placement_policies
from astrarium.placement.policies._requirements import Metric
from astrarium.placement.policies.usher import Usher


@placement_policies.register("wao-usher")
class WaoUsher(Usher):
    """Place like Usher, by weighted achieved occupancy."""

    name = "wao-usher"
    metric: Metric = "weighted_occupancy"
