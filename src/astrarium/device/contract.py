"""An iteration policy hears these events (in the past tense), and asks for these actions."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import Time

# Actions are what a policy may ask for, in the imperative.


NEW_LANE = -1


class Admit(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Load a job that waits: its persistent memory stays on the GPU, its iterations will run in *lane*.

    A lane that is too small for them is made larger, for which memory must be free.
    """

    job: int
    lane: int = NEW_LANE


class Refuse(msgspec.Struct, frozen=True, tag=True, gc=False):
    job: int
    reason: str


class RunIteration(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Run the next iteration of an admitted job, in its lane, which must be free."""

    job: int


Action: TypeAlias = Admit | Refuse | RunIteration | SetTimer


class Job(msgspec.Struct, frozen=True, gc=False):
    """A job takes turns on the GPU: `persistent` bytes stay from its admission to its end, `ephemeral` bytes
    last as long as an iteration.

    `iteration` is the time of one iteration alone on the GPU, `demand` the share of the GPU that it can use
    then.
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
        """Return the job's time alone on the GPU, without a pause."""
        return self.iteration * self.iterations


class JobArrived(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A job has arrived; *done* of its iterations were run before, while it was measured."""

    job: Job
    done: int = 0


class IterationWanted(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The job has its next batch of data ready, and would run if it were its turn."""

    job: int


class IterationFinished(msgspec.Struct, frozen=True, tag=True, gc=False):
    job: int
    run: int
    started: Time


class IterationFailed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The job ends with this error, whatever it still had to do; no other job is affected."""

    job: int
    run: int
    error: str


class NeedsChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A turn has shown that the job needs this much memory. Where that no longer fits, the job ends."""

    job: int
    persistent: int
    ephemeral: int


class JobWithdrawn(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The job's owner no longer wants it, or it failed between turns. It finishes a running iteration."""

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
