"""Tuning policies and search algorithms by name. Others register theirs with entry points of the groups
`astrarium.tuning` and `astrarium.searches`.

Each is a class made with its parameters: its nested `Parameters`, a msgspec.Struct, says what may be set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from astrarium.core.policy import Policy
from astrarium.core.registry import Registry
from astrarium.tuning.contract import Action, Event
from astrarium.tuning.search.contract import Search
from astrarium.tuning.state import TuningState

TuningPolicy = Policy[TuningState, Event, Action]

tuning_policies: Registry[Callable[[Any], TuningPolicy]] = Registry(
    "tuning policy", package="astrarium.tuning.policies", group="astrarium.tuning"
)

searches: Registry[Callable[[Any], Search]] = Registry(
    "search algorithm", package="astrarium.tuning.search", group="astrarium.searches"
)

# of files and from Python alike
DEFAULT_POLICY = "dynamic-fluid"
DEFAULT_SEARCH = "successive-halving"
