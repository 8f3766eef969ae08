"""Events tell people, one line each, what has happened on a live cluster.

They are made of each step and of the books after it, and written with the step: none is lost or told twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from astrarium.cluster import contract
from astrarium.cluster.live.memory import EndedRun
from astrarium.cluster.record import gpu_failed
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.quantities import Time, counted, to_seconds
from astrarium.core.trace import Step

GAINS = ("started", "resumed", "grown", "moved")
BROKEN = ("failed", "not found", "lost")  # how runs end that should not have


class ClusterEvent(msgspec.Struct, frozen=True):
    """It is stored once, shown by `cluster events`, and sent to hooks. *name*: of the app, or of the machine;
    *cause*: why an app was preempted, as one word: `expired`, `revoked` or `lost` with its machine or GPU."""

    at: Time
    kind: str
    name: str = ""
    team: str = ""
    app: int | None = None
    gpus: tuple[int, ...] = ()
    reason: str = ""
    cause: str = ""


class Chronicler:
    """Who turns steps into events remembers who held what, and which machines were there. A step that could
    not be written is heard again, and told again."""

    def __init__(self) -> None:
        self._held: dict[int, frozenset[int]] = {}  # by app
        self._machines: dict[int, tuple[str, tuple[int, ...]]] = {}  # names and GPUs
        self._step: Step | None = None  # the last one, and what was before it
        self._before = self._held, self._machines

    def read(self, state: ClusterState, names: Mapping[int, str]) -> None:
        """Begin with the books as they are, and the names of the machines that are there."""
        self._held = {app: frozenset(row.leases) for app, row in state.apps.items()}
        self._machines = {n: (name, state.floor.gpus_of.get(n, ())) for n, name in names.items()}

    def hear(
        self, step: Step, state: ClusterState, names: Mapping[int, str], ended: Iterable[EndedRun]
    ) -> list[ClusterEvent]:
        """Return what happened in a step, given the books after it."""
        if step is not self._step:
            self._step = step
            self._before = (self._held, self._machines)
        before = self._before[0]
        self._machines = dict(self._before[1])
        losses = _Losses(step, state, self._machines)
        events = [*self._of_machines(step, state, names), *_of_runs(step.now, state, ended)]
        self._held = {app: frozenset(row.leases) for app, row in state.apps.items()}
        came = [event.app.id for event in step.events if isinstance(event, contract.AppArrived)]
        for app in dict.fromkeys((*before, *came)):
            events += _of_app(step, state.ledger.rows[app], before.get(app), losses)
        return sorted(events, key=lambda event: event.kind in GAINS)  # losers before winners

    def _of_machines(
        self, step: Step, state: ClusterState, names: Mapping[int, str]
    ) -> Iterator[ClusterEvent]:
        for event in step.events:
            if isinstance(event, contract.MachineLost) and event.machine in self._machines:
                name, gpus = self._machines.pop(event.machine)
                yield ClusterEvent(step.now, "machine_lost", name, gpus=gpus)
            elif isinstance(event, contract.MachineJoined):
                name = names.get(event.machine.id, "")
                gpus = state.floor.gpus_of.get(event.machine.id, ())
                self._machines[event.machine.id] = name, tuple(gpus)
                yield ClusterEvent(step.now, "machine_joined", name, gpus=tuple(gpus))
            elif isinstance(event, contract.GpuFailed):
                yield ClusterEvent(
                    step.now, "gpu_failed", self._place(event.gpu), gpus=(event.gpu,), reason=event.why
                )
            elif isinstance(event, contract.GpuRepaired):
                yield ClusterEvent(step.now, "gpu_repaired", self._place(event.gpu), gpus=(event.gpu,))

    def _place(self, gpu: int) -> str:
        """Return a GPU as `cluster gpu` names it: its machine, and its number there."""
        places = (f"{name}:{gpus.index(gpu)}" for name, gpus in self._machines.values() if gpu in gpus)
        return next(places, str(gpu))


def _of_runs(now: Time, state: ClusterState, ended: Iterable[EndedRun]) -> Iterator[ClusterEvent]:
    for (app, job, run), status in ended:
        if status.ended in BROKEN:
            what = f"job {job}, run {run} {status.ended}{f': {status.error}' if status.error else ''}"
            yield _event(now, "run_failed", state.ledger.rows[app], status.gpus, what)


class _Losses:
    """Why apps lost GPUs in a step."""

    def __init__(
        self, step: Step, state: ClusterState, machines: Mapping[int, tuple[str, tuple[int, ...]]]
    ) -> None:
        self._dead = {
            gpu: machines[event.machine][0]
            for event in step.events
            if isinstance(event, contract.MachineLost) and event.machine in machines
            for gpu in machines[event.machine][1]
        }
        self._failed = {event.gpu: event for event in step.events if isinstance(event, contract.GpuFailed)}
        self._step = step
        self._names = {app: row.app.name for app, row in state.apps.items()}

    def of(self, app: int, gpus: frozenset[int]) -> tuple[str, str]:
        """Return the cause in one word, and the reason in a sentence."""
        dead = {self._dead[gpu] for gpu in gpus if gpu in self._dead}
        if dead:
            return "lost", f"{', '.join(sorted(dead))} died"
        failed = [self._failed[gpu] for gpu in sorted(gpus) if gpu in self._failed]
        if failed:
            return "lost", gpu_failed(failed[0])
        events = self._step.events
        actions = self._step.actions
        if any(isinstance(event, contract.LeaseExpired) and event.app == app for event in events):
            return "expired", f"its lease ended{self._successors(app, gpus)}"
        whys = [action.why for action in actions if isinstance(action, contract.Revoke) and action.app == app]
        return "revoked", f"{whys[0] if whys else 'taken back'}{self._successors(app, gpus)}"

    def _successors(self, app: int, gpus: frozenset[int]) -> str:
        grants = [
            action
            for action in self._step.actions
            if isinstance(action, contract.Grant) and action.app != app
        ]
        heirs: dict[str, list[str]] = {}  # by why
        for grant in grants:
            if gpus & set(grant.gpus):
                heirs.setdefault(grant.why, []).append(self._names.get(grant.app, str(grant.app)))
        gains = [f"{', '.join(names)}{f' ({why})' if why else ''}" for why, names in heirs.items()]
        return f"; given to {', '.join(gains)}" if gains else ""


def _of_app(
    step: Step, row: AppRow, before: frozenset[int] | None, losses: _Losses
) -> Iterator[ClusterEvent]:
    """Yield what happened to an app that held *before*, or had not come yet (None)."""
    now = step.now
    held = frozenset(row.leases)
    if before is None:
        yield _event(now, "submitted", row, (), _asked(row))
    if not row.open:
        yield _event(now, row.outcome.name.lower(), row, before or (), row.reason)
    elif held - (before or frozenset()):
        kind = _gained(now, row, before or frozenset(), held)
        yield _event(now, kind, row, held, _why(step, row.app.id))
    elif before and held != before:
        cause, reason = losses.of(row.app.id, before - held)
        kind = "shrunk" if held else "preempted"
        yield _event(now, kind, row, held or before, reason, cause)


def _gained(now: Time, row: AppRow, before: frozenset[int], held: frozenset[int]) -> str:
    if not before:
        return "started" if row.started == now else "resumed"
    return "grown" if before < held else "moved"


def _why(step: Step, app: int) -> str:
    grants = (
        action.why for action in step.actions if isinstance(action, contract.Grant) and action.app == app
    )
    return next((why for why in grants if why), "")


def _asked(row: AppRow) -> str:
    jobs = row.app.phases[0]
    needs = jobs[0].least
    most = max(job.most for job in jobs)
    upto = f" to {most}" if most > needs else ""
    count = f"{counted(len(jobs), 'job')} of " if len(jobs) > 1 else ""
    length = to_seconds(jobs[0].forecast) / needs
    return f"{count}{counted(needs, 'GPU') if not upto else f'{needs}{upto} GPUs'} for about {length:.0f}s"


def _event(
    now: Time, kind: str, row: AppRow, gpus: Iterable[int], reason: str = "", cause: str = ""
) -> ClusterEvent:
    app = row.app
    return ClusterEvent(now, kind, app.name, app.team, app.id, tuple(sorted(gpus)), reason, cause)
