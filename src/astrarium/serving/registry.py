"""Serving policies by name. A policy is one file in `policies/` and one line of registration.

Others register theirs with an entry point:  [project.entry-points."astrarium.serving"]
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import msgspec

from astrarium.core.policy import Policy
from astrarium.core.registry import Registry
from astrarium.serving.actions import Action
from astrarium.serving.events import Event
from astrarium.serving.setup import Setup
from astrarium.serving.state import ServingState

ServingPolicy = Policy[ServingState, Event, Action]


class PolicyFactory(Protocol):
    """A policy class: its documented parameters, and how to make one for a setup."""

    Parameters: ClassVar[type[msgspec.Struct]]

    def __call__(self, setup: Setup, parameters: Any) -> ServingPolicy: ...


serving_policies: Registry[PolicyFactory] = Registry(
    "serving policy", package="astrarium.serving.policies", group="astrarium.serving"
)
