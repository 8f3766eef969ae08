"""Serving policies by name. A policy is one file in `policies/` and one line of registration.

Others register theirs with an entry point:  [project.entry-points."astrarium.serving"]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from astrarium.core.policy import Policy
from astrarium.core.registry import Registry
from astrarium.serving.contract import Action, Event, Setup
from astrarium.serving.state import ServingState

ServingPolicy = Policy[ServingState, Event, Action]


# A policy class; its nested `Parameters` (a msgspec.Struct) says what a scenario may set.
PolicyFactory = Callable[[Setup, Any], ServingPolicy]

# What the native twin is told: whole numbers, real numbers, and lists of whole numbers, by name.
NativeParameters = tuple[dict[str, int], dict[str, float], dict[str, list[int]]]


def listens_to_profiler(policy: ServingPolicy) -> bool:
    """Whether it wants to hear `RequestProfiled`: every such event is an instant to decide in."""
    return bool(getattr(policy, "listens_to_profiler", False))


serving_policies: Registry[PolicyFactory] = Registry(
    "serving policy", package="astrarium.serving.policies", group="astrarium.serving"
)
