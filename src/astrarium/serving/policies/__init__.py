"""Serving policies by name. A policy is one file in `policies/` and one line of registration.

Others register theirs with an entry point:  [project.entry-points."astrarium.serving"]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from astrarium.core.policy import Policy
from astrarium.core.registry import Registry
from astrarium.serving.contract import Action, Event, Setup
from astrarium.serving.state import ServingState

ServingPolicy = Policy[ServingState, Event, Action]


# A policy class; its nested `Parameters` (a msgspec.Struct) says what a scenario may set.
PolicyFactory = Callable[[Setup, Any], ServingPolicy]


class LengthsAside(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be set of a policy that knows nothing of lengths: how it is shown unequal requests."""

    batches: Annotated[
        Literal["mixed", "alike"],
        msgspec.Meta(
            description="of unequal lengths: `mixed` batches are padded to the longest, and planned as if "
            "all requests were as long as any can be; with `alike` each bucket is a model of its own"
        ),
    ] = "mixed"
    buckets: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        msgspec.Meta(description="how many buckets `alike` makes of a model's at most; none: all of them"),
    ] = None


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
