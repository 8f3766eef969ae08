"""WSM-MILP: the most goodput by a mixed-integer program, where replicas need their weighted SM utilization.

Elvinger's thesis, section 5.4.3 and chapter 6. What the program says is in `_goodput_program`, and how ties
are broken in `_goodput_milp`.
"""

from __future__ import annotations

from astrarium.placement.policies import placement_policies
from astrarium.placement.policies._goodput_milp import GoodputMilp
from astrarium.placement.policies._requirements import Metric


@placement_policies.register("wsm-milp")
class WsmMilp(GoodputMilp):
    """Place for the most goodput by an exact program, by weighted SM utilization."""

    name = "wsm-milp"
    metric: Metric = "sm_utilization"
