"""Plans of placement policies by name, and requests for their problems."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from astrarium.core.quantities import SECOND, Time
from astrarium.placement.plan import Plan, check
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.problem import PlacementRequests, Problem


def planned(policy: str, problem: Problem, **parameters: Any) -> Plan:
    factory: Any = placement_policies.get(policy)
    plan: Plan = factory(msgspec.convert(parameters, factory.Parameters)).place(problem, Search())
    check(plan, problem)
    return plan


def poisson(problem: Problem, duration: Time, draw: Callable[[], float]) -> PlacementRequests:
    """Return requests at the models' rates; *draw* gives uniform numbers in [0, 1)."""
    arrivals: list[tuple[Time, int]] = []
    for model in problem.models:
        at = 0.0
        while model.rate > 0 and (at := at - math.log1p(-draw()) * SECOND / model.rate) < duration:
            arrivals.append((round(at), model.index))
    arrivals.sort()
    return PlacementRequests(tuple(at for at, _ in arrivals), tuple(model for _, model in arrivals))
