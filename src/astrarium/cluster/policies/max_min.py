"""Max-min fairness over time gives the app that gets the fewest GPUs on average as many as can be.

It is Gavel's policy that stands for least attained service (OSDI 2020, section 4.1): its linear program for
GPUs that are all alike. `round` is Shockwave's; Gavel has 360s.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.policies._gavel import largest_level, middle
from astrarium.cluster.policies._time_shares import RoundParameters, TimeShares, capped_demand
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.quantities import Time


@cluster_policies.register("max-min")
class MaxMin(TimeShares):
    Parameters = RoundParameters

    def targets(self, now: Time, rows: Sequence[AppRow], state: ClusterState) -> Sequence[float]:
        if not rows:
            return []
        gangs = np.array([float(capped_demand(row, state)) for row in rows])
        gpus = float(state.floor.size)
        return list(map(float, middle(largest_level(gangs, gpus) / gangs, gangs, gpus)))
