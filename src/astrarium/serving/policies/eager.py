"""Eager batching sends whatever waits as soon as a GPU is idle, as most serving systems do.

It is the scheduler of `deferred` with the window opened at once: Symphony's comparison of section 3.4.
"""

from __future__ import annotations

import msgspec

from astrarium.core.units import FOREVER, Time
from astrarium.serving.policies import serving_policies
from astrarium.serving.policies._queue import ModelQueue
from astrarium.serving.policies._window import Gather, WindowScheduler


@serving_policies.register("eager")
class Eager(WindowScheduler[ModelQueue]):
    """Send whatever waits as soon as a GPU is idle."""

    native = "eager"

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        gather: Gather = "window"

    def opens(self, queue: ModelQueue) -> Time:
        return -FOREVER
