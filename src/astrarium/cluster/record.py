"""A finished run: who held what when and why, what ran where, and how full the cluster was."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from astrarium.cluster import contract
from astrarium.cluster.auction.tally import AuctionTally
from astrarium.cluster.slowdowns import Slowdowns
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.policy import SetTimer
from astrarium.core.quantities import Time
from astrarium.core.trace import Step

OF_AN_APP = frozenset(
    (contract.LeaseExpired, contract.JobStopped, contract.JobFinished, contract.AppWithdrawn)
)  # whose GPUs or runs may change
MANY = 8  # leases of an app that are remembered before those that have ended are looked for


class Held(NamedTuple):
    """A GPU in the hands of one app, over renewals of its lease."""

    app: int
    gpu: int
    start: Time
    end: Time


class Ran(NamedTuple):
    """A job ran on these GPUs between two instants. *score*: 1 over how much slower it was than with all of
    its GPUs close together."""

    app: int
    phase: int
    job: int
    gpus: tuple[int, ...]
    start: Time
    end: Time
    score: float


class Decision(NamedTuple):
    """GPUs given until then; or taken back or lost, where *until* is -1. *leases* of the same GPUs that
    followed one another for the same reason are one decision."""

    at: Time
    app: int
    gpus: tuple[int, ...]
    until: Time
    why: str
    leases: int = 1


class FillLevel(NamedTuple):
    """How full the cluster is from an instant until the next. *busy*: GPUs on which something runs;
    *waiting*: apps that hold nothing."""

    at: Time
    gpus: int
    leased: int
    busy: int
    apps: int
    waiting: int


@dataclass(frozen=True)
class ClusterRecord:
    """A record holds all of a finished run that reports need; the watch fills it in step by step."""

    policy: str = ""
    rows: list[AppRow] = field(default_factory=list)  # in order of arrival
    held: list[Held] = field(default_factory=list)
    ran: list[Ran] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    levels: list[FillLevel] = field(default_factory=list)
    machines: dict[int, int] = field(default_factory=dict)  # the machine of each GPU that there ever was
    end: Time = 0
    auctions: AuctionTally | None = None  # None: the policy holds none
    racks: dict[int, int] = field(default_factory=dict)  # of each machine that there ever was


@dataclass
class _Open:
    """What an app holds and runs just now, which becomes part of the record when it ends."""

    gpus: dict[int, Time] = field(default_factory=dict)
    runs: dict[int, Ran] = field(default_factory=dict)  # by job, their ends unknown
    numbers: dict[int, int] = field(default_factory=dict)  # of these runs


def machine_died(event: contract.MachineLost) -> str:
    return f"machine {event.machine} died"


def gpu_failed(event: contract.GpuFailed) -> str:
    return f"GPU {event.gpu} is out of use{f': {event.why}' if event.why else ''}"


class Watch:
    """The watch hears every step of a run, after the books, and makes the record of it; *slowdowns* is the
    truth."""

    def __init__(self, state: ClusterState, slowdowns: Slowdowns) -> None:
        self._state = state
        self._slowdowns = slowdowns
        self._open: dict[int, _Open] = {}
        self._busy = 0
        self._holders = set[int]()
        self._latest: dict[int, dict[frozenset[int], int]] = {}  # where an app's last grant of GPUs stands
        self._seen = ClusterRecord()

    def __call__(self, step: Step) -> None:
        now = step.now
        touched = dict[int, None]()
        for event in step.events:
            if type(event) in OF_AN_APP:
                touched[event.app] = None
            else:
                touched.update(dict.fromkeys(self._named(now, event)))
        for action in step.actions:
            if type(action) is contract.Grant:
                self._granted(now, action)
            elif type(action) is contract.Revoke:
                self._revoked(now, action)
            if type(action) is not SetTimer:
                touched[action.app] = None
        for app in touched:
            self._look(now, app)
        self._note(now)

    def _granted(self, now: Time, action: contract.Grant) -> None:
        """Most leases renew others."""
        latest = self._latest.setdefault(action.app, {})
        gpus = frozenset(action.gpus)
        place = latest.get(gpus, -1)
        last = self._seen.decisions[place] if place >= 0 else None
        if last is not None and (last.until, last.why) == (now, action.why):
            self._seen.decisions[place] = last._replace(until=action.until, leases=last.leases + 1)
        else:
            if len(latest) >= MANY:  # what has ended is renewed no more
                self._latest[action.app] = latest = {
                    own: there for own, there in latest.items() if self._seen.decisions[there].until >= now
                }
            latest[gpus] = len(self._seen.decisions)
            self._seen.decisions.append(Decision(now, action.app, action.gpus, action.until, action.why))

    def _revoked(self, now: Time, action: contract.Revoke) -> None:
        self._seen.decisions.append(Decision(now, action.app, action.gpus, -1, action.why))
        latest = self._latest.get(action.app, {})
        for gpus in [own for own in latest if not own.isdisjoint(action.gpus)]:
            del latest[gpus]

    def _lost(self, now: Time, gone: Container[int], why: str) -> None:
        """Note the loss as a decision: nobody takes it, but those who had GPUs there want to know."""
        for app, known in self._open.items():
            gpus = tuple(sorted(gpu for gpu in known.gpus if gpu in gone))
            if gpus:
                self._seen.decisions.append(Decision(now, app, gpus, -1, why))

    def _named(self, now: Time, event: Any) -> Iterable[int]:
        """Apps whose GPUs or runs it may change."""
        if isinstance(event, contract.AppArrived):
            return (event.app.id,)
        if isinstance(event, contract.MachineJoined):
            gpus = self._state.floor.all_of(event.machine)
            self._seen.machines.update(dict.fromkeys(gpus, event.machine.id))
            self._seen.racks[event.machine.id] = event.machine.rack
        if isinstance(event, contract.MachineLost):
            gone = {gpu for gpu, machine in self._seen.machines.items() if machine == event.machine}
            self._lost(now, gone, machine_died(event))
            return tuple(self._open)
        if isinstance(event, contract.GpuFailed):
            self._lost(now, (event.gpu,), gpu_failed(event))
            return tuple(self._open)
        return ()

    def record(
        self, policy: str, rows: Iterable[AppRow], end: Time, auctions: AuctionTally | None = None
    ) -> ClusterRecord:
        """All that is still open ends with the run."""
        for app in list(self._open):
            self._close(end, app)
        held = sorted(self._seen.held, key=lambda lease: (lease.start, lease.gpu))
        ran = sorted(self._seen.ran, key=lambda run: (run.start, run.app, run.job))
        record = replace(self._seen, policy=policy, rows=list(rows), end=end, auctions=auctions)
        return replace(record, held=held, ran=ran)

    def _look(self, now: Time, app: int) -> None:
        row = self._state.apps.get(app)
        if row is None:
            self._close(now, app)
            return
        known = self._open.get(app)
        if known is None:
            known = self._open[app] = _Open()
        if known.gpus.keys() != row.leases.keys():
            for gpu in [gpu for gpu in known.gpus if gpu not in row.leases]:
                self._seen.held.append(Held(app, gpu, known.gpus.pop(gpu), now))
            for gpu in row.leases:
                known.gpus.setdefault(gpu, now)
            (self._holders.add if known.gpus else self._holders.discard)(app)
        self._look_at_runs(now, row, known)

    def _look_at_runs(self, now: Time, row: AppRow, known: _Open) -> None:
        over = [job for job, run in known.runs.items() if not _goes_on(row, run, known.numbers[job])]
        for job in over:
            self._end(now, known, job)
        for job, job_row in row.jobs.items():
            if job_row.gpus and job not in known.runs:
                score = 1.0 / self._slowdown(job_row.job.model, job_row.gpus)
                known.runs[job] = Ran(row.app.id, row.phase, job, job_row.gpus, now, now, score)
                known.numbers[job] = job_row.run
                self._busy += len(job_row.gpus)

    def _slowdown(self, model: str, gpus: tuple[int, ...]) -> float:
        floor = self._state.floor
        return self._slowdowns.of(model, floor.network(gpus), floor.spread(gpus))

    def _end(self, now: Time, known: _Open, job: int) -> None:
        run = known.runs.pop(job)
        self._busy -= len(run.gpus)
        if now > run.start:
            self._seen.ran.append(run._replace(end=now))

    def _close(self, now: Time, app: int) -> None:
        known = self._open.pop(app, None)
        self._holders.discard(app)
        self._latest.pop(app, None)
        if known is not None:
            ended = (Held(app, gpu, since, now) for gpu, since in known.gpus.items() if now > since)
            self._seen.held.extend(ended)
            for job in list(known.runs):
                self._end(now, known, job)

    def _note(self, now: Time) -> None:
        state = self._state
        levels = self._seen.levels
        apps = len(state.apps)
        level = (state.floor.size, len(state.holder), self._busy, apps, apps - len(self._holders))
        if levels and levels[-1].at == now:
            levels.pop()
        if not levels or levels[-1][1:] != level:
            levels.append(FillLevel(now, *level))


def _goes_on(row: AppRow, run: Ran, number: int) -> bool:
    job = row.jobs.get(run.job)
    return job is not None and job.run == number and job.gpus == run.gpus and row.phase == run.phase
