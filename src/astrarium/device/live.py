"""The real world of the device level: jobs are threads of one process, and take turns in lanes.

    gpu = SharedGpu(policy, ground)
    with gpu.job("resnet50") as job:
        for images, labels in data:           # outside: others have the GPU meanwhile
            with job.iteration():             # waits for its turn
                step(images, labels)

The first iterations of a job that does not say what it needs run while nobody else does, and are measured.
A job that fails, or runs out of memory, ends by itself; the others go on. Memory that a turn shows beyond
what was known of a job is charged to it, and where there is none left, that job ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from queue import SimpleQueue
from threading import Condition
from time import monotonic_ns

from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.trace import Step
from astrarium.core.units import Time
from astrarium.device.actions import RunIteration
from astrarium.device.charges import MEASURED
from astrarium.device.events import (
    Event,
    IterationFailed,
    IterationWanted,
    JobArrived,
    JobWithdrawn,
)
from astrarium.device.ground import Ground, Needs, Reading, Turn
from astrarium.device.jobs import Job
from astrarium.device.ledger import JobRow, Outcome
from astrarium.device.live_jobs import Ended, LiveJob, MemoryWarning, OutOfTurn, told
from astrarium.device.registry import IterationPolicy
from astrarium.device.state import DeviceState

__all__ = ["MEASURED", "Ended", "LiveJob", "MemoryWarning", "Needs", "OutOfTurn", "SharedGpu"]
UNKNOWN = 1 << 40  # iterations of a job that does not say how many


class SharedGpu:
    def __init__(
        self,
        policy: IterationPolicy,
        ground: Ground,
        clock: Callable[[], Time] = monotonic_ns,
        record: Callable[[Step], None] | None = None,
    ) -> None:
        self.ground, self._clock, self._began = ground, clock, clock()
        self._state = DeviceState(ground.capacity)
        self._engine = Engine(self._state, policy, record=record)
        self._changed = Condition()
        self._gates: dict[int, SimpleQueue[Turn | str]] = {}  # of jobs that wait for a turn
        self._held: list[Turn] = []  # that begin when nobody is measured any more
        self._in_turns = 0  # iterations under way
        self._measuring = False
        self._estimates: dict[int, int] = {}  # persistent memory of jobs that are not in the books yet
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
        owned: int = 0,
    ) -> Iterator[LiveJob]:
        """In the thread that runs its iterations. *owned* bytes on the GPU are known to be its own.

        Ends with the block: a job that has iterations left is withdrawn, one that raises has failed.
        """
        if iterations is not None and iterations < 1:
            raise InputError(
                "iterations", iterations, "at least 1, or None if it is not known", f"job {name}"
            )
        about = (UNKNOWN if iterations is None else iterations, priority, demand)
        live = LiveJob(self, next(self._numbers), name, about, owned)
        try:
            with self.ground.seat():
                yield from live.life(needs)
        except BaseException as error:
            live.leave(told(error))
            raise
        live.leave()

    def rows(self) -> list[JobRow]:
        with self._changed:
            return list(self._state.ledger.rows.values())

    # for jobs

    def hear(self, *events: Event) -> None:
        """One step of the policy; whoever has a turn now is told."""
        with self._changed:
            gone = self._step(events)
        self._close(gone)

    def await_turn(self, job: int) -> Turn:
        """Ended where the job will have no more turns."""
        gate: SimpleQueue[Turn | str] = SimpleQueue()
        with self._changed:
            self._gates[job] = gate
            gone = self._step((IterationWanted(job),))
        self._close(gone)
        try:
            found = gate.get()
        except BaseException as error:  # interrupted while it waits
            with self._changed:
                gone = self._step((self._interrupted(job, gate, told(error)),))
            self._close(gone)
            raise
        if isinstance(found, str):
            raise Ended(found)
        return found

    def turn_over(self, *events: Event) -> None:
        with self._changed:
            self._turn_left()
            gone = self._step(events)
        self._close(gone)

    @contextmanager
    def alone(self) -> Iterator[Callable[[], Reading]]:
        """Nobody else's iterations run inside."""
        with self._changed:
            self._changed.wait_for(lambda: not self._measuring)
            self._measuring = True  # no turn begins from now on
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._in_turns)
            with self.ground.measured() as reading:
                yield reading
        finally:
            with self._changed:
                self._measuring = False
                self._changed.notify_all()
                held, self._held = self._held, []
                for turn in held:
                    self._start(turn)

    def estimate(self, job: int, least: int, allocated: int = 0) -> int:
        """The persistent memory of a job that is not in the books: what nobody else accounts for of all that
        is allocated. Where several are being made at once that is too much for the first, and safe."""
        with self._changed:
            booked = [*self._state.admitted.values(), *self._state.waiting.values()]
            others = sum(size for other, size in self._estimates.items() if other != job)
            others += sum(each.persistent for each in booked)
            self._estimates[job] = max(least, allocated - others)
            return self._estimates[job]

    def arrive(self, job: Job, done: int) -> None:
        with self._changed:
            self._estimates.pop(job.id, None)
            gone = self._step((JobArrived(job, done),))
        self._close(gone)

    def ended(self, job: int) -> str:
        """Why it will have no more turns; empty while it may."""
        row = self._state.ledger.rows[job]
        if row.outcome is Outcome.OPEN:
            return ""
        return f"job {row.job.name}: {row.reason or row.outcome.name.lower()}"

    def failed(self, job: int) -> bool:
        return self._state.ledger.rows[job].outcome is Outcome.FAILED

    def now(self) -> Time:
        return self._clock() - self._began

    def _close(self, lanes: set[int]) -> None:
        for lane in lanes:
            self.ground.close(lane)

    # with the lock held

    def _step(self, events: tuple[Event, ...]) -> set[int]:
        """The lanes that are gone."""
        for action in self._engine.step(self.now(), events):
            if type(action) is RunIteration:
                self._grant(action.job)
        for job in self._gates.keys() - self._state.ready:
            if reason := self.ended(job):
                self._gates.pop(job).put(reason)
        gone = self._lanes - {lane.id for lane in self._state.layout.lanes}
        self._lanes -= gone
        return gone

    def _grant(self, job: int) -> None:
        lane = self._state.layout.lane_of(job)
        assert lane is not None
        self._lanes.add(lane.id)
        turn = Turn(job, self._state.running[lane.id].run, lane.id, lane.size, len(lane.jobs) > 1)
        if self._measuring:
            self._held.append(turn)
        else:
            self._start(turn)

    def _start(self, turn: Turn) -> None:
        self._in_turns += 1
        self._gates.pop(turn.job).put(turn)

    def _turn_left(self) -> None:
        self._in_turns -= 1
        if self._measuring:
            self._changed.notify_all()

    def _interrupted(self, job: int, gate: SimpleQueue[Turn | str], error: str) -> Event:
        """What the books hear of a job that was not there when its turn came, or might have come."""
        held = [turn for turn in self._held if turn.job == job]
        self._held = [turn for turn in self._held if turn.job != job]
        if self._gates.pop(job, None) is None and isinstance(found := gate.get(), Turn):
            self._turn_left()
            held.append(found)
        return IterationFailed(job, held[0].run, error) if held else JobWithdrawn(job, error)
