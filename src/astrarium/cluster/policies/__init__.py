"""Cluster policies by name. Others register theirs with an entry point of the group `astrarium.cluster`.

A policy is a class made with its parameters (its nested `Parameters`, a msgspec.Struct, says what may be
set). It says who gets GPUs until when; what an app runs on them is arranged for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from astrarium.cluster.arrange import arrangements
from astrarium.cluster.contract import Action, Allocations, Event
from astrarium.cluster.state import ClusterState
from astrarium.core.policy import Policy
from astrarium.core.registry import Registry
from astrarium.core.units import Time

ClusterPolicy = Policy[ClusterState, Event, Action]


class Allocator(Protocol):
    """What makes one policy different from another. Pure, as all that decides.

    It may also tell who is next, with a method `standing` (`explain`).
    """

    def decide(self, now: Time, events: Sequence[Event], state: ClusterState) -> Allocations: ...


class Arbiter:
    """An allocator as a policy: GPUs first, and then what apps run on them."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator

    def decide(self, now: Time, events: Sequence[Event], state: ClusterState) -> Iterator[Action]:
        yield from self.allocator.decide(now, events, state)
        yield from arrangements(state)


cluster_policies: Registry[Callable[[Any], Allocator]] = Registry(
    "cluster policy", package="astrarium.cluster.policies", group="astrarium.cluster"
)
