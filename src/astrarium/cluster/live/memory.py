"""A live cluster remembers more than the books hold, and writes both down with every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from astrarium.cluster.live.backend import RunKey, RunStatus
from astrarium.core.quantities import Time
from astrarium.core.trace import Step


class JobKey(NamedTuple):
    app: int
    job: int


class Memory(msgspec.Struct):
    """What the books do not hold and a new arbiter must know."""

    machines: dict[int, str] = {}  # names of those that are there, by number
    joined: int = 0  # machines that there ever were
    timers: dict[str, Time] = {}
    kept: dict[RunKey, float] = {}  # how far checkpoints are
    closed: set[RunKey] = set()  # runs whose end is in the books, and which the machines still show
    failures: dict[JobKey, tuple[int, float]] = {}  # how often, and how far it had come
    open: dict[RunKey, bool] = {}  # runs that have not ended, and whether a machine has shown them
    ordered: dict[RunKey, Time] = {}  # since when a run waits for its GPUs
    late: dict[RunKey, Time] = {}  # how long it had to wait, until its first lease has ended
    began: dict[RunKey, Time] = {}  # runs that a machine has shown first since the last step was written
    retrying: set[int] = set()  # GPUs that have failed, and are used again as soon as they are well


class EndedRun(NamedTuple):
    key: RunKey
    status: RunStatus


class Journal(Protocol):
    def write(self, step: Step, memory: Memory, ended: Sequence[EndedRun]) -> None:
        """Write all of it or nothing; when it returns, it will be found again."""
