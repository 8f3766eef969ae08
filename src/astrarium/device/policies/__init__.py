"""Iteration policies by name. Others register theirs with an entry point of the group `astrarium.device`."""

from __future__ import annotations

from collections.abc import Callable

from astrarium.core.policy import Policy
from astrarium.core.registry import Registry
from astrarium.device.contract import Action, Event
from astrarium.device.state import DeviceState

IterationPolicy = Policy[DeviceState, Event, Action]

iteration_policies: Registry[Callable[..., IterationPolicy]] = Registry(
    "policy for iterations", package="astrarium.device.policies", group="astrarium.device"
)
