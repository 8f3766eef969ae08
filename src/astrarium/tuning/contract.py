"""A tuning policy hears these events (in the past tense), and asks for these actions."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import Time
from astrarium.tuning.runtime import Place, Runtime

# Actions are what a policy may ask for, in the imperative.


class Put(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Run a trial at this place. A trial that runs elsewhere moves at the end of its iteration and holds both
    places until then."""

    trial: int
    place: Place
    why: str = ""


class Pause(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Pause a trial at the end of its iteration."""

    trial: int
    why: str = ""


Action: TypeAlias = Put | Pause | SetTimer


class Trial(msgspec.Struct, frozen=True, gc=False):
    """A trial trains one candidate (a choice of hyperparameters) for some iterations, from where the
    candidate's last trial ended.

    A group is a set of trials whose results a search algorithm needs together before it goes on, such as a
    rung of successive halving. A group is done when its last trial is.
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
        """Return the iterations in the checkpoint that the trial ends with."""
        return self.begins + self.iterations


class GpusChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The search has exactly these GPUs now. Trials on others wait again, at their last checkpoints."""

    gpus: tuple[int, ...]


class GroupArrived(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A search wants these trials; further trials may join the group while it lasts."""

    group: int
    trials: tuple[Trial, ...]


class RuntimeMeasured(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The estimate of how long a candidate's iterations take has changed."""

    candidate: int
    runtime: Runtime


class MovingMeasured(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The estimate of what a change of place costs a trial has changed."""

    moving: Time


class TrialStepped(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The trial runs, and has done so many of its iterations."""

    trial: int
    run: int
    done: int


class TrialMoved(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The trial has left its old place at the end of an iteration."""

    trial: int
    run: int
    done: int


class TrialPaused(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The trial has stopped running, and would go on after the iterations that are done."""

    trial: int
    run: int
    done: int


class TrialFinished(msgspec.Struct, frozen=True, tag=True, gc=False):
    trial: int
    run: int


class TrialFailed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The trial has failed by its own error: it is not tried again, and its GPUs are free."""

    trial: int
    run: int
    error: str


class TrialWithdrawn(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The search no longer wants the trial."""

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
