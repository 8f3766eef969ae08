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
from astrarium.serving.twin.native import event_classes, has_twin, native_setup


def _fields(event: Event) -> tuple[int, int, int, int]:
    """Return what native code reads of an event that is no arrival."""
    match event:
        case contract.BatchFinished(gpu, run, began, ended) | contract.BatchPreempted(gpu, run, began, ended):
            return gpu, run, began, ended
        case contract.RequestProfiled(_, model, application, time):
            return model, application, time, 0
        case contract.BatchFailed(gpu, run, _):
            return gpu, run, 0, 0
        case contract.GpuJoined(gpu) | contract.GpuLeft(gpu):
            return gpu, 0, 0, 0
    raise TypeError(f"{event}: native code reads no such event")


class LiveTwin:
    def __init__(self, policy: Any, setup: Setup) -> None:
        module = extension("_simulator")
        assert module is not None
        self.parameters = module.Parameters(policy.native, *policy.native_parameters())
        self._native = module.LivePolicy(native_setup(module, setup), self.parameters)
        self._reasons = module.reasons()
        self._kinds = {kind: number for number, kind in enumerate(event_classes())}
        self._timer = policy.live_twin
        self.listens_to_profiler = listens_to_profiler(policy)

    def decide(self, now: int, events: Sequence[Event], state: ServingState) -> list[Action]:
        arrivals = []
        others = []
        for event in events:
            if type(event) is contract.RequestArrived:
                arrivals.append(msgspec.structs.astuple(event.request))
            elif (kind := self._kinds.get(type(event))) is not None:
                others.append((kind, *_fields(event)))
        return [self._action(*decision) for decision in self._native.decide(now, arrivals, others)]

    def _action(self, kind: int, first: int, second: Any, third: int) -> Action:
        if kind == 0:
            return contract.Dispatch(first, second, third)
        return contract.Drop(first, self._reasons[second]) if kind == 1 else SetTimer(first, self._timer)


def faster(policy: ServingPolicy, setup: Setup) -> ServingPolicy:
    """Return the twin where it can decide live, else the policy itself."""
    live = isinstance(policy, LiveTwinned) and policy.live_twin and has_twin(policy)
    return LiveTwin(policy, setup) if live else policy
