"""What an iteration policy hears, in the past tense."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.units import Time

# Actions are what a policy may ask for, in the imperative.


NEW_LANE = -1


class Admit(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Load a job that waits: its persistent memory stays on the GPU, its iterations will run in *lane*.

    A lane that is too small for them is made larger, which it must have room for.
    """

    job: int
    lane: int = NEW_LANE


class Refuse(msgspec.Struct, frozen=True, tag=True, gc=False):
    job: int
    reason: str


class RunIteration(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The next iteration of an admitted job, in its lane, which must be free."""

    job: int


Action: TypeAlias = Admit | Refuse | RunIteration | SetTimer


class Job(msgspec.Struct, frozen=True, gc=False):
    """`persistent` bytes stay from its admission to its end, `ephemeral` ones last as long as an iteration.

    `iteration` is what one takes alone on the GPU, `demand` the share of the GPU that it can use then.
    """

    id: int
    name: str
    persistent: int
    ephemeral: int
    iteration: Time
    iterations: int
    priority: int = 0  # the higher, the more important
    demand: float = 1.0

    @property
    def duration(self) -> Time:
        """Alone on the GPU, without a pause."""
        return self.iteration * self.iterations


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
