"""Timeout batching sends a batch once its oldest request has waited for a fixed time.

This is the third option of Symphony's section 2.2 (TensorFlow Serving's way), with section 3.4's
exec = max(now, a + k), where a is the arrival of the oldest request and k the timeout. Settled by us: a batch
that would be too late by then leaves at its latest moment instead of being given up.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.units import DURATION_FORM, Time, parse_duration, split_quantity
from astrarium.serving.contract import Setup
from astrarium.serving.policies import serving_policies
from astrarium.serving.policies._queue import ModelQueue
from astrarium.serving.policies._window import Gather, NativeParameters, WindowScheduler

_FORM = f"{DURATION_FORM}, or a share of each model's SLO such as 10%"


@serving_policies.register("timeout")
class Timeout(WindowScheduler[ModelQueue]):
    """Send a batch once its oldest request has waited for a fixed time."""

    native = "timeout"

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        timeout: Annotated[str, msgspec.Meta(description=f"how long the oldest request waits: {_FORM}")] = (
            "12.5%"
        )
        gather: Gather = "window"

    def __init__(self, setup: Setup, parameters: Parameters) -> None:
        super().__init__(setup, parameters)
        self.timeouts = [timeout_for(parameters.timeout, model.slo) for model in setup.models]

    def native_parameters(self) -> NativeParameters:
        integers, reals, _ = super().native_parameters()
        return integers, reals, {"timeouts": self.timeouts}

    def opens(self, queue: ModelQueue) -> Time:
        waited = queue.requests[0].arrival + self.timeouts[queue.model.index]
        return min(waited + self._network.delay(queue.size), queue.latest())


def timeout_for(text: str, slo: Time) -> Time:
    try:
        number, unit = split_quantity(text)
        return round(slo * number / 100) if unit == "%" and number >= 0 else parse_duration(text)
    except ValueError:
        raise InputError("timeout", text, _FORM) from None
