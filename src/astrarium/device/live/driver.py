"""The driver of a shared GPU steps the policy, and carries out its actions: turns for jobs, and timers.

Jobs call it from their own threads; a lock lets one of them step at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Condition, RLock
from time import monotonic_ns, sleep

from astrarium.core.engine import Engine
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import Time
from astrarium.core.trace import Step
from astrarium.device import contract
from astrarium.device.contract import Action, Event, Job
from astrarium.device.ledger import JobRow, Outcome
from astrarium.device.live.backend import LaneBackend, Reading, Turn
from astrarium.device.live.charges import Charges
from astrarium.device.live.errors import JobEnded, described
from astrarium.device.live.persistent_estimates import PersistentEstimates
from astrarium.device.live.timer_thread import TimerThread
from astrarium.device.live.turn_grants import TurnGrants
from astrarium.device.policies import IterationPolicy
from astrarium.device.state import DeviceState

HAND_OVER = 1e-5  # seconds: as short as the system can


class LaneDriver:
    """Every public method may be called by any job's thread, and takes the lock itself."""

    def __init__(
        self,
        policy: IterationPolicy,
        backend: LaneBackend,
        clock: Callable[[], Time] = monotonic_ns,
        record: Callable[[Step], None] | None = None,
    ) -> None:
        self.backend = backend
        self._clock = clock
        self._began = clock()

        self._state = DeviceState(backend.capacity, resident=True)
        self._engine = Engine(self._state, policy)
        self._record = record
        lock = RLock()
        self._changed = Condition(lock)
        self._timers = TimerThread(lock, self.now, self._timers_due)
        self._grants = TurnGrants()
        self._estimates = PersistentEstimates()
        self._charges: dict[int, Charges] = {}  # of jobs that have arrived
        self._lanes: set[int] = set()
        self._broken = ""  # why there are no more turns for anybody

    def rows(self) -> list[JobRow]:
        with self._changed:
            return list(self._state.ledger.rows.values())

    def now(self) -> Time:
        return self._clock() - self._began

    def owns(self, job: int, owned: int) -> None:
        """Note that a job is about to come, and has this much on the GPU already."""
        with self._changed:
            allocated = self.backend.allocated() if owned else 0
            cuts = self._estimates.mistaken(owned, allocated, self._persistent()) if owned else {}
            self._estimates.guess(job, owned, 0, 0)
            changed = [self._charges[other].lowered(cut) for other, cut in cuts.items()]
            gone = self._step(changed) if changed else set()
        self._close(gone)

    def estimate(self, job: int, owned: int, allocated: int) -> int:
        """Return the persistent memory of a job that is being measured."""
        with self._changed:
            return self._estimates.guess(job, owned, allocated, sum(self._persistent().values()))

    def arrive(self, job: Job, charges: Charges, *events: Event) -> None:
        with self._changed:
            self._estimates.arrived(job.id, measured=charges.done > 0)
            self._charges[job.id] = charges
            gone = self._step((contract.JobArrived(job, charges.done), *events))
        self._close(gone)

    def await_turn(self, job: int) -> Turn:
        """Wait for the job's turn; raise JobEnded where it will have no more."""
        with self._changed:
            self.check()
            answer = self._grants.wait(job)
            gone = self._step((contract.IterationWanted(job),))
        self._close(gone)
        turn_or_reason = answer.get()
        if isinstance(turn_or_reason, str):
            raise JobEnded(turn_or_reason)
        return turn_or_reason

    def turn_over(self, job: int, *events: Event) -> None:
        with self._changed:
            self._grants.over(job)
            self._changed.notify_all()
            others = set(self._grants.under_way)
            gone = self._step(events)
            handed_over = not self._grants.under_way.keys() <= others
        self._close(gone)
        if handed_over:  # else this thread would keep the interpreter until it waits for its next turn
            sleep(HAND_OVER)

    def abandon(self, job: int, error: str) -> None:
        """Withdraw a job that was not there when its turn came, or might have come."""
        with self._changed:
            turn = self._grants.abandon(job)
            self._changed.notify_all()
            withdrawn = contract.JobWithdrawn(job, error)
            gone = self._step((contract.IterationFailed(job, turn.run, error) if turn else withdrawn,))
        self._close(gone)

    def leave(self, job: int, error: str) -> None:
        self.abandon(job, error)
        with self._changed:
            self._estimates.left(job)
            self._charges.pop(job, None)

    @contextmanager
    def alone(self) -> Iterator[Callable[[], Reading]]:
        """Run the block while nobody else's iterations run."""
        with self._changed:
            self._changed.wait_for(lambda: not self._grants.paused)
            self.check()
            self._grants.paused = True  # no turn begins from now on
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._grants.under_way)
            with self.backend.measured() as reading:
                yield reading
        finally:
            with self._changed:
                self._grants.resume()
                self._changed.notify_all()

    def ended(self, job: int) -> str:
        """Return why the job will have no more turns; empty while it may."""
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
            raise JobEnded(self._broken)

    def _step(self, events: Sequence[Event]) -> set[int]:
        """Take a step with the lock held, and return the lanes that are gone. Turns are given before anything
        is recorded: what is recorded happens."""
        if self._broken:
            return set()
        now = self.now()
        try:
            actions = self._engine.step(now, events)
            self._carry_out(actions)
            if self._record is not None:
                self._record(Step(now, tuple(events), tuple(actions)))
        except BaseException as error:
            self._break(now, described(error))
            raise
        gone = self._lanes - {lane.id for lane in self._state.layout.lanes}
        self._lanes -= gone
        return gone

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if type(action) is contract.RunIteration:
                self._grant(action.job)
            elif type(action) is SetTimer:
                self._timers.set(action.name, action.at)
        for job in self._grants.waiting:
            reason = "" if job in self._state.ready else self.ended(job)
            if reason:
                self._grants.refuse(job, reason)

    def _grant(self, job: int) -> None:
        lane = self._state.layout.lane_of(job)
        assert lane is not None
        self._lanes.add(lane.id)
        run = self._state.running[lane.id].run
        self._grants.grant(Turn(job, run, lane.id, lane.size, len(lane.jobs) > 1))

    def _break(self, now: Time, error: str) -> None:
        """End the sharing: the state cannot be trusted, and no job may wait for a turn for ever."""
        self._broken = f"the GPU is shared no more: {error}"
        self._timers.clear()
        self._grants.refuse_all(self._broken)
        for job, row in self._state.ledger.rows.items():
            if row.outcome is Outcome.OPEN:
                self._state.ledger.end(now, job, Outcome.FAILED, self._broken)

    def _persistent(self) -> dict[int, int]:
        booked = {**self._state.waiting, **self._state.admitted}
        return {number: job.persistent for number, job in booked.items()}

    def _timers_due(self, names: list[str]) -> None:
        gone: set[int] = set()
        with suppress(Exception), self._changed:  # every job has been refused with the error
            gone = self._step([TimerFired(name) for name in names])
        self._close(gone)

    def _close(self, lanes: set[int]) -> None:
        """Close lanes without the lock: that may wait for the GPU."""
        for lane in lanes:
            self.backend.close(lane)
