"""The native twin of a policy at work on the wall clock: the same decisions, a few times sooner.

Only the deciding is native. The books stay where they are, so that recordings, replays, GPUs that leave and
join and everything else work as with the policy itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from astrarium.core.native import extension
from astrarium.core.policy import SetTimer
from astrarium.serving.actions import Action, Dispatch, Drop
from astrarium.serving.events import (
    BatchFailed,
    BatchFinished,
    BatchPreempted,
    Event,
    GpuJoined,
    GpuLeft,
    RequestArrived,
)
from astrarium.serving.registry import ServingPolicy
from astrarium.serving.setup import ModelSpec, Setup
from astrarium.serving.state import ServingState

_GPU_EVENTS = (BatchFinished, BatchFailed, BatchPreempted, GpuJoined, GpuLeft)


def has_twin(policy: Any) -> bool:
    """A policy with a native twin names it in `native` and translates itself in `native_parameters()`;
    one whose twin does not know every setup says so in `twinned`."""
    named = type(policy).__dict__.get("native", "")  # not inherited: a subclass decides otherwise
    return bool(named) and getattr(policy, "twinned", True) and extension("_native") is not None


def native_setup(module: Any, setup: Setup) -> Any:
    network = module.Network(setup.network.control, setup.network.data, setup.network.response)
    models = [_model(module, model) for model in setup.models]
    return module.Setup(models, len(setup.gpus), network, setup.preemption_cost)


def _model(module: Any, model: ModelSpec) -> Any:
    known = model.dynamic
    if known is None:
        return module.Model(model.slo, model.latency)
    return module.Model(model.slo, model.latency, module.Dynamic(known.c0, known.c1, known.history))


def faster(policy: ServingPolicy, setup: Setup) -> ServingPolicy:
    """The twin where it can work live, else the policy itself."""
    return LiveTwin(policy, setup) if getattr(policy, "live_twin", False) and has_twin(policy) else policy


class LiveTwin:
    preempts = False

    def __init__(self, policy: Any, setup: Setup) -> None:
        module = extension("_native")
        assert module is not None
        parameters = module.Parameters(policy.native, *policy.native_parameters())
        self._native = module.LivePolicy(native_setup(module, setup), parameters)
        self._reasons = module.reasons()

    def decide(self, now: int, events: Sequence[Event], state: ServingState) -> list[Action]:
        arrivals, news = [], []
        for event in events:
            if type(event) is RequestArrived:
                request = event.request
                arrivals.append((request.id, request.model, request.arrival, request.deadline))
            elif isinstance(event, _GPU_EVENTS):
                gpu = state.gpus[event.gpu]
                news.append((event.gpu, gpu.present, len(gpu.batches), gpu.recovering >= 0))
        return [self._action(*decision) for decision in self._native.decide(now, arrivals, news)]

    def _action(self, kind: int, first: int, second: Any, third: int) -> Action:
        if kind == 0:
            return Dispatch(first, second, third)
        return Drop(first, self._reasons[second]) if kind == 1 else SetTimer(first, "wake")
