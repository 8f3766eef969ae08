"""The real world of the device level: jobs are threads of one process, and take turns in lanes.

    gpu = SharedGpu(policy, ground)
    with gpu.job("resnet50") as job:
        for images, labels in data:           # outside: others have the GPU meanwhile
            with job.iteration():             # waits for its turn
                step(images, labels)

The first iterations of a job that does not say what it needs run while nobody else does, and are measured.
A job that fails, or runs out of memory, ends by itself; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from threading import Condition
from typing import NamedTuple, Protocol

from astrarium.core.engine import Engine
from astrarium.core.errors import AstrariumError
from astrarium.core.trace import Step
from astrarium.core.units import Time
from astrarium.device.actions import RunIteration
from astrarium.device.events import (
    Event,
    IterationFailed,
    IterationFinished,
    IterationWanted,
    JobArrived,
    JobWithdrawn,
)
from astrarium.device.jobs import Job
from astrarium.device.ledger import JobRow, Outcome
from astrarium.device.registry import IterationPolicy
from astrarium.device.state import DeviceState

MEASURED = 3  # iterations of a job that does not say what it needs; the first makes what stays
UNKNOWN = 1 << 40  # iterations of a job that does not say how many


class Ended(AstrariumError):
    """The job is over: it was refused, withdrawn, or has failed."""


class Needs(NamedTuple):
    persistent: int  # bytes
    ephemeral: int
    iteration: Time


class Ground(Protocol):
    """What lanes are made of. Lanes are numbered; a turn opens the one it needs."""

    @property
    def capacity(self) -> int: ...

    def turn(self, lane: int, size: int) -> AbstractContextManager[object]:
        """What is launched inside runs in this lane, of *size* bytes."""

    def measured(self) -> AbstractContextManager[Callable[[], Needs]]:
        """What is launched inside runs alone; the call then tells what it needed."""

    def close(self, lane: int) -> None: ...


class SharedGpu:
    def __init__(
        self,
        policy: IterationPolicy,
        ground: Ground,
        clock: Callable[[], Time],
        record: Callable[[Step], None] | None = None,
    ) -> None:
        self._ground, self._clock, self._began = ground, clock, clock()
        self._state = DeviceState(ground.capacity)
        self._engine = Engine(self._state, policy, record=record)
        self._changed = Condition()
        self._granted: dict[int, int] = {}  # by job: the run that it may begin
        self._in_turns = 0  # iterations under way
        self._measuring = False
        self._numbers = count()
        self._lanes: set[int] = set()

    @contextmanager
    def job(
        self,
        name: str,
        needs: Needs | None = None,
        iterations: int | None = None,
        priority: int = 0,
        demand: float = 1.0,
    ) -> Iterator[LiveJob]:
        """Ends with the block: a job that has iterations left is withdrawn, one that raises has failed."""
        live = LiveJob(self, next(self._numbers), name, needs, iterations or UNKNOWN, priority, demand)
        try:
            yield live
        except BaseException as error:
            live.leave(told(error))
            raise
        live.leave()

    def rows(self) -> list[JobRow]:
        with self._changed:
            return list(self._state.ledger.rows.values())

    # for jobs

    def hear(self, event: Event) -> None:
        """One step of the policy; whoever has a turn now is told."""
        with self._changed:
            for action in self._engine.step(self._clock() - self._began, [event]):
                if type(action) is RunIteration:
                    lane = self._state.layout.lane_of(action.job)
                    assert lane is not None
                    self._granted[action.job] = self._state.running[lane.id].run
            gone = self._lanes - {lane.id for lane in self._state.layout.lanes}
            self._lanes -= gone
            self._changed.notify_all()
        for lane_id in gone:
            self._ground.close(lane_id)

    def await_turn(self, job: int) -> tuple[int, int, int]:
        """The run, the lane and its size; Ended where the job will have no more turns."""
        with self._changed:
            while job not in self._granted or self._measuring:
                row = self._state.ledger.rows[job]
                if row.outcome is not Outcome.OPEN:
                    raise Ended(f"job {row.job.name}: {row.reason or row.outcome.name.lower()}")
                self._changed.wait()
            self._in_turns += 1
            lane = self._state.layout.lane_of(job)
            assert lane is not None
            self._lanes.add(lane.id)
            return self._granted.pop(job), lane.id, lane.size

    def turn_over(self, event: Event) -> None:
        with self._changed:
            self._in_turns -= 1
            self._changed.notify_all()
        self.hear(event)

    @contextmanager
    def alone(self) -> Iterator[Callable[[], Needs]]:
        """Nobody else's iterations run inside."""
        with self._changed:
            self._changed.wait_for(lambda: not self._measuring)
            self._measuring = True  # no turn begins from now on
            self._changed.wait_for(lambda: not self._in_turns)
        try:
            with self._ground.measured() as needed:
                yield needed
        finally:
            with self._changed:
                self._measuring = False
                self._changed.notify_all()

    def turn(self, lane: int, size: int) -> AbstractContextManager[object]:
        return self._ground.turn(lane, size)

    def now(self) -> Time:
        return self._clock() - self._began


class LiveJob:
    """Used by one thread."""

    def __init__(
        self,
        gpu: SharedGpu,
        id_: int,
        name: str,
        needs: Needs | None,
        iterations: int,
        priority: int,
        demand: float,
    ) -> None:
        self._gpu, self.id, self.name = gpu, id_, name
        self._iterations, self._priority, self._demand = iterations, priority, demand
        self._measured: list[Needs] = []
        self._arrived = False
        if needs is not None:
            self._arrive(needs)

    @contextmanager
    def iteration(self) -> Iterator[None]:
        if self._arrived:
            yield from self._in_turn()
        else:
            yield from self._alone()

    def leave(self, error: str = "") -> None:
        """Also a job that ended while it was measured has its row in the books."""
        if not self._arrived:
            self._arrive(_typical(self._measured) if self._measured else Needs(0, 0, 1))
        self._gpu.hear(JobWithdrawn(self.id, error))

    def _in_turn(self) -> Iterator[None]:
        self._gpu.hear(IterationWanted(self.id))
        run, lane, size = self._gpu.await_turn(self.id)
        started = self._gpu.now()
        try:
            with self._gpu.turn(lane, size):
                yield
        except BaseException as error:
            self._gpu.turn_over(IterationFailed(self.id, run, told(error)))
            raise
        self._gpu.turn_over(IterationFinished(self.id, run, started))

    def _alone(self) -> Iterator[None]:
        """The first makes what stays, and tells nothing of the others."""
        with self._gpu.alone() as needed:
            yield
        self._measured.append(needed())
        if len(self._measured) == MEASURED:
            self._arrive(_typical(self._measured[1:]))

    def _arrive(self, needs: Needs) -> None:
        job = Job(self.id, self.name, *needs, self._iterations, self._priority, self._demand)
        self._arrived = True
        self._gpu.hear(JobArrived(job, len(self._measured)))


def told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _typical(measured: list[Needs]) -> Needs:
    """Memory as at its worst, time as at its best: what is slow at first gets faster."""
    return Needs(
        max(each.persistent for each in measured),
        max(each.ephemeral for each in measured),
        min(each.iteration for each in measured),
    )
