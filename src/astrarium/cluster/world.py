"""The simulated world of the cluster level says how fast jobs run where they are, and when leases end.

A run begins with *startup*, in which nothing is done (a checkpoint is read, processes start). A job that is
stopped loses nothing; a job on a machine that dies loses what was done since its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from astrarium.cluster import contract
from astrarium.cluster.machines import Floor
from astrarium.cluster.slowdowns import Slowdowns
from astrarium.cluster.state import ClusterState, JobRow
from astrarium.core.quantities import Time
from astrarium.run.simulate import World


class JobKey(NamedTuple):
    """A job of an app; jobs of different phases may have the same number."""

    app: int
    phase: int
    job: int


Later: TypeAlias = Iterator[tuple[Time, contract.Event]]  # what will happen, and when


@dataclass
class _Truth:
    """What a job had really done when its present run began to do something."""

    done: Time = 0
    pace: float = 0.0  # 0: it does not run
    since: Time = 0
    run: int = 0
    gpus: tuple[int, ...] = ()


class ClusterWorld(World[contract.Action, contract.Event, ClusterState]):
    """It plays what really happens in a simulation; *slowdowns* is the truth, and checkpoints are
    *checkpoints* apart. A run that has no more than *short* to go needs no startup: so it is in the simulator
    of Shockwave. Where jobs do not save when they are stopped (*saves*), they go back to their last
    checkpoint."""

    def __init__(
        self,
        slowdowns: Slowdowns | None = None,
        startup: Time = 0,
        checkpoints: Time = 0,
        short: Time = 0,
        saves: bool = True,
    ) -> None:
        self._slowdowns = slowdowns or Slowdowns()
        self._startup = startup
        self._checkpoints = checkpoints
        self._short = short
        self._saves = saves
        self._jobs: dict[JobKey, _Truth] = {}

    def consequences(self, now: Time, action: contract.Action, state: ClusterState) -> Later:
        if type(action) is contract.Grant:
            yield action.until, contract.LeaseExpired(action.app, action.gpus, action.until)
        elif type(action) is contract.Run:
            yield from self._run(now, action, state)
        elif type(action) is contract.Stop:
            yield from self._stop(now, action, state)

    def is_void(self, event: contract.Event, state: ClusterState) -> bool:
        """Say whether a run that was to end now was stopped before, or a lease renewed or given back."""
        if type(event) is contract.JobFinished:
            app = state.apps.get(event.app)
            job = app.jobs.get(event.job) if app is not None else None
            return job is None or job.run != event.run or not job.gpus
        if type(event) is contract.LeaseExpired:
            app = state.apps.get(event.app)
            return app is None or all(app.leases.get(gpu) != event.until for gpu in event.gpus)
        return False

    def aftermath(self, now: Time, event: contract.Event, state: ClusterState) -> Later:
        """Stop what ran on a machine that died or a GPU that was lost; the books know of the GPUs before."""
        if type(event) is contract.MachineLost:
            machine = event.machine
            floor = state.floor
            yield from self._lost(now, lambda gpu: floor.machine_of(gpu) == machine, state)
        elif type(event) is contract.GpuFailed and event.lost:
            yield from self._lost(now, event.gpu.__eq__, state)

    def _lost(self, now: Time, gone: Callable[[int], bool], state: ClusterState) -> Later:
        for (app, phase, job), truth in self._jobs.items():
            known = state.apps.get(app)
            if truth.pace and known is not None and known.phase == phase and any(map(gone, truth.gpus)):
                self._bank(now, truth, lost=True)
                row = known.jobs[job]
                if row.run == truth.run and not row.finished:
                    yield now, contract.JobStopped(app, job, truth.run, truth.done)
                elif row.run != truth.run:  # it goes on with other GPUs, from less than the books believe
                    yield now, contract.JobProgressed(app, job, row.run, truth.done)

    def take_over(self, now: Time, state: ClusterState) -> Later:
        """Take jobs as the books have them, in the middle of a run, and say when those that run will end."""
        for app, row in state.apps.items():
            for number, job in row.jobs.items():
                truth = _Truth(state.done(now, job), run=job.run)
                self._jobs[JobKey(app, row.phase, number)] = truth
                if job.gpus:
                    truth.since = max(now, job.since)
                    truth.pace = self._pace(job, job.gpus, state.floor)
                    truth.gpus = job.gpus
                    takes = max(1, round(max(0, job.job.work - truth.done) / truth.pace))
                    yield truth.since + takes, contract.JobFinished(app, number, job.run)

    def _run(self, now: Time, action: contract.Run, state: ClusterState) -> Later:
        app = state.apps[action.app]
        job = app.jobs[action.job]
        floor = state.floor
        truth = self._jobs.setdefault(JobKey(action.app, app.phase, action.job), _Truth())
        if truth.pace:  # it moves
            self._bank(now, truth, lost=not self._saves)
            yield now, contract.JobProgressed(action.app, action.job, job.run, truth.done)
        truth.run = job.run
        truth.pace = self._pace(job, action.gpus, floor)
        truth.gpus = action.gpus
        takes = max(1, round(max(0, job.job.work - truth.done) / truth.pace))
        truth.since = now + (self._startup if takes > self._short else 0)
        yield truth.since + takes, contract.JobFinished(action.app, action.job, job.run)

    def _stop(self, now: Time, action: contract.Stop, state: ClusterState) -> Later:
        app = state.apps[action.app]
        truth = self._jobs[JobKey(action.app, app.phase, action.job)]
        self._bank(now, truth, lost=not self._saves)
        yield now, contract.JobStopped(action.app, action.job, truth.run, truth.done)

    def _bank(self, now: Time, truth: _Truth, lost: bool = False) -> None:
        worked = max(0, now - truth.since)
        if lost and self._checkpoints:
            worked -= worked % self._checkpoints
        truth.done += int(worked * truth.pace)
        truth.pace = 0.0
        truth.since = now

    def _pace(self, row: JobRow, gpus: tuple[int, ...], floor: Floor) -> float:
        slowdown = self._slowdowns.of(row.job.model, floor.network(gpus), floor.spread(gpus))
        return min(len(gpus), row.job.most) / slowdown
