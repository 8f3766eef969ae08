"""A policy's native twin can decide on the wall clock too: the same decisions, a few times sooner.

Only the deciding is native. The books stay where they are, so that recordings, replays, GPUs that leave and
join and everything else work as with the policy itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from astrarium.core.optional import extension
from astrarium.core.policy import SetTimer
from astrarium.serving import contract
from astrarium.serving.contract import Action, Event, Setup
from astrarium.serving.policies import LiveTwinned, ServingPolicy, listens_to_profiler
from astrarium.serving.state import ServingState
from astrarium.serving.twin.native import has_twin, native_setup

# As `Event` in native/policies/contract.h.
_FINISHED, _PREEMPTED, _PROFILED, _FAILED, _JOINED, _LEFT = range(6)


def _as_native(event: Event) -> tuple[int, int, int, int, int] | None:
    """Return an event that is no arrival in the form that the twin reads."""
    match event:
        case contract.BatchFinished(gpu, run, started, ended):
            return _FINISHED, gpu, run, started, ended
        case contract.BatchPreempted(gpu, run, started, stopped):
            return _PREEMPTED, gpu, run, started, stopped
        case contract.RequestProfiled(_, model, application, time):
            return _PROFILED, model, application, time, 0
        case contract.BatchFailed(gpu, run, _):
            return _FAILED, gpu, run, 0, 0
        case contract.GpuJoined(gpu):
            return _JOINED, gpu, 0, 0, 0
        case contract.GpuLeft(gpu):
            return _LEFT, gpu, 0, 0, 0
    return None


class LiveTwin:
    def __init__(self, policy: Any, setup: Setup) -> None:
        module = extension("_simulator")
        assert module is not None
        self.parameters = module.Parameters(policy.native, *policy.native_parameters())
        self._native = module.LivePolicy(native_setup(module, setup), self.parameters)
        self._reasons = module.reasons()
        self._timer = policy.live_twin
        self.listens_to_profiler = listens_to_profiler(policy)

    def decide(self, now: int, events: Sequence[Event], state: ServingState) -> list[Action]:
        arrivals = []
        others = []
        for event in events:
            if type(event) is contract.RequestArrived:
                arrivals.append(msgspec.structs.astuple(event.request))
            elif native_event := _as_native(event):
                others.append(native_event)
        return [self._action(*decision) for decision in self._native.decide(now, arrivals, others)]

    def _action(self, kind: int, first: int, second: Any, third: int) -> Action:
        if kind == 0:
            return contract.Dispatch(first, second, third)
        return contract.Drop(first, self._reasons[second]) if kind == 1 else SetTimer(first, self._timer)


def faster(policy: ServingPolicy, setup: Setup) -> ServingPolicy:
    """Return the twin where it can decide live, else the policy itself."""
    live = isinstance(policy, LiveTwinned) and policy.live_twin and has_twin(policy)
    return LiveTwin(policy, setup) if live else policy
