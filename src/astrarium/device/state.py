"""The books of the device level say which jobs wait, which are on the GPU, and whose iteration runs in which
lane.

A job is in exactly one of: waiting, admitted (its persistent memory is on the GPU), ended. In a lane one
iteration runs at a time. Run numbers identify late news, which is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from astrarium.core.errors import BrokenBooks, InvalidAction
from astrarium.core.policy import Handlers, LevelState
from astrarium.core.quantities import Time
from astrarium.device import contract
from astrarium.device.contract import Job
from astrarium.device.credits import Credits
from astrarium.device.lanes import Layout
from astrarium.device.ledger import JobRow, Ledger, Outcome

NOT_WANTED = "its owner wants it no more"


@dataclass
class RunningIteration:
    run: int
    job: int


class DeviceState(LevelState[contract.Event, contract.Action]):
    """*capacity* is the GPU's memory in bytes. Where jobs are *resident*, as live ones are, waiting jobs have
    their persistent memory on the GPU already."""

    level = "device"

    def __init__(self, capacity: int, ledger: Ledger | None = None, resident: bool = False) -> None:
        self.layout = Layout(capacity)
        self._resident = resident
        self.ledger = ledger or Ledger()
        self.waiting: dict[int, Job] = {}  # in order of arrival
        self.admitted: dict[int, Job] = {}  # in order of admission
        self.running: dict[int, RunningIteration] = {}  # by lane
        self.ready: set[int] = set()  # jobs that want a turn
        self._leaving: dict[int, tuple[Outcome, str]] = {}  # jobs that end with the iteration that runs
        self._credits = Credits(self.ledger)
        self._runs = 0
        self._last: dict[int, int] = {}  # by lane: the job of its last iteration
        events: Handlers = {
            contract.JobArrived: self._arrived,
            contract.IterationWanted: self._want,
            contract.IterationFinished: self._finished,
            contract.IterationFailed: self._failed,
            contract.NeedsChanged: self._needs_changed,
            contract.JobWithdrawn: self._withdraw,
        }
        actions: Handlers = {
            contract.Admit: self._admit,
            contract.Refuse: self._refuse,
            contract.RunIteration: self._run,
        }
        super().__init__(events, actions)

    def close(self, now: Time) -> None:
        for job in [*self.waiting, *self.admitted]:
            self._end(now, job, Outcome.WITHDRAWN, "the run ended before the job did")
        self.running.clear()
        self.layout.settle()

    def row(self, job: int) -> JobRow:
        return self.ledger.rows[job]

    def remaining(self, job: Job) -> Time:
        """Return the job's remaining time alone on the GPU."""
        return job.iteration * (job.iterations - self.row(job.id).done)

    def claim(self, job: Job) -> int:
        """Return the persistent memory that must be free when a waiting job is admitted: its own, and
        what other waiting jobs have there already. A job that would be alone needs its own only: one has
        to begin."""
        if self._resident and self.layout.lanes:
            return sum(other.persistent for other in self.waiting.values())
        return job.persistent

    def credit(self, job: int) -> Time:
        """Return what a job is taken to have had beside its service: when it comes, or comes back, as much as
        the least served of the jobs that use the GPU."""
        return self._credits.of(job)

    def idle(self, lane: int) -> bool:
        return lane not in self.running

    def _arrived(self, now: Time, event: contract.JobArrived) -> None:
        self.waiting[event.job.id] = event.job
        self.ledger.arrived(now, event.job).done = event.done
        if event.done >= event.job.iterations:
            self._end(now, event.job.id, Outcome.FINISHED)

    def _want(self, now: Time, event: contract.IterationWanted) -> None:
        if event.job in self.admitted or event.job in self.waiting:
            if event.job in self.admitted and event.job not in self._using():
                self._credits.came_back(event.job)
            self.ready.add(event.job)

    def _finished(self, now: Time, event: contract.IterationFinished) -> None:
        if self._take(event.job, event.run) is None:
            return
        row = self.row(event.job)
        row.done += 1
        row.service += now - event.started
        self._credits.ran(self._using() | {event.job})
        if row.done >= row.job.iterations:
            self._end(now, event.job, Outcome.FINISHED)
        elif event.job in self._leaving:
            self._end(now, event.job, *self._leaving[event.job])
        self.layout.settle(self.running)

    def _failed(self, now: Time, event: contract.IterationFailed) -> None:
        if self._take(event.job, event.run) is not None:
            self._end(now, event.job, Outcome.FAILED, event.error)
            self.layout.settle(self.running)

    def _needs_changed(self, now: Time, event: contract.NeedsChanged) -> None:
        """Change a job's needs; a job ends for which they are too large, and others keep what they have."""
        job = event.job
        layout = self.layout
        home = self.admitted if job in self.admitted else self.waiting
        if job not in home:
            return
        if home is self.admitted:
            fits = layout.change(job, event.persistent, event.ephemeral, self.running)
        else:
            fits = event.persistent + event.ephemeral <= layout.capacity
        if not fits:
            self._leave(now, job, Outcome.FAILED, _too_large(event, layout.free))
            return
        fields = {"persistent": event.persistent, "ephemeral": event.ephemeral}
        home[job] = self.row(job).job = msgspec.structs.replace(home[job], **fields)
        layout.settle(self.running)

    def _withdraw(self, now: Time, event: contract.JobWithdrawn) -> None:
        outcome = Outcome.FAILED if event.error else Outcome.WITHDRAWN
        if event.job in self.waiting or event.job in self.admitted:
            self._leave(now, event.job, outcome, event.error or NOT_WANTED)

    def _leave(self, now: Time, job: int, outcome: Outcome, reason: str) -> None:
        """End a job; a running iteration is finished first."""
        if any(running.job == job for running in self.running.values()):
            self._leaving[job] = (outcome, reason)
        else:
            self._end(now, job, outcome, reason)
            self.layout.settle(self.running)

    def _admit(self, now: Time, action: contract.Admit) -> None:
        job = self._waiting(action, action.job)
        layout = self.layout
        claim = self.claim(job)
        if action.lane == contract.NEW_LANE:
            if claim + job.ephemeral > layout.free:
                raise InvalidAction(f"{action!r}: there is no room for another lane ({layout.free} bytes)")
            layout.open(job.id, job.persistent, job.ephemeral)
        else:
            lane = layout.lane(action.lane)
            if lane is None or not layout.fits(lane, claim, job.ephemeral, self.running):
                raise InvalidAction(f"{action!r}: it does not fit into that lane now ({layout.free} bytes)")
            layout.join(lane, job.id, job.persistent, job.ephemeral)
        self._credits.came(job.id)
        self.admitted[job.id] = self.waiting.pop(job.id)
        self.row(job.id).admitted = now

    def _refuse(self, now: Time, action: contract.Refuse) -> None:
        self._waiting(action, action.job)
        self._end(now, action.job, Outcome.REFUSED, action.reason)

    def _run(self, now: Time, action: contract.RunIteration) -> None:
        lane = self.layout.lane_of(action.job)
        if lane is None or not self.idle(lane.id) or action.job not in self.ready:
            raise InvalidAction(f"{action!r}: it is not on the GPU, not ready, or its lane is not free")
        self.ready.discard(action.job)
        self.running[lane.id] = RunningIteration(self._runs, action.job)
        self._runs += 1
        row = self.row(action.job)
        row.started = now if row.started < 0 else row.started
        row.switches += self._last.get(lane.id, action.job) != action.job
        self._last[lane.id] = action.job

    def validate(self) -> None:
        if not self.layout.safe():
            raise BrokenBooks("lanes and persistent memory do not fit into the GPU together")
        if not self.ready <= self.admitted.keys() | self.waiting.keys():
            raise BrokenBooks("a job that has ended wants a turn")
        if set(self.layout.persistent) != set(self.admitted) or self.waiting.keys() & self.admitted.keys():
            raise BrokenBooks("a job is in two places, or its memory is")
        for lane, running in self.running.items():
            home = self.layout.lane_of(running.job)
            if home is None or home.id != lane:
                raise BrokenBooks(f"job {running.job} runs in lane {lane}, which is not its own")

    def _waiting(self, action: contract.Action, job: int) -> Job:
        if job not in self.waiting:
            raise InvalidAction(f"{action!r}: job {job} is not waiting")
        return self.waiting[job]

    def _take(self, job: int, run: int) -> int | None:
        """Return the lane that this iteration ran in; None where it is not running any more."""
        for lane, running in self.running.items():
            if running.run == run and running.job == job:
                del self.running[lane]
                return lane
        return None

    def _using(self) -> set[int]:
        """Return the jobs that run, or want to."""
        return {running.job for running in self.running.values()} | (self.ready & self.admitted.keys())

    def _end(self, now: Time, job: int, outcome: Outcome, reason: str = "") -> None:
        self.ledger.end(now, job, outcome, reason)
        self._leaving.pop(job, None)
        self.ready.discard(job)
        self._credits.left(job)
        if job in self.admitted:
            del self.admitted[job]
            self.layout.leave(job)
        self.waiting.pop(job, None)


def _too_large(event: contract.NeedsChanged, free: int) -> str:
    return (
        f"it needs more than was known of it ({event.persistent} bytes that stay, "
        f"{event.ephemeral} for an iteration), and the GPU has {free} left"
    )
