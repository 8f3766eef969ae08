"""Cluster policies hear these events, in the past tense, and answer with these actions, in the imperative.

Both are about apps and their jobs, which share a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from astrarium.cluster.machines import Machine
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import Time


class Grant(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Lease these GPUs to an app until then; they must be free, or the app's own, whose lease is renewed."""

    app: int
    gpus: tuple[int, ...]
    until: Time
    why: str = ""


class Revoke(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Take GPUs back before their lease ends. Whatever runs there is stopped with a checkpoint."""

    app: int
    gpus: tuple[int, ...]
    why: str = ""


class Run(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Run a job of an app on some of the GPUs that the app has. A job that runs elsewhere moves there."""

    app: int
    job: int
    gpus: tuple[int, ...]


class Stop(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Stop a job with a checkpoint. Its GPUs stay with the app."""

    app: int
    job: int


class Withdraw(msgspec.Struct, frozen=True, tag=True, gc=False):
    """End an app that may not go on. It has failed, with this error."""

    app: int
    error: str


AppAction: TypeAlias = Grant | Revoke | Run | Stop | Withdraw
Action: TypeAlias = AppAction | SetTimer
Allocations: TypeAlias = Iterator[Grant | Revoke | Withdraw | SetTimer]  # the rest is arranged


class Job(msgspec.Struct, frozen=True):
    """A job is training that runs on *least* to *most* GPUs at once, or not at all.

    *work* is how long it takes on one GPU, however it is stopped and resumed; *expected* is what its owner
    says, where that is not the truth (a curve that may be cut off early). With *iterations*, where they are
    known (0: not), jobs of later phases can be guessed from those of this one.
    """

    id: int
    work: Time
    least: int = 1
    most: int = 1
    model: str = ""
    expected: Time | None = None
    iterations: int = 0

    @property
    def forecast(self) -> Time:
        return self.work if self.expected is None else self.expected


class App(msgspec.Struct, frozen=True):
    """An app is a series of phases; jobs of a phase run side by side. A single job is an app too. `halving`:
    which jobs go on to a later phase is found out by the phase before it, so that nobody but the app may look
    there; how many they are, and how much of the GPU they may use, is known. `curve`: jobs may end early.

    Within a team, a higher *priority* goes first. What the app was given is not taken for others before
    *min_run*; an app that has held GPUs for *max_run* is ended (0: it is not)."""

    id: int
    name: str
    phases: tuple[tuple[Job, ...], ...]
    team: str = ""
    kind: Literal["jobs", "halving", "curve"] = "jobs"
    priority: int = 0
    min_run: Time = 0
    max_run: Time = 0

    @property
    def work(self) -> Time:
        return sum(job.work for phase in self.phases for job in phase)

    @property
    def jobs_in_all(self) -> int:
        return sum(map(len, self.phases))


def single(id_: int, name: str, work: Time, gpus: int = 1, model: str = "", team: str = "") -> App:
    """Return an app of one job that needs all of its GPUs at once and runs on them for *work*."""
    return App(id_, name, ((Job(0, work * gpus, gpus, gpus, model),),), team)


class MachineJoined(msgspec.Struct, frozen=True, tag=True, gc=False):
    machine: Machine


class MachineLost(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A machine is gone, with all that ran there since the last checkpoints."""

    machine: int


class GpuFailed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A GPU is out of use from now on; the others of its machine are not. *lost*: so is what ran there since
    the last checkpoint; otherwise it can still write one."""

    gpu: int
    why: str = ""
    lost: bool = True


class GpuRepaired(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A GPU that had failed may be used again."""

    gpu: int


class AppArrived(msgspec.Struct, frozen=True, tag=True, gc=False):
    app: App


class AppWithdrawn(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The owner of an app wants it no more, or the app has failed with this error."""

    app: int
    error: str = ""


class LeaseExpired(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A lease has ended at *until*; the event is late if the lease was renewed or revoked meanwhile."""

    app: int
    gpus: tuple[int, ...]
    until: Time


class JobStopped(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A run has ended with a checkpoint, or was lost: so much of the job's work is done."""

    app: int
    job: int
    run: int
    done: Time


class JobProgressed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A job still runs, and so much of its work is done."""

    app: int
    job: int
    run: int
    done: Time


class JobFinished(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A job has done all of its work. *late*: it was to be stopped, and ended by itself before it was.
    Otherwise it still runs in the books; news of a run that was stopped meanwhile is ignored."""

    app: int
    job: int
    run: int
    late: bool = False


AppEvent: TypeAlias = AppWithdrawn | LeaseExpired | JobStopped | JobProgressed | JobFinished
Event: TypeAlias = MachineJoined | MachineLost | GpuFailed | GpuRepaired | AppArrived | AppEvent | TimerFired
