"""The books of the cluster level say who is there, who holds which GPU until when, and what runs where.

A GPU is free or leased to one app. A job runs on GPUs that its app holds, on as many as it can use; between
two decisions a run may stand on a lease that has just expired, and is stopped or its lease renewed in the
same step. Late news is recognized by run numbers and instants, and ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from astrarium.cluster import contract
from astrarium.cluster.contract import App, Job
from astrarium.cluster.machines import Floor, Spread
from astrarium.cluster.slowdowns import JobProgress, Slowdowns
from astrarium.core.errors import BrokenBooks, InvalidAction
from astrarium.core.policy import Handlers, LevelState
from astrarium.core.quantities import Time


class Outcome(IntEnum):
    OPEN = 0
    FINISHED = 1
    FAILED = 2
    WITHDRAWN = 3


@dataclass(eq=False)
class JobRow:
    """A row of the state: *done* of its work is known to be done, and it runs on *gpus*, as of *since*."""

    job: Job
    done: Time = 0
    run: int = 0  # counts its runs
    gpus: tuple[int, ...] = ()  # none: it does not run
    since: Time = 0  # when the present run began to make progress, or was last heard of
    finished: bool = False


class Failure(NamedTuple):
    """Why a GPU is out of use, and since when."""

    why: str
    since: Time


class Contention(NamedTuple):
    """How many *apps* there are, and how many *gpus* they could use: on the mean, or summed up over time."""

    apps: float
    gpus: float


NOBODY = Contention(0.0, 0.0)


@dataclass(eq=False)
class AppRow:
    """A row of the state, kept after the app has ended. Instants are -1 until they come; *service* is the GPU
    time leased to it."""

    app: App
    arrived: Time
    jobs: dict[int, JobRow]  # of the present phase
    phase: int = 0
    leases: dict[int, Time] = field(default_factory=dict)  # until when, by GPU
    started: Time = -1
    ended: Time = -1
    outcome: Outcome = Outcome.OPEN
    reason: str = ""
    service: Time = 0  # up to *counted*
    counted: Time = 0
    ran: Time = 0  # GPU time in which its jobs made progress, in runs that have ended
    crowd: Contention = NOBODY  # the integral of contention at its arrival
    contention: Contention = NOBODY  # the mean in its life, when it has ended

    @property
    def open(self) -> bool:
        return self.outcome is Outcome.OPEN

    def unfinished(self) -> list[JobRow]:
        return [row for row in self.jobs.values() if not row.finished]


@dataclass
class Ledger:
    rows: dict[int, AppRow] = field(default_factory=dict)


def since(now: Time, job: JobRow) -> Time:
    """Return the GPU time in which a job made progress since it was last heard of."""
    return len(job.gpus) * max(0, now - job.since)


NOT_WANTED = "its owner wants it no more"


class ClusterState(LevelState[contract.Event, contract.Action]):
    """The state holds the books of all apps: leases, runs, and what is believed of them.

    *slowdowns* is what is believed, and learnt from runs; *startup* how long a run is taken to need before it
    gets anywhere, *checkpoints* how far apart they are (0: all is saved that is done).
    """

    level = "cluster"

    def __init__(
        self,
        slowdowns: Slowdowns | None = None,
        startup: Time = 0,
        ledger: Ledger | None = None,
        checkpoints: Time = 0,
    ) -> None:
        self.floor = Floor()
        self.slowdowns = slowdowns or Slowdowns()
        self.startup = startup
        self._checkpoints = checkpoints
        self.ledger = ledger or Ledger()
        self.apps: dict[int, AppRow] = {}  # those that are there, in order of arrival
        self.holder: dict[int, int] = {}  # the app that has a GPU
        self.free: set[int] = set()
        self.failed: dict[int, Failure] = {}  # GPUs of machines that are there, and do not work
        self.unsettled: dict[int, None] = {}  # apps for which what runs is to be arranged anew
        # the integral of contention until then
        self._crowd = NOBODY
        self._crowd_at = 0
        self._asked = 0  # GPUs that all apps could use
        events: Handlers = {
            contract.MachineJoined: self._joined,
            contract.MachineLost: self._lost,
            contract.GpuFailed: self._gpu_failed,
            contract.GpuRepaired: self._gpu_repaired,
            contract.AppArrived: self._arrived,
            contract.AppWithdrawn: self._withdrawn,
            contract.LeaseExpired: self._expired,
            contract.JobStopped: self._stopped,
            contract.JobProgressed: self._progressed,
            contract.JobFinished: self._finished,
        }
        actions: Handlers = {
            contract.Grant: self._grant,
            contract.Revoke: self._revoke,
            contract.Run: self._run,
            contract.Stop: self._stop,
            contract.Withdraw: self._withdraw,
        }
        super().__init__(events, actions)

    def close(self, now: Time) -> None:
        for app in list(self.apps):
            self._end(now, app, Outcome.WITHDRAWN, "the run ended before the app did")

    def pace(self, job: Job, gpus: Sequence[int]) -> float:
        """Return the work that a job is believed to do in a unit of time on these GPUs."""
        if len(gpus) < job.least:
            return 0.0
        spread = self.floor.spread(gpus)
        network = self.floor.network(gpus)
        return min(len(gpus), job.most) / self.slowdowns.of(job.model, network, spread)

    def lies_well(self, job: Job, gpus: Sequence[int]) -> bool:
        """Return whether a job is believed to be as fast on these GPUs as on any others, if as many."""
        network = self.floor.network(gpus)
        floor = self.floor
        here = self.slowdowns.of(job.model, network, floor.spread(gpus))
        if here > 1.0 and not floor.one_network():
            return False
        least = Spread.SLOT if here <= 1.0 else floor.closest_spread(len(gpus))
        return all(
            here <= self.slowdowns.of(job.model, network, spread) for spread in Spread if spread >= least
        )

    def done(self, now: Time, row: JobRow) -> Time:
        """Return how much of a job's work is believed to be done; while it runs, never all of it."""
        if not row.gpus:
            return row.done
        done = row.done + round(max(0, now - row.since) * self.pace(row.job, row.gpus))
        return min(done, max(row.done, row.job.forecast - 1))

    def unsaved(self, now: Time, row: JobRow) -> Time:
        """Return how long a job has run since its last checkpoint, as far as is known."""
        ran = max(0, now - row.since) if row.gpus else 0
        return ran % self._checkpoints if self._checkpoints else 0

    def service(self, now: Time, row: AppRow) -> Time:
        """Return the GPU time that was leased to an app until now."""
        return row.service + (now - row.counted) * len(row.leases)

    def ran(self, now: Time, row: AppRow) -> Time:
        """Return the GPU time in which an app's jobs made progress: without startups and idle GPUs."""
        ran = row.ran
        for job in row.jobs.values():
            if job.gpus:
                ran += since(now, job)
        return ran

    def contention(self, now: Time, row: AppRow) -> Contention:
        """Return the mean contention in the cluster since an app came."""
        lived = now - row.arrived
        (apps, gpus) = self._crowd_until(now)
        if not lived:
            return Contention(len(self.apps), self._asked)
        return Contention((apps - row.crowd.apps) / lived, (gpus - row.crowd.gpus) / lived)

    def _crowd_until(self, now: Time) -> Contention:
        (apps, gpus), more = self._crowd, now - self._crowd_at
        return Contention(apps + len(self.apps) * more, gpus + self._asked * more)

    def _ask(self, now: Time, more: int) -> None:
        """Note that apps come, go or could use more GPUs from now on."""
        self._crowd = self._crowd_until(now)
        self._crowd_at = now
        self._asked = self._asked + more

    def _joined(self, now: Time, event: contract.MachineJoined) -> None:
        self.free.update(self.floor.join(event.machine))

    def _lost(self, now: Time, event: contract.MachineLost) -> None:
        self._lose(now, self.floor.leave(event.machine))
        self.failed = {gpu: failure for gpu, failure in self.failed.items() if self.floor.has(gpu)}

    def _lose(self, now: Time, gpus: Sequence[int]) -> None:
        self.free.difference_update(gpus)
        for gpu in gpus:
            if gpu in self.holder:
                self._take(now, self.apps[self.holder[gpu]], (gpu,), back=False)

    def _gpu_failed(self, now: Time, event: contract.GpuFailed) -> None:
        if self.floor.fail(event.gpu):
            self.failed[event.gpu] = Failure(event.why, now)
            self._lose(now, (event.gpu,))

    def _gpu_repaired(self, now: Time, event: contract.GpuRepaired) -> None:
        if self.failed.pop(event.gpu, None) is not None:
            self.floor.repair(event.gpu)
            self.free.add(event.gpu)

    def _arrived(self, now: Time, event: contract.AppArrived) -> None:
        app = event.app
        self._ask(now, sum(job.most for job in app.phases[0]))
        row = AppRow(app, now, _phase_rows(app.phases[0]), counted=now, crowd=self._crowd)
        self.apps[app.id] = self.ledger.rows[app.id] = row
        self.unsettled[app.id] = None

    def _withdrawn(self, now: Time, event: contract.AppWithdrawn) -> None:
        if event.app in self.apps:
            failed = bool(event.error)
            self._end(
                now, event.app, Outcome.FAILED if failed else Outcome.WITHDRAWN, event.error or NOT_WANTED
            )

    def _expired(self, now: Time, event: contract.LeaseExpired) -> None:
        row = self.apps.get(event.app)
        if row is not None:
            self._take(now, row, [gpu for gpu in event.gpus if row.leases.get(gpu) == event.until])

    def _stopped(self, now: Time, event: contract.JobStopped) -> None:
        """The books have the run as stopped already, unless it was lost."""
        row = self._job(event.app, event.job)
        if row is None or row.run != event.run:
            return
        row.done = event.done
        if row.gpus:
            self._end_run(now, event.app, row)
            self.unsettled[event.app] = None

    def _progressed(self, now: Time, event: contract.JobProgressed) -> None:
        row = self._job(event.app, event.job)
        if row is not None and row.run == event.run and row.gpus:
            self._learn(now, event.app, row, event.done)
            self.apps[event.app].ran += since(now, row)
            row.done = event.done
            row.since = now

    def _finished(self, now: Time, event: contract.JobFinished) -> None:
        row = self._job(event.app, event.job)
        if row is None or row.run != event.run or not (row.gpus or event.late):  # it was stopped before
            return
        self._learn(now, event.app, row, row.job.work, ended=True)
        self._end_run(now, event.app, row)
        row.done = row.job.work
        row.finished = True
        self._ask(now, -row.job.most)
        self.unsettled[event.app] = None
        self._next_phase(now, self.apps[event.app])

    def _grant(self, now: Time, action: contract.Grant) -> None:
        row = self._open(action)
        for gpu in action.gpus:
            if gpu not in self.free and self.holder.get(gpu) != action.app:
                raise InvalidAction(f"{action!r}: GPU {gpu} is not free")
        if action.until <= now or not action.gpus:
            raise InvalidAction(f"{action!r}: a lease is of some GPUs, and ends later than now ({now})")
        self._count(now, row)
        for gpu in action.gpus:
            row.leases[gpu] = action.until
            self.holder[gpu] = action.app
        self.free.difference_update(action.gpus)
        row.started = now if row.started < 0 else row.started
        self.unsettled[action.app] = None

    def _revoke(self, now: Time, action: contract.Revoke) -> None:
        row = self._open(action)
        if any(gpu not in row.leases for gpu in action.gpus):
            raise InvalidAction(f"{action!r}: the app does not have all of them")
        self._take(now, row, action.gpus)

    def _run(self, now: Time, action: contract.Run) -> None:
        row = self._open(action)
        job = self._job(action.app, action.job)
        if job is None or job.finished:
            raise InvalidAction(f"{action!r}: there is no such job, or it has ended")
        others = {gpu for other in row.jobs.values() if other is not job for gpu in other.gpus}
        if any(gpu not in row.leases or gpu in others for gpu in action.gpus):
            raise InvalidAction(f"{action!r}: not all of them are the app's to use")
        if not job.job.least <= len(action.gpus) <= job.job.most:
            raise InvalidAction(f"{action!r}: it runs on {job.job.least} to {job.job.most} GPUs")
        job.done = self.done(now, job)
        self._end_run(now, action.app, job)
        job.gpus = action.gpus
        job.since = now + self.startup
        job.run = job.run + 1

    def _stop(self, now: Time, action: contract.Stop) -> None:
        job = self._job(action.app, action.job)
        if job is None or not job.gpus:
            raise InvalidAction(f"{action!r}: it does not run")
        job.done = self.done(now, job)
        self._end_run(now, action.app, job)

    def _withdraw(self, now: Time, action: contract.Withdraw) -> None:
        self._open(action)
        self._end(now, action.app, Outcome.FAILED, action.error)

    def validate(self) -> None:
        held = {gpu: app for app, row in self.apps.items() for gpu in row.leases}
        if held != self.holder or self.free & held.keys():
            raise BrokenBooks("a GPU is leased twice, or both leased and free")
        if len(held) + len(self.free) != self.floor.size:
            raise BrokenBooks("a GPU is neither free nor leased")
        for row in self.apps.values():
            used = [gpu for job in row.jobs.values() for gpu in job.gpus]
            if len(used) != len(set(used)) or not set(used) <= row.leases.keys():
                raise BrokenBooks(f"app {row.app.name}: a job runs on a GPU that is another's")

    def _open(self, action: contract.Grant | contract.Revoke | contract.Run | contract.Withdraw) -> AppRow:
        if action.app not in self.apps:
            raise InvalidAction(f"{action!r}: there is no such app, or it has ended")
        return self.apps[action.app]

    def _job(self, app: int, job: int) -> JobRow | None:
        row = self.apps.get(app)
        return row.jobs.get(job) if row is not None else None

    def _take(self, now: Time, row: AppRow, gpus: Sequence[int], back: bool = True) -> None:
        self._count(now, row)
        for gpu in gpus:
            del row.leases[gpu], self.holder[gpu]
        if back:
            self.free.update(gpus)
        self.unsettled[row.app.id] = None

    def _next_phase(self, now: Time, row: AppRow) -> None:
        if row.unfinished():
            return
        row.phase += 1
        if row.phase == len(row.app.phases):
            self._end(now, row.app.id, Outcome.FINISHED)
        else:
            row.jobs = _phase_rows(row.app.phases[row.phase])
            self._ask(now, sum(job.most for job in row.app.phases[row.phase]))

    def _end(self, now: Time, app: int, outcome: Outcome, reason: str = "") -> None:
        row = self.apps[app]
        row.ran = self.ran(now, row)
        self._take(now, row, tuple(row.leases))
        row.contention = self.contention(now, row)
        self._ask(now, -sum(job.job.most for job in row.unfinished()))
        del self.apps[app]
        self.unsettled.pop(app, None)
        row.ended = now
        row.outcome = outcome
        row.reason = reason

    def _end_run(self, now: Time, app: int, job: JobRow) -> None:
        self.apps[app].ran += since(now, job)
        job.gpus = ()

    def _count(self, now: Time, row: AppRow) -> None:
        row.service = self.service(now, row)
        row.counted = now

    def _learn(self, now: Time, app: int, row: JobRow, done: Time, ended: bool = False) -> None:
        """Learn what being apart costs, from how far a job came since its last news."""
        if len(row.gpus) > 1:
            job = row.job
            (spread, network) = (self.floor.spread(row.gpus), self.floor.network(row.gpus))
            used = min(len(row.gpus), job.most)
            took = now - row.since
            came = done - row.done
            self.slowdowns.hear(
                JobProgress(
                    app, job.id, row.run, job.model, network, spread, used, now, took, done, came, ended
                )
            )


def _phase_rows(jobs: Sequence[Job]) -> dict[int, JobRow]:
    return {job.id: JobRow(job) for job in jobs}
