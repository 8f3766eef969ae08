"""Where apps end up: one row each, with their jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from astrarium.cluster.apps import App, Job
from astrarium.core.units import Time


class Outcome(IntEnum):
    OPEN = 0
    FINISHED = 1
    FAILED = 2
    WITHDRAWN = 3


@dataclass(eq=False)
class JobRow:
    """*done* of its work is known to be done; where it runs, as of *since*."""

    job: Job
    done: Time = 0
    run: int = 0  # counts its runs
    gpus: tuple[int, ...] = ()  # none: it does not run
    since: Time = 0  # when the present run began to get somewhere, or was last heard of
    finished: bool = False


@dataclass(eq=False)
class AppRow:
    """Instants are -1 until they come. *service* is the GPU time that was leased to it."""

    app: App
    arrived: Time
    jobs: dict[int, JobRow]  # of the present phase
    phase: int = 0
    leases: dict[int, Time] = field(default_factory=dict)  # until when, by GPU
    started: Time = -1
    ended: Time = -1
    outcome: Outcome = Outcome.OPEN
    reason: str = ""
    service: Time = 0  # up to *counted*
    counted: Time = 0
    ran: Time = 0  # GPU time in which its jobs got somewhere, in runs that have ended
    crowd: float = 0.0  # what the integral of contention was at its arrival, and is at its end
    contention: float = 0.0  # the mean number of apps in its life, when it has ended

    @property
    def open(self) -> bool:
        return self.outcome is Outcome.OPEN

    def unfinished(self) -> list[JobRow]:
        return [row for row in self.jobs.values() if not row.finished]


@dataclass
class Ledger:
    rows: dict[int, AppRow] = field(default_factory=dict)
