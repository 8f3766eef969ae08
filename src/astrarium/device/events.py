"""What an iteration policy hears, in the past tense."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from astrarium.core.policy import TimerFired
from astrarium.core.units import Time
from astrarium.device.jobs import Job


class JobArrived(msgspec.Struct, frozen=True, tag=True, gc=False):
    """*done* of its iterations were run before, while it was measured."""

    job: Job
    done: int = 0


class IterationWanted(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The job has its next batch of data at hand: it would run if it were its turn."""

    job: int


class IterationFinished(msgspec.Struct, frozen=True, tag=True, gc=False):
    job: int
    run: int
    started: Time


class IterationFailed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The job ends with this error, whatever it still had to do; nobody else does."""

    job: int
    run: int
    error: str


class NeedsChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A turn has shown that the job needs this much memory. Where it does not fit any more, the job ends."""

    job: int
    persistent: int
    ephemeral: int


class JobWithdrawn(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Its owner wants it no more, or it failed between turns. An iteration that runs is finished first."""

    job: int
    error: str = ""


Event: TypeAlias = (
    JobArrived
    | IterationWanted
    | IterationFinished
    | IterationFailed
    | NeedsChanged
    | JobWithdrawn
    | TimerFired
)
