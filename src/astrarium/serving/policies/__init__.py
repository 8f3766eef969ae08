"""Serving policies by name. A policy is one file in `policies/` and one line of registration.

Others register theirs with an entry point:  [project.entry-points."astrarium.serving"]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from astrarium.core.policy import Policy
from astrarium.core.registry import Registry
from astrarium.serving.contract import Action, Event, Setup
from astrarium.serving.state import ServingState

ServingPolicy = Policy[ServingState, Event, Action]


# A policy class; its nested `Parameters` (a msgspec.Struct) says what a scenario may set.
PolicyFactory = Callable[[Setup, Any], ServingPolicy]


class NativeParameters(NamedTuple):
    """The parameters of a policy's native twin, by name."""

    integers: dict[str, int]
    reals: dict[str, float]
    lists: dict[str, list[int]]


@runtime_checkable
class ProfilerListener(Protocol):
    """A policy that says so hears `RequestProfiled`: every such event is an instant to decide in."""

    listens_to_profiler: bool


def listens_to_profiler(policy: ServingPolicy) -> bool:
    return isinstance(policy, ProfilerListener) and policy.listens_to_profiler


@runtime_checkable
class LiveTwinned(Protocol):
    """A policy with a native twin that knows GPUs which leave and join, so that it can decide live."""

    live_twin: str  # the name of its timer; empty: its twin only simulates


serving_policies: Registry[PolicyFactory] = Registry(
    "serving policy", package="astrarium.serving.policies", group="astrarium.serving"
)
