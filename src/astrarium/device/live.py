"""The real world of the device level: jobs are threads of one process, and take turns in lanes.

    gpu = SharedGpu(policy, ground)
    with gpu.job("resnet50") as job:
        for images, labels in data:           # outside: others have the GPU meanwhile
            with job.iteration():             # waits for its turn
                step(images, labels)

The first iterations of a job that does not say what it needs run while nobody else does, and are measured.
A job that fails, or runs out of memory, ends by itself; the others go on. Memory that a turn shows beyond
what was known of a job is charged to it, and where there is none left, that job ends. An error of the policy,
or of the record, ends the sharing: everybody is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from threading import Condition, RLock, local
from time import monotonic_ns, sleep

from astrarium.core.engine import Engine
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.trace import Step
from astrarium.core.units import Time
from astrarium.device.actions import Action, RunIteration
from astrarium.device.charges import MEASURED, Charges
from astrarium.device.estimates import Estimates
from astrarium.device.events import Event, IterationFailed, IterationWanted, JobArrived, JobWithdrawn
from astrarium.device.ground import Ground, Needs, Reading, Turn
from astrarium.device.jobs import Job
from astrarium.device.ledger import JobRow, Outcome
from astrarium.device.live_alarms import Alarms
from astrarium.device.live_gates import Gates
from astrarium.device.live_jobs import Ended, LiveJob, MemoryWarning, OutOfTurn, told
from astrarium.device.registry import IterationPolicy
from astrarium.device.state import DeviceState
from astrarium.device.wishes import checked

__all__ = ["MEASURED", "Ended", "LiveJob", "MemoryWarning", "Needs", "OutOfTurn", "SharedGpu"]

HAND_OVER = 1e-5  # seconds: as short as the system can


class SharedGpu:
    def __init__(
        self,
        policy: IterationPolicy,
        ground: Ground,
        clock: Callable[[], Time] = monotonic_ns,
        record: Callable[[Step], None] | None = None,
    ) -> None:
        self.ground, self._clock, self._began = ground, clock, clock()
        self.inside = local()  # a thread's job, while it is in an iteration
        self._state = DeviceState(ground.capacity, resident=True)
        self._engine, self._record = Engine(self._state, policy), record
        lock = RLock()
        self._changed = Condition(lock)
        self._alarms = Alarms(lock, self.now, self._ring)
        self._gates, self._estimates = Gates(), Estimates()
        self._charges: dict[int, Charges] = {}  # of jobs in the books
        self._numbers = count()
        self._lanes: set[int] = set()
        self._broken = ""  # why there are no more turns for anybody

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
        about = checked(name, needs, iterations, priority, demand)
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

    def now(self) -> Time:
        return self._clock() - self._began

    # for jobs

    def owns(self, job: int, owned: int) -> None:
        """A job is about to come, and has this much on the GPU already."""
        with self._changed:
            allocated = self.ground.allocated() if owned else 0
            cuts = self._estimates.mistaken(owned, allocated, self._persistent()) if owned else {}
            self._estimates.guess(job, owned, 0, 0)
            changed = [self._charges[other].lowered(cut) for other, cut in cuts.items()]
            gone = self._step(changed) if changed else set()
        self._close(gone)

    def estimate(self, job: int, owned: int, allocated: int) -> int:
        """The persistent memory of a job that is being measured."""
        with self._changed:
            return self._estimates.guess(job, owned, allocated, sum(self._persistent().values()))

    def arrive(self, job: Job, charges: Charges, *events: Event) -> None:
        with self._changed:
            self._estimates.booked(job.id, measured=charges.done > 0)
            self._charges[job.id] = charges
            gone = self._step((JobArrived(job, charges.done), *events))
        self._close(gone)

    def await_turn(self, job: int) -> Turn:
        """Ended where the job will have no more turns."""
        with self._changed:
            self.check()
            gate = self._gates.wait(job)
            gone = self._step((IterationWanted(job),))
        self._close(gone)
        found = gate.get()
        if isinstance(found, str):
            raise Ended(found)
        return found

    def turn_over(self, job: int, *events: Event) -> None:
        with self._changed:
            self._gates.over(job)
            self._changed.notify_all()
            others = set(self._gates.under_way)
            gone = self._step(events)
            handed_over = not self._gates.under_way.keys() <= others
        self._close(gone)
        if handed_over:  # else this thread would keep the interpreter until it waits for its next turn
            sleep(HAND_OVER)

    def abandon(self, job: int, error: str) -> None:
        """The job was not there when its turn came, or might have come."""
        with self._changed:
            turn = self._gates.abandon(job)
            self._changed.notify_all()
            gone = self._step((IterationFailed(job, turn.run, error) if turn else JobWithdrawn(job, error),))
        self._close(gone)

    def leave(self, job: int, error: str) -> None:
        self.abandon(job, error)
        with self._changed:
            self._estimates.left(job)
            self._charges.pop(job, None)

    @contextmanager
    def alone(self) -> Iterator[Callable[[], Reading]]:
        """Nobody else's iterations run inside."""
        with self._changed:
            self._changed.wait_for(lambda: not self._gates.shut)
            self.check()
            self._gates.shut = True  # no turn begins from now on
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._gates.under_way)
            with self.ground.measured() as reading:
                yield reading
        finally:
            with self._changed:
                self._gates.open()
                self._changed.notify_all()

    def ended(self, job: int) -> str:
        """Why it will have no more turns; empty while it may."""
        if self._broken:
            return self._broken
        row = self._state.ledger.rows[job]
        if row.outcome is Outcome.OPEN:
            return ""
        return f"job {row.job.name}: {row.reason or row.outcome.name.lower()}"

    def failed(self, job: int) -> bool:
        return bool(self._broken) or self._state.ledger.rows[job].outcome is Outcome.FAILED

    def check(self) -> None:
        if self._broken:
            raise Ended(self._broken)

    # with the lock held

    def _step(self, events: Sequence[Event]) -> set[int]:
        """The lanes that are gone. Turns are given before anything is written: what is booked happens."""
        if self._broken:
            return set()
        now = self.now()
        try:
            actions = self._engine.step(now, events)
            self._carry_out(actions)
            if self._record is not None:
                self._record(Step(now, tuple(events), tuple(actions)))
        except BaseException as error:
            self._break(now, told(error))
            raise
        gone = self._lanes - {lane.id for lane in self._state.layout.lanes}
        self._lanes -= gone
        return gone

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if type(action) is RunIteration:
                self._grant(action.job)
            elif type(action) is SetTimer:
                self._alarms.set(action.name, action.at)
        for job in self._gates.waiting:
            reason = "" if job in self._state.ready else self.ended(job)
            if reason:
                self._gates.refuse(job, reason)

    def _grant(self, job: int) -> None:
        lane = self._state.layout.lane_of(job)
        assert lane is not None
        self._lanes.add(lane.id)
        run = self._state.running[lane.id].run
        self._gates.grant(Turn(job, run, lane.id, lane.size, len(lane.jobs) > 1))

    def _break(self, now: Time, error: str) -> None:
        """The books cannot be trusted any more: nobody waits for a turn that would never come."""
        self._broken = f"the GPU is shared no more: {error}"
        self._alarms.clear()
        self._gates.refuse_all(self._broken)
        for job, row in self._state.ledger.rows.items():
            if row.outcome is Outcome.OPEN:
                self._state.ledger.end(now, job, Outcome.FAILED, self._broken)

    def _persistent(self) -> dict[int, int]:
        booked = {**self._state.waiting, **self._state.admitted}
        return {number: job.persistent for number, job in booked.items()}

    # without it

    def _ring(self, names: list[str]) -> None:
        gone: set[int] = set()
        with suppress(Exception), self._changed:  # of an error everybody has been told
            gone = self._step([TimerFired(name) for name in names])
        self._close(gone)

    def _close(self, lanes: set[int]) -> None:
        for lane in lanes:
            self.ground.close(lane)
