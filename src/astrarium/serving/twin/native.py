"""The extension takes a setup in its own types, and has twins of some policies."""

from __future__ import annotations

from functools import cache
from typing import Any

from astrarium.core.optional import extension
from astrarium.serving import contract
from astrarium.serving.contract import Event, Lengths, ModelSpec, Setup
from astrarium.serving.policies.alike import AlikePolicy


def has_twin(policy: Any) -> bool:
    """Whether a policy has a native twin: it is named in `native`, with `native_parameters()`."""
    decider = policy.policy if isinstance(policy, AlikePolicy) else policy
    named = type(decider).__dict__.get("native", "")  # not inherited: a subclass decides otherwise
    return bool(named) and extension("_simulator") is not None


@cache
def event_classes() -> tuple[type[Event], ...]:
    """Return the classes of events by the numbers that native code has for them; arrivals have none."""
    module = extension("_simulator")
    assert module is not None
    return tuple(getattr(contract, name) for name in module.event_kinds())


def native_setup(module: Any, setup: Setup) -> Any:
    network = module.Network(setup.network.control, setup.network.data, setup.network.response)
    models = [_model(module, model) for model in setup.models]
    return module.Setup(models, len(setup.gpus), network, setup.preemption_cost)


def _model(module: Any, model: ModelSpec) -> Any:
    known = model.dynamic
    dynamic = None if known is None else module.Dynamic(known.c0, known.c1, known.history)
    return module.Model(model.slo, model.latency, dynamic, _lengths(module, model.lengths))


def _lengths(module: Any, lengths: Lengths | None) -> Any:
    if lengths is None:
        return None
    return module.Lengths(lengths.longest, lengths.latency, lengths.together)
