"""What a serving policy may ask for, in the imperative."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from astrarium.core.policy import SetTimer
from astrarium.core.units import Time

# Why a request was dropped. A policy may give reasons of its own.
EXPIRED = "expired"  # not even alone could it still be in time
SACRIFICED = "sacrificed"  # it could, but only by shrinking the batch of those behind it
UNSERVED = "unserved"  # the run ended before the policy decided


class Dispatch(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Send waiting requests of one model to a GPU as a batch; GPUs run their batches in order.

    The batch starts once its order and inputs have arrived and the GPU is free, and not before *start*.
    """

    gpu: int
    requests: tuple[int, ...]
    start: Time = 0


class Drop(msgspec.Struct, frozen=True, tag=True, gc=False):
    request: int
    reason: str = EXPIRED


class Preempt(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Cancel the batch that runs on a GPU; its requests wait again, its work so far is lost."""

    gpu: int


Action: TypeAlias = Dispatch | Drop | Preempt | SetTimer
