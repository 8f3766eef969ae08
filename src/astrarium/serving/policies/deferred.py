"""Deferred batching sends a batch when no later request could join it, not when a GPU is idle.

Chen et al., "Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling", Algorithm 1 and
Figure 18. The window opens at frontrun = d - l(b + 1): a request that arrives later could not be added
without missing the first deadline d, so waiting longer gains nothing.
"""

from __future__ import annotations

import msgspec

from astrarium.core.units import Time
from astrarium.serving.policies import serving_policies
from astrarium.serving.policies._queue import ModelQueue
from astrarium.serving.policies._window import Gather, WindowScheduler


@serving_policies.register("deferred")
class Deferred(WindowScheduler[ModelQueue]):
    """Symphony: hold a batch back until no later request could join it."""

    native = "deferred"

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        gather: Gather = "window"

    def opens(self, queue: ModelQueue) -> Time:
        return queue.frontrun()
