"""A live cluster remembers more than the books hold, and writes both down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from astrarium.cluster.live.backend import RunKey, RunStatus
from astrarium.cluster.machines import Slowdowns
from astrarium.core.trace import Step
from astrarium.core.units import SECOND, Time


class FixedSlowdowns(Slowdowns):
    """Slowdowns as they were told, from which nothing is learnt. Live, how long a job takes is its owner's
    guess: from how long it really takes, nobody can tell how much is due to where its GPUs are."""

    def learn(self, model: str, network: str, spread: object, status: float) -> None:
        pass


class Options(msgspec.Struct, frozen=True):
    """How a live cluster treats failures, progress and handovers. A job that fails more often than *retries*
    without getting further takes its app with it. News of progress reach the policy no more often than
    *progress*. Who was there before has *handover* to leave: for so long at most, the lease of those who wait
    for it does not run."""

    retries: int = 2
    progress: Time = 5 * SECOND
    handover: Time = 60 * SECOND


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


class EndedRun(NamedTuple):
    key: RunKey
    status: RunStatus


class Journal(Protocol):
    def write(self, step: Step, memory: Memory, ended: Sequence[EndedRun]) -> None:
        """Write all of it or nothing; when it returns, it will be found again."""
