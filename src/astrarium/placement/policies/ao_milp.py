"""AO-MILP: the most goodput by a mixed-integer program, where replicas need their achieved occupancy.

Elvinger's thesis, section 5.4.3 and chapter 6. What the program says is in `_goodput_program`, and how ties
are broken in `_goodput_milp`.
"""

from __future__ import annotations

from astrarium.placement.policies import placement_policies
from astrarium.placement.policies._goodput_milp import GoodputMilp
from astrarium.placement.policies._requirements import Metric


@placement_policies.register("ao-milp")
class AoMilp(GoodputMilp):
    """Place for the most goodput by an exact program, by achieved occupancy."""

    name = "ao-milp"
    metric: Metric = "occupancy"
