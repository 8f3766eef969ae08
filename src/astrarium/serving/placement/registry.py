"""Placement policies by name. Others register theirs with an entry point of the group `astrarium.placement`.

A policy is a class made with its parameters (its nested `Parameters`, a msgspec.Struct, says what may be
set). It is pure: when a search should end, a `Search` tells, and chance comes as requests drawn before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from astrarium.core.registry import Registry
from astrarium.serving.placement.plan import Plan
from astrarium.serving.placement.problem import Problem


class Search(Protocol):
    """What a search reports to, and who ends it. The best plan so far is always kept."""

    def improved(self, plan: Plan, tried: int) -> None: ...

    def tried(self, count: int) -> bool:
        """So many candidates were looked at. False: stop here and answer with the best."""
        ...


class Patient:
    """Never ends a search."""

    def improved(self, plan: Plan, tried: int) -> None: ...

    def tried(self, count: int) -> bool:
        return True


class PlacementPolicy(Protocol):
    def place(self, problem: Problem, search: Search) -> Plan: ...


PlacementFactory = Callable[[Any], PlacementPolicy]

placement_policies: Registry[PlacementFactory] = Registry(
    "placement policy", package="astrarium.serving.placement.policies", group="astrarium.placement"
)
