"""The ledger of the device level says how each job ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from astrarium.core.quantities import Time
from astrarium.device.contract import Job


class Outcome(IntEnum):
    OPEN = 0
    FINISHED = 1
    REFUSED = 2
    FAILED = 3
    WITHDRAWN = 4


@dataclass
class JobRow:
    """A row of the ledger follows one job; instants are -1 until they come."""

    job: Job
    arrived: Time
    admitted: Time = -1
    started: Time = -1  # its first iteration
    ended: Time = -1
    outcome: Outcome = Outcome.OPEN
    reason: str = ""
    done: int = 0  # iterations
    service: Time = 0  # time in iterations
    switches: int = 0  # iterations that followed another job's in the lane


@dataclass
class Ledger:
    rows: dict[int, JobRow] = field(default_factory=dict)

    def arrived(self, now: Time, job: Job) -> JobRow:
        row = self.rows[job.id] = JobRow(job, now)
        return row

    def end(self, now: Time, job: int, outcome: Outcome, reason: str = "") -> None:
        row = self.rows[job]
        row.ended = now
        row.outcome = outcome
        row.reason = reason
