"""Placement policies by name. Others register theirs with an entry point of the group `astrarium.placement`.

A policy is a class made with its parameters (its nested `Parameters`, a msgspec.Struct, says what may be
set). It is pure: when a search should end, a `Search` tells, and chance comes as requests drawn before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from astrarium.core.registry import Registry
from astrarium.placement.plan import Plan
from astrarium.placement.problem import PlacementRequests, Problem

Judge = Callable[[Plan, PlacementRequests], Sequence[float]]
"""How a plan fares on requests under what will really run: of each model, in the order of
`problem.models`, the part of its requests that is answered in time, from 0 to 1 (1 where none came). The same
plan and requests get the same answer. A search calls it many times, so it should be quick."""


class Search:
    """A search counts the candidates that a policy has looked at, and tells it when to stop; this one never.

    *judge* is for policies that ask: whoever runs the plan with a batching policy of its own hands in what
    that policy makes of a plan.
    """

    def __init__(self, judge: Judge | None = None) -> None:
        self.judge = judge
        self.count = 0
        self.on = True

    def tried(self, more: int = 1) -> bool:
        """Count candidates. False: the policy stops here, and answers with the best."""
        self.count += more
        self.on = self.on and self.goes_on()
        return self.on

    def goes_on(self) -> bool:
        """Return whether to go on, asked after each try until the answer is no."""
        return True

    def improved(self, plan: Plan) -> None:
        """Hear of the best plan so far."""


class PlacementPolicy(Protocol):
    def place(self, problem: Problem, search: Search) -> Plan: ...


PlacementFactory = Callable[[Any], PlacementPolicy]

placement_policies: Registry[PlacementFactory] = Registry(
    "placement policy", package="astrarium.placement.policies", group="astrarium.placement"
)
