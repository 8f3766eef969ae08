"""Placement policies by name. Others register theirs with an entry point of the group `astrarium.placement`.

A policy is a class made with its parameters (its nested `Parameters`, a msgspec.Struct, says what may be
set). It is pure: when a search should end, a `Search` tells, and chance comes as requests drawn before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from astrarium.core.registry import Registry
from astrarium.placement.plan import Plan
from astrarium.placement.problem import PlacementRequests, Problem

Judge = Callable[[Plan, PlacementRequests], Sequence[float]]
"""How a plan fares on requests under what will really run: of each model, in the order of
`problem.models`, the part of its requests that is answered in time, from 0 to 1 (1 where none came). The same
plan and requests get the same answer. A search calls it many times, so it should be quick."""


class Search(Protocol):
    """What a search reports to, and who ends it. The best plan so far is always kept.

    It may also have a `judge: Judge | None`, for policies that ask (`judge_of`): whoever runs the plan with a
    batching policy of its own hands in what that policy makes of a plan.
    """

    def improved(self, plan: Plan, tried: int) -> None: ...

    def tried(self, count: int) -> bool:
        """So many candidates were looked at. False: stop here and answer with the best."""
        ...


class Patient:
    """Never ends a search."""

    def __init__(self, judge: Judge | None = None) -> None:
        self.judge = judge

    def improved(self, plan: Plan, tried: int) -> None: ...

    def tried(self, count: int) -> bool:
        return True


def judge_of(search: Search) -> Judge | None:
    """Searches need not know of judges: without one, a policy judges by itself."""
    return cast("Judge | None", getattr(search, "judge", None))


class PlacementPolicy(Protocol):
    def place(self, problem: Problem, search: Search) -> Plan: ...


PlacementFactory = Callable[[Any], PlacementPolicy]

placement_policies: Registry[PlacementFactory] = Registry(
    "placement policy", package="astrarium.placement.policies", group="astrarium.placement"
)
