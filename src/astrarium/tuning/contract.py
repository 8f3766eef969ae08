"""What a tuning policy hears, in the past tense."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.units import Time
from astrarium.tuning.runtime import Place, Runtime

# What a tuning policy may ask for, in the imperative.


class Put(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Run a trial there. One that runs elsewhere moves at the end of its iteration; until then it has both
    places."""

    trial: int
    place: Place
    why: str = ""


class Pause(msgspec.Struct, frozen=True, tag=True, gc=False):
    """At the end of its iteration."""

    trial: int
    why: str = ""


Action: TypeAlias = Put | Pause | SetTimer


# A trial as the tuning level knows it: some iterations of one candidate, as a member of a group.


class Trial(msgspec.Struct, frozen=True, gc=False):
    """A candidate (a choice of hyperparameters) trains for so many iterations, from where its last one ended.

    A group is what a search algorithm wants to know together before it goes on, such as a rung of successive
    halving: it is done when its last trial is.
    """

    id: int
    group: int
    candidate: int
    iterations: int
    begins: int = 0  # iterations that are in the checkpoint it begins with; 0: there is none
    source: int | None = (
        None  # the candidate whose checkpoint that is, where it is not its own: the one it had
    )
    # after `begins` iterations, for it may be training on already

    @property
    def total(self) -> int:
        """Iterations that are in the checkpoint it ends with."""
        return self.begins + self.iterations


class GpusChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """These are ours from now on. Trials on others are back in line, at their last checkpoints."""

    gpus: tuple[int, ...]


class GroupArrived(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A search wants these trials; more may join a group while it lasts."""

    group: int
    trials: tuple[Trial, ...]


class RuntimeMeasured(msgspec.Struct, frozen=True, tag=True, gc=False):
    """What is now believed of a candidate's iterations."""

    candidate: int
    runtime: Runtime


class MovingMeasured(msgspec.Struct, frozen=True, tag=True, gc=False):
    """What a change of place is now believed to cost a trial."""

    moving: Time


class TrialStepped(msgspec.Struct, frozen=True, tag=True, gc=False):
    """It runs, and so many of its iterations are done."""

    trial: int
    run: int
    done: int


class TrialMoved(msgspec.Struct, frozen=True, tag=True, gc=False):
    """It has left its old place at the end of an iteration."""

    trial: int
    run: int
    done: int


class TrialPaused(msgspec.Struct, frozen=True, tag=True, gc=False):
    """It runs no more, and would go on with what is done."""

    trial: int
    run: int
    done: int


class TrialFinished(msgspec.Struct, frozen=True, tag=True, gc=False):
    trial: int
    run: int


class TrialFailed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """By its own error: it is not tried again, and its GPUs are free."""

    trial: int
    run: int
    error: str


class TrialWithdrawn(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The search wants it no more."""

    trial: int


Event: TypeAlias = (
    GpusChanged
    | GroupArrived
    | RuntimeMeasured
    | MovingMeasured
    | TrialStepped
    | TrialMoved
    | TrialPaused
    | TrialFinished
    | TrialFailed
    | TrialWithdrawn
    | TimerFired
)
