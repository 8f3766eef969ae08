"""Cluster policies by name. Others register theirs with an entry point of the group `astrarium.cluster`.

A policy is a class made with its parameters (its nested `Parameters`, a msgspec.Struct, says what may be
set). It says who gets GPUs until when; what an app runs on them is arranged for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from astrarium.cluster.arrange import arrangements
from astrarium.cluster.contract import Action, Allocations, Event
from astrarium.cluster.state import ClusterState
from astrarium.core.policy import Policy
from astrarium.core.quantities import Time
from astrarium.core.registry import Registry

ClusterPolicy = Policy[ClusterState, Event, Action]


class Allocator(Protocol):
    """An allocator decides who gets which GPUs, until when: that is what makes one policy different from
    another. It is pure, as all that decides."""

    def decide(self, now: Time, events: Sequence[Event], state: ClusterState) -> Allocations: ...


@runtime_checkable
class RankingAllocator(Protocol):
    """Such an allocator also says who would be served next."""

    def standing(self, now: Time, state: ClusterState) -> Sequence[tuple[int, str]]:
        """Return the apps that want GPUs, the next one first, each with a few words."""


@runtime_checkable
class ForecastingAllocator(Protocol):
    """Such an allocator also says itself when apps can expect GPUs."""

    def expects(self, now: Time, state: ClusterState) -> Mapping[int, Time]:
        """Return when each app that wants GPUs can expect some, as far as is known now."""


class Arbiter:
    """The arbiter makes a policy of an allocator: GPUs first, and then what apps run on them."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator

    def decide(self, now: Time, events: Sequence[Event], state: ClusterState) -> Iterator[Action]:
        yield from self.allocator.decide(now, events, state)
        yield from arrangements(state)


cluster_policies: Registry[Callable[[Any], Allocator]] = Registry(
    "cluster policy", package="astrarium.cluster.policies", group="astrarium.cluster"
)
