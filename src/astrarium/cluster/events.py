"""What a cluster policy hears, in the past tense."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from astrarium.cluster.apps import App
from astrarium.cluster.machines import Machine
from astrarium.core.policy import TimerFired
from astrarium.core.units import Time


class MachineJoined(msgspec.Struct, frozen=True, tag=True, gc=False):
    machine: Machine


class MachineLost(msgspec.Struct, frozen=True, tag=True, gc=False):
    """With all that ran there since the last checkpoints."""

    machine: int


class AppArrived(msgspec.Struct, frozen=True, tag=True, gc=False):
    app: App


class AppWithdrawn(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Its owner wants it no more, or it has failed."""

    app: int
    error: str = ""


class LeaseExpired(msgspec.Struct, frozen=True, tag=True, gc=False):
    """At *until*; news of a lease that was renewed or taken back meanwhile is late."""

    app: int
    gpus: tuple[int, ...]
    until: Time


class JobStopped(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The run has ended with a checkpoint, or was lost: so much of its work is done."""

    app: int
    job: int
    run: int
    done: Time


class JobProgressed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """It still runs."""

    app: int
    job: int
    run: int
    done: Time


class JobFinished(msgspec.Struct, frozen=True, tag=True, gc=False):
    """*late*: it was to be stopped, and ended by itself before it was. Otherwise it still runs in the books;
    news of a run that was stopped meanwhile is ignored."""

    app: int
    job: int
    run: int
    late: bool = False


Event: TypeAlias = (
    MachineJoined
    | MachineLost
    | AppArrived
    | AppWithdrawn
    | LeaseExpired
    | JobStopped
    | JobProgressed
    | JobFinished
    | TimerFired
)
