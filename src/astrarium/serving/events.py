"""What a serving policy hears, in the past tense."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from astrarium.core.policy import TimerFired
from astrarium.core.units import Time


class Request(msgspec.Struct, frozen=True, gc=False):
    id: int
    model: int  # index of its model in the setup
    arrival: Time
    deadline: Time
    application: int = 0


class RequestArrived(msgspec.Struct, frozen=True, tag=True, gc=False):
    request: Request


class BatchFinished(msgspec.Struct, frozen=True, tag=True, gc=False):
    gpu: int
    run: int
    started: Time


class BatchFailed(msgspec.Struct, frozen=True, tag=True, gc=False):
    gpu: int
    run: int
    error: str


class BatchPreempted(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The GPU has recovered from a preemption; the work between *started* and *stopped* is lost."""

    gpu: int
    run: int
    started: Time
    stopped: Time


class GpuJoined(msgspec.Struct, frozen=True, tag=True, gc=False):
    gpu: int


class GpuLeft(msgspec.Struct, frozen=True, tag=True, gc=False):
    gpu: int


class RequestProfiled(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A finished request of a dynamic model was run once more, alone, and took *time*.

    Only policies with the attribute `listens_to_profiler` hear it.
    """

    request: int
    model: int
    application: int
    time: Time


Event: TypeAlias = (
    RequestArrived
    | BatchFinished
    | BatchFailed
    | BatchPreempted
    | GpuJoined
    | GpuLeft
    | RequestProfiled
    | TimerFired
)
