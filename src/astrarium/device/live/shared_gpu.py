"""A shared GPU is the real world of the device level: jobs are threads of one process, and take turns in
lanes.

    gpu = SharedGpu(policy, backend)
    with gpu.job("resnet50") as job:
        for images, labels in data:           # outside: others have the GPU meanwhile
            with job.iteration():             # waits for its turn
                step(images, labels)

The first iterations of a job that does not say what it needs run while nobody else does, and are measured. A
job that fails, or runs out of memory, ends by itself; the others go on. Memory that a turn shows beyond what
was known of a job is charged to it, and where there is none left, that job ends. An error of the policy, or
of the record, ends the sharing: every job is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from queue import SimpleQueue
from threading import Condition, RLock, Thread, local
from time import monotonic_ns, sleep

from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.timers import Timers
from astrarium.core.trace import Step
from astrarium.core.units import SECOND, Time
from astrarium.device import contract
from astrarium.device.contract import Action, Event, Job
from astrarium.device.live.backend import LaneBackend, Needs, Reading, Turn
from astrarium.device.live.jobs import MEASURED, Charges, JobEnded, LiveJob, MemoryWarning, OutOfTurn, told
from astrarium.device.policies import IterationPolicy
from astrarium.device.state import DeviceState, JobRow, Outcome

IDLE: Time = SECOND  # without a timer, until the thread ends


class TimerThread:
    """A thread, which exists while any timer is set, waits for the timers of a live policy. *on_due* is
    called with the names that are due, and without the lock; everything else with the lock held."""

    def __init__(self, lock: RLock, now: Callable[[], Time], on_due: Callable[[list[str]], None]) -> None:
        self._now, self._timers_due = now, on_due
        self._earlier = Condition(lock)
        self._set = Timers()
        self._thread: Thread | None = None
        self._sleeps_until: Time = 0

    def set(self, name: str, at: Time) -> None:
        """Set a timer in place of one of the same name. A thread that would sleep too long is woken."""
        self._set.set(SetTimer(at, name))
        if self._thread is None:
            self._thread = Thread(target=self._work, name="alarms of a shared GPU", daemon=True)
            self._thread.start()
        elif at < self._sleeps_until:
            self._earlier.notify()

    def clear(self) -> None:
        self._set.clear()

    def _work(self) -> None:
        while (due := self._due()) is not None:
            if due:
                self._timers_due(due)

    def _due(self) -> list[str] | None:
        """Return the timers that are due, after some sleep; None where nobody needs the thread any more."""
        with self._earlier:
            if not self._set and not self._sleep(self._now() + IDLE) and not self._set:
                self._thread = None
                return None
            self._sleep(self._set.earliest)
            return [timer.name for timer in self._set.due(self._now())]

    def _sleep(self, until: Time) -> bool:
        """Sleep until then; tell whether the thread was woken."""
        self._sleeps_until = until
        left = (until - self._now()) / SECOND
        return left > 0 and self._earlier.wait(left)


class TurnGrants:
    """Jobs wait here until they are granted a turn, or told why they will have none. While grants are
    *paused*, since a job is measured, turns are held back. All but the waiting itself is called with the
    driver's lock held."""

    def __init__(self) -> None:
        self.paused = False
        self.under_way: dict[int, Turn] = {}  # by job
        self._waiting: dict[int, SimpleQueue[Turn | str]] = {}  # by job
        self._held: list[Turn] = []

    def wait(self, job: int) -> SimpleQueue[Turn | str]:
        answer = self._waiting[job] = SimpleQueue()
        return answer

    @property
    def waiting(self) -> list[int]:
        return list(self._waiting)

    def grant(self, turn: Turn) -> None:
        if self.paused:
            self._held.append(turn)
        else:
            self._start(turn)

    def resume(self) -> None:
        self.paused = False
        held, self._held = self._held, []
        for turn in held:
            self._start(turn)

    def refuse(self, job: int, reason: str) -> None:
        self._waiting.pop(job).put(reason)

    def refuse_all(self, reason: str) -> None:
        self._held.clear()
        for job in self.waiting:
            self.refuse(job, reason)

    def over(self, job: int) -> None:
        self.under_way.pop(job, None)

    def abandon(self, job: int) -> Turn | None:
        """Stop waiting; return the turn that the job had, or was to have."""
        self._waiting.pop(job, None)
        held = next((turn for turn in self._held if turn.job == job), None)
        self._held = [turn for turn in self._held if turn.job != job]
        return self.under_way.pop(job, held)

    def _start(self, turn: Turn) -> None:
        self.under_way[turn.job] = turn
        self._waiting.pop(turn.job).put(turn)


# What a user says of a job is checked before any other job is affected.


UNKNOWN = 1 << 40  # iterations of a job that does not say how many

About = tuple[int, int, float]  # iterations, priority, demand


def checked(name: str, needs: Needs | None, iterations: int | None, priority: int, demand: float) -> About:
    source = f"job {name}"
    if iterations is not None and not _whole(iterations, 1):
        raise InputError("iterations", iterations, "at least 1, or None if it is not known", source)
    if not _whole(priority):
        raise InputError("priority", priority, "a whole number; the higher, the more important", source)
    if isinstance(demand, bool) or not isinstance(demand, int | float) or not 0 < demand <= 1:
        raise InputError("demand", demand, "a share of the GPU: above 0, at most 1", source)
    if needs is not None:
        _check_needs(needs, source)
    return UNKNOWN if iterations is None else iterations, priority, float(demand)


def _check_needs(needs: Needs, source: str) -> None:
    if not isinstance(needs, tuple) or len(needs) != len(Needs._fields):
        raise InputError("needs", needs, "Needs(persistent, ephemeral, iteration), or None", source)
    for field, value in zip(Needs._fields, needs, strict=True):
        unit = "nanoseconds" if field == "iteration" else "bytes"
        least = 1 if field == "iteration" else 0
        if not _whole(value, least):
            raise InputError(f"needs.{field}", value, f"a whole number of {unit}, at least {least}", source)


def _whole(value: object, least: float = -math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


class PersistentEstimates:
    """The estimates say how much persistent memory a live job has, by what was read while it was measured."""

    def __init__(self) -> None:
        self._guessed: dict[int, int] = {}  # of jobs that are not in the books yet
        self._surplus: dict[int, int] = {}  # beyond what a measured job was known to own, in order of time

    def guess(self, job: int, owned: int, allocated: int, booked: int) -> int:
        """Estimate a job's persistent memory. *booked* is that of all jobs in the books."""
        others = booked + sum(size for other, size in self._guessed.items() if other != job)
        self._guessed[job] = max(owned, allocated - others)
        self._surplus[job] = self._guessed[job] - owned
        return self._guessed[job]

    def booked(self, job: int, measured: bool) -> None:
        self._guessed.pop(job, None)
        if not measured:
            self._surplus.pop(job, None)

    def left(self, job: int) -> None:
        self._guessed.pop(job, None)
        self._surplus.pop(job, None)

    def mistaken(self, owned: int, allocated: int, persistent: Mapping[int, int]) -> dict[int, int]:
        """Return by how much jobs in the books are charged too much, when a job comes that owned this much
        before.

        *persistent* is the memory of jobs in the books. Those that said what they need are not counted: more
        than they have may be booked for them. What iterations have allocated just now makes it less, too.
        """
        measured = {job: size for job, size in persistent.items() if job in self._surplus}
        left = min(owned, sum(measured.values()) + sum(self._guessed.values()) + owned - allocated)
        cuts: dict[int, int] = {}
        for job in reversed(list(measured)):  # the last one was most likely measured meanwhile
            cut = min(max(0, left), self._surplus[job])
            if cut:
                cuts[job] = cut
                self._surplus[job] -= cut
                left -= cut
        return cuts


__all__ = ["MEASURED", "JobEnded", "LiveJob", "MemoryWarning", "Needs", "OutOfTurn", "SharedGpu"]

HAND_OVER = 1e-5  # seconds: as short as the system can


class SharedGpu:
    """A shared GPU gives live jobs their turns, by an iteration policy."""

    def __init__(
        self,
        policy: IterationPolicy,
        backend: LaneBackend,
        clock: Callable[[], Time] = monotonic_ns,
        record: Callable[[Step], None] | None = None,
    ) -> None:
        self.backend, self._clock, self._began = backend, clock, clock()
        self.inside = local()  # a thread's job, while it is in an iteration
        self._state = DeviceState(backend.capacity, resident=True)
        self._engine, self._record = Engine(self._state, policy), record
        lock = RLock()
        self._changed = Condition(lock)
        self._timers = TimerThread(lock, self.now, self._timers_due)
        self._grants, self._estimates = TurnGrants(), PersistentEstimates()
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
        """Make a job of the block, in the thread that runs its iterations. *owned* bytes on the GPU are known
        to be its own.

        The job ends with the block: one that has iterations left is withdrawn, one that raises has failed.
        """
        about = checked(name, needs, iterations, priority, demand)
        live = LiveJob(self, next(self._numbers), name, about, owned)
        try:
            with self.backend.job_thread():
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
            self._estimates.booked(job.id, measured=charges.done > 0)
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
        found = answer.get()
        if isinstance(found, str):
            raise JobEnded(found)
        return found

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

    # with the lock held

    def _step(self, events: Sequence[Event]) -> set[int]:
        """Take a step, and return the lanes that are gone. Turns are given before anything is recorded: what
        is booked happens."""
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
        """End the sharing: the books cannot be trusted, and no job may wait for a turn for ever."""
        self._broken = f"the GPU is shared no more: {error}"
        self._timers.clear()
        self._grants.refuse_all(self._broken)
        for job, row in self._state.ledger.rows.items():
            if row.outcome is Outcome.OPEN:
                self._state.ledger.end(now, job, Outcome.FAILED, self._broken)

    def _persistent(self) -> dict[int, int]:
        booked = {**self._state.waiting, **self._state.admitted}
        return {number: job.persistent for number, job in booked.items()}

    # without the lock

    def _timers_due(self, names: list[str]) -> None:
        gone: set[int] = set()
        with suppress(Exception), self._changed:  # every job has been told of the error
            gone = self._step([TimerFired(name) for name in names])
        self._close(gone)

    def _close(self, lanes: set[int]) -> None:
        for lane in lanes:
            self.backend.close(lane)
