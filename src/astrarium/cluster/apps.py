"""What shares a cluster: apps, each of one or many jobs."""

from __future__ import annotations

from typing import Literal

import msgspec

from astrarium.core.units import Time


class Job(msgspec.Struct, frozen=True):
    """Training that runs on *least* to *most* GPUs at once, or not at all.

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
    """Jobs of a phase run side by side, phases one after another. A single job is an app too.

    `halving`: who is in a later phase is found out by the one before it, so that nobody but the app may look
    there; how many they are, and how much of the GPU they may use, is known. `curve`: jobs may end early.
    """

    id: int
    name: str
    phases: tuple[tuple[Job, ...], ...]
    team: str = ""
    kind: Literal["jobs", "halving", "curve"] = "jobs"

    @property
    def work(self) -> Time:
        return sum(job.work for phase in self.phases for job in phase)


def single(id_: int, name: str, work: Time, gpus: int = 1, model: str = "", team: str = "") -> App:
    """One job that needs all of its GPUs at once; *work* is how long it runs on them."""
    return App(id_, name, ((Job(0, work * gpus, gpus, gpus, model),),), team)
