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

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from threading import Condition, RLock, Thread, current_thread, get_ident, local
from time import monotonic_ns, sleep
from types import TracebackType
from typing import TypeVar

from astrarium.core.engine import Engine
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import SECOND, Time
from astrarium.core.timers import Timers
from astrarium.core.trace import Step
from astrarium.device import contract
from astrarium.device.contract import Action, Event, Job
from astrarium.device.live import jobs
from astrarium.device.live.backend import Excess, LaneBackend, Needs, Reading, Turn
from astrarium.device.live.jobs import MEASURED, Charges, JobEnded, MemoryWarning, OutOfTurn, told
from astrarium.device.policies import IterationPolicy
from astrarium.device.state import DeviceState, JobRow, Outcome

IDLE: Time = SECOND  # without a timer, until the thread ends


class TimerThread:
    """A thread, which exists while any timer is set, waits for the timers of a live policy. *on_due* is
    called with the names that are due, and without the lock; everything else with the lock held."""

    def __init__(self, lock: RLock, now: Callable[[], Time], on_due: Callable[[list[str]], None]) -> None:
        self._now = now
        self._timers_due = on_due
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


__all__ = ["MEASURED", "JobEnded", "LiveJob", "MemoryWarning", "Needs", "OutOfTurn", "SharedGpu"]

Kept = TypeVar("Kept")
HAND_OVER = 1e-5  # seconds: as short as the system can


class LiveJob:
    """A live job is used by the thread that made it: `with job.iteration():`, or `begin` and `end` where
    there is no block. *about*: its iterations, priority and demand."""

    def __init__(self, gpu: SharedGpu, id_: int, name: str, about: jobs.About, owned: int) -> None:
        self._gpu = gpu
        self.id = id_
        self.name = name
        self._about = about
        self._owned = owned
        self._thread = get_ident()
        self._charges = Charges(id_)
        self._arrived = False
        self._turn: Turn | None = None
        self._started: Time = 0
        self._alone: AbstractContextManager[Callable[[], Reading]] | None = None
        self._block = _Iteration(self)

    def iteration(self) -> AbstractContextManager[None]:
        return self._block

    @property
    def under_way(self) -> bool:
        return self._turn is not None or self._alone is not None

    def keep(self, value: Kept) -> Kept:
        """Keep, in an iteration, what is read only afterwards, such as the output of a model."""
        if self._turn is not None:
            self._gpu.backend.keep(value)
        return value

    def begin(self) -> None:
        """Wait for the job's turn."""
        self._check_thread()
        if self._arrived:
            self._begin_turn()
        else:
            alone = self._gpu.alone()
            self._reading = alone.__enter__()
            self._alone = alone
        self._gpu.inside.job = self

    def end(self, error: BaseException | None = None, survives: bool = False) -> None:
        """End an iteration. An error in it ends the job, unless it *survives*: the loop may handle it."""
        if not self.under_way:
            return
        self._check_owner()
        self._gpu.inside.job = None
        if self._turn is not None:
            self._end_turn(self._turn, error, survives)
        else:
            self._end_alone(error)

    def life(self, needs: Needs | None) -> Iterator[LiveJob]:
        """Run the job's block. An iteration that is still under way at the end of the block ends with it."""
        self._gpu.owns(self.id, self._owned)
        if needs is not None:
            self._arrive(needs)
        try:
            yield self
        except BaseException as error:
            self.end(error)
            raise
        self.end()

    def leave(self, error: str = "") -> None:
        """Remove the job. A job that ended while it was measured has its row in the books too, with its own
        error: in one step, since the policy might refuse it."""
        if not self._arrived:
            self._arrive(self._charges.so_far(), contract.JobWithdrawn(self.id, error))
        self._gpu.leave(self.id, error)

    def _begin_turn(self) -> None:
        """Begin a turn. If that is interrupted anywhere, the turn is given back."""
        try:
            turn = self._turn = self._gpu.await_turn(self.id)
            self._gpu.backend.begin(turn)
        except JobEnded:
            raise
        except BaseException as error:
            self._turn = None
            self._gpu.abandon(self.id, told(error))
            raise
        self._started = self._gpu.now()

    def _end_turn(self, turn: Turn, error: BaseException | None, survives: bool) -> None:
        self._turn = None
        try:
            excess = self._gpu.backend.end(turn, error)
        except BaseException as failure:
            self._gpu.turn_over(self.id, contract.IterationFailed(self.id, turn.run, told(failure)))
            raise
        if error is not None and not survives:
            self._gpu.turn_over(self.id, contract.IterationFailed(self.id, turn.run, told(error)))
        elif excess is None:
            self._gpu.turn_over(self.id, self._finished(turn))
        else:
            self._exceeded(turn, excess)

    def _finished(self, turn: Turn) -> contract.IterationFinished:
        took = self._gpu.backend.took()
        started = self._started if took is None else self._gpu.now() - took
        return contract.IterationFinished(self.id, turn.run, started)

    def _exceeded(self, turn: Turn, excess: Excess) -> None:
        """Charge the excess in the same step, before another job can be given the memory."""
        changed = self._charges.exceeded(turn, excess)
        self._gpu.turn_over(self.id, self._finished(turn), *changed)
        if warning := self._charges.warning(turn, excess):
            warnings.warn(f"job {self.name}: {warning}", MemoryWarning, stacklevel=2)
        if changed and self._gpu.failed(self.id):
            self._gpu.backend.renew(turn.lane)
            raise JobEnded(self._gpu.ended(self.id))

    def _end_alone(self, error: BaseException | None) -> None:
        alone = self._alone
        self._alone = None
        assert alone is not None
        if error is not None:
            alone.__exit__(type(error), error, error.__traceback__)
            return
        alone.__exit__(None, None, None)
        found = self._reading()
        persistent = self._gpu.estimate(self.id, self._owned, found.after)
        needs = self._charges.measured(persistent, found, self._about[0])
        if needs is not None:
            self._arrive(needs)

    def _arrive(self, needs: Needs, *events: Event) -> None:
        self._arrived = True
        self._charges.known(needs)
        self._gpu.arrive(Job(self.id, self.name, *needs, *self._about), self._charges, *events)

    def _check_thread(self) -> None:
        """Refuse other threads, and iterations inside others: threads would wait for one another for ever."""
        self._check_owner()
        inside: LiveJob | None = getattr(self._gpu.inside, "job", None)
        if inside is self:
            raise OutOfTurn(f"job {self.name}: an iteration begins inside another one")
        if inside is not None:
            raise OutOfTurn(
                f"job {self.name}: this thread is in an iteration of job {inside.name}; where one loop has "
                "several models, make it one job, and wrap its iterations in `with job.iteration():`"
            )

    def _check_owner(self) -> None:
        if get_ident() != self._thread:
            raise OutOfTurn(
                f"job {self.name}: it is used by the thread {current_thread().name!r}, "
                "and belongs to the one that made it"
            )


class _Iteration:
    """An iteration is a block of a job's turn: a class and no generator, as that would be slower."""

    __slots__ = ("_job",)

    def __init__(self, job: LiveJob) -> None:
        self._job = job

    def __enter__(self) -> None:
        self._job.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._job.end(error)


class SharedGpu:
    """A shared GPU gives live jobs their turns, by an iteration policy."""

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
        self.inside = local()  # a thread's job, while it is in an iteration
        self._state = DeviceState(backend.capacity, resident=True)
        self._engine = Engine(self._state, policy)
        self._record = record
        lock = RLock()
        self._changed = Condition(lock)
        self._timers = TimerThread(lock, self.now, self._timers_due)
        self._grants = jobs.TurnGrants()
        self._estimates = jobs.PersistentEstimates()
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
        about = jobs.checked(name, needs, iterations, priority, demand)
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
