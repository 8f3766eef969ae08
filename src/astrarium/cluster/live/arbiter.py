"""The arbiter as a process opens the store, makes the books again, and takes turns until it is told to stop.

Killed at any point and started again, it goes on: steps are in the store before orders are given, the policy
is kept with all that it remembers, jobs run on meanwhile, and what they did is seen at the first look.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from astrarium.cluster.contract import App, AppArrived, AppWithdrawn, Event
from astrarium.cluster.explain import AppView, ClusterView, view
from astrarium.cluster.fairness import PhaseWork, forecast, rho
from astrarium.cluster.live.backend import Backend, FixedSlowdowns, JobCommand, Options
from astrarium.cluster.live.cluster import LiveCluster
from astrarium.cluster.live.policy import NonPreemptibleAllocator, TakeoverAllocator
from astrarium.cluster.live.store import InboxMessage, Store
from astrarium.cluster.machines import Slowdowns
from astrarium.cluster.policies import Allocator, Arbiter
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.errors import InputError
from astrarium.core.units import FOREVER, SECOND, Time, to_seconds


def status(now: Time, state: ClusterState, allocator: object, machines: Mapping[int, str]) -> dict[str, Any]:
    """Return a live cluster in plain words and numbers, for `cluster status`."""
    try:
        overview = view(now, state, allocator)
    except Exception:  # a stranger's policy that cannot be copied, or does not know: then it tells no line
        overview = view(now, state, None)
    return {
        "now_s": to_seconds(now),
        "gpus": overview.gpus,
        "free": overview.free,
        "machines": [_machine(number, name, state) for number, name in machines.items()],
        "apps": [_app(now, row, overview, state) for row in state.ledger.rows.values()],
    }


def _machine(number: int, name: str, state: ClusterState) -> dict[str, Any]:
    gpus = state.floor.gpus_of.get(number, ())
    names = {gpu: state.apps[state.holder[gpu]].app.name for gpu in gpus if gpu in state.holder}
    return {"machine": number, "name": name, "gpus": list(gpus), "held": names}


def _app(now: Time, row: AppRow, overview: ClusterView, state: ClusterState) -> dict[str, Any]:
    app_view, end = overview.apps.get(row.app.id), now if row.open else row.ended
    jobs = list(row.jobs.values())
    return {
        "app": row.app.name,
        "team": row.app.team,
        "outcome": row.outcome.name.lower(),
        "reason": row.reason,
        "arrived_s": to_seconds(row.arrived),
        "waited_s": to_seconds((row.started if row.started >= 0 else end) - row.arrived),
        "took_s": to_seconds(end - row.arrived),
        "gpus": list(app_view.holds) if app_view else [],
        "until_s": to_seconds(app_view.until) if app_view and 0 <= app_view.until < FOREVER else None,
        "wants": app_view.wants if app_view else 0,
        "phase": row.phase if row.open else None,
        "jobs_running": app_view.running if app_view else 0,
        "jobs": len(jobs),
        "done": sum(state.done(now, job) for job in jobs) / sum(job.job.work for job in jobs),
        "gpu_s": to_seconds(state.service(now, row) if row.open else row.service),
        "rho": _rho(now, row, state),
        "why": why(row, app_view, overview) if app_view else "",
    }


def _rho(now: Time, row: AppRow, state: ClusterState) -> float | None:
    """Return rho of an app by the definition `share`. Of an app that is still there, it is the least that it
    can become: if it had all that it can use from now on."""
    size = max(1, state.floor.size)
    if not row.open:
        finished = row.outcome.name == "FINISHED"
        return rho(row.ended - row.arrived, row.app, size, row.contention, "share") if finished else None
    left = {job.job.id: max(1, job.job.forecast - state.done(now, job)) for job in row.unfinished()}
    present = PhaseWork([job.job for job in row.unfinished()], lambda job: left[job.id]).alone(size)
    later = sum(PhaseWork(phase, forecast).alone(size) for phase in row.app.phases[row.phase + 1 :])
    took = now - row.arrived + round(present + later)
    return rho(took, row.app, size, state.contention(now, row), "share")


def why(row: AppRow, app_view: AppView, overview: ClusterView) -> str:
    """Return why an app waits, or that it does not."""
    if not app_view.wants:
        return "it has all that it can use"
    place = next((n for n, (app, _) in enumerate(overview.standing or (), 1) if app == row.app.id), None)
    words = next((words for app, words in overview.standing or () if app == row.app.id), "")
    needs = f"it needs {app_view.needs} more" if app_view.holds else f"it needs {app_view.needs}"
    line = f"; number {place} of {len(overview.standing or ())} in line ({words})" if place else ""
    return f"{needs}, {overview.free} of {overview.gpus} GPUs are free{line}"


ANY = 1 << 30  # GPUs: an app of the file waits for machines that are not there yet
Submitted = tuple[App, JobCommand]
Read = Callable[[dict[str, Any], int], Sequence[Submitted]]  # an app as written, and the GPUs that there are


class PlannedApp(NamedTuple):
    """An app of the file, and when it comes."""

    at: Time
    name: str
    body: dict[str, Any]


class ChosenPolicy(NamedTuple):
    """A policy with its *spec* as written: a policy that was kept goes on only where the spec is the same."""

    spec: str
    allocator: Allocator


class ArbiterSetup(NamedTuple):
    """What an arbiter is started with. *read* turns what was submitted into an app. *wall* is the clock that
    a later arbiter can go on with, *clock* the one that nobody sets."""

    policy: ChosenPolicy
    read: Read
    wall: Callable[[], Time]
    clock: Callable[[], Time]
    slowdowns: Slowdowns = Slowdowns()
    startup: Time = 0
    options: Options = Options()
    planned: Sequence[PlannedApp] = ()


class ArbiterProcess:
    """One arbiter with its store and policy; a lock lets one at a time be open on a folder."""

    def __init__(self, home: Path, setup: ArbiterSetup, backend: Backend) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(home)
        self.store, self._setup = Store(home), setup
        self.state, self._last = self._books()
        allocator = self._allocator()
        self._tasks = self.store.tasks()
        wall = setup.wall()
        self.epoch = self.store.begin(wall - self._last, self.state, allocator)
        self._allocator_now = allocator
        self._last = max(self._last, wall - int(self.store.get("origin")))
        self._ahead = self._last - setup.clock()
        self.store.put("policy_spec", setup.policy.spec)
        backend.enter(self.epoch)
        known = allocator if allocator is not setup.policy.allocator else TakeoverAllocator(allocator)
        policy = Arbiter(NonPreemptibleAllocator(known, self._lasts))
        memory = self.store.memory()
        self.live = LiveCluster(self.state, policy, backend, self.store, self._tasks, setup.options, memory)
        self._coming: dict[str, int] = {}  # apps that arrive in this very turn, by name
        self._going: set[int] = set()  # those that are withdrawn in it
        self._planned: list[PlannedApp] = []
        known_names = self._names()
        self.known_before = [each.name for each in setup.planned if each.name in known_names]
        self._planned = [each for each in setup.planned if each.name not in known_names]
        self._shown_at = -SECOND

    def now(self) -> Time:
        """Return nanoseconds since the first arbiter began; never backwards, whatever the wall clock does."""
        return self._setup.clock() + self._ahead

    def turn(self) -> bool:
        """Take one step and return whether anything has happened."""
        now = self.now()
        happened = self.live.step(now, list(self._news(now)))
        if happened or now - self._shown_at >= SECOND:
            self._shown_at = now
            self.store.put("status", msgspec.json.encode(self.status()).decode())
        return happened

    def drain(self) -> bool:
        """Ask all that runs to leave and return whether it has left."""
        return self.live.drain()

    @property
    def idle(self) -> bool:
        """Return whether nothing is left to do, and nothing to come."""
        busy = self.state.apps or self.live.memory.open
        return not busy and not self._planned and not self.store.inbox()

    def close(self) -> None:
        self.store.put("status", msgspec.json.encode(self.status(alive=False)).decode())
        self.store.close()
        self._lock.close()

    def _books(self) -> tuple[ClusterState, Time]:
        """Return the books, made again from the steps as they were decided: no policy is asked again."""
        setup, last = self._setup, 0
        told = FixedSlowdowns(dict(setup.slowdowns.known), setup.slowdowns.guess)
        state = ClusterState(told, setup.startup)
        for step in self.store.steps():
            last = step.now
            for event in step.events:
                state.apply(step.now, event)
            for action in step.actions:
                state.commit(step.now, action)
        state.unsettled.clear()  # what was to be arranged was arranged in those steps
        return state, last

    def _allocator(self) -> Allocator:
        policy = self._setup.policy
        same = self.store.get("policy_spec") == policy.spec
        return (self.store.policy(self.state) if same else None) or policy.allocator

    def _lasts(self, app: int) -> bool:
        """Return whether an app is not to be stopped."""
        task = self._tasks.get(app)
        return task is not None and task.on_stop == "never"

    def _news(self, now: Time) -> Iterator[Event]:
        self._coming, self._going = {}, set()
        due = [each for each in self._planned if each.at <= now]
        self._planned = [each for each in self._planned if each.at > now]
        for each in due:
            yield from self._submitted(now, each.body, ANY)
        for message in self.store.inbox():
            comes_only_now = message.kind == "withdraw" and message.body.get("app") in self._coming
            if not comes_only_now:  # else it is withdrawn in the next turn
                yield from self._answered(now, message)

    def _answered(self, now: Time, message: InboxMessage) -> Iterator[Event]:
        try:
            found = list(self._told(now, message))
        except InputError as error:
            self.store.reply(message.id, f"refused: {error}")
            return
        self.store.answer_later(message.id, "accepted")
        yield from found

    def _told(self, now: Time, message: InboxMessage) -> Iterator[Event]:
        if message.kind == "withdraw":
            yield AppWithdrawn(self._open_app(str(message.body.get("app"))))
        else:
            gpus = sum(machine.gpus for machine in self.live.machines().values())
            yield from self._submitted(now, message.body, gpus, message.owner)

    def _open_app(self, name: str) -> int:
        for app, row in self.state.apps.items():
            if row.app.name == name and app not in self._going:
                self._going.add(app)
                return app
        raise InputError("app", name, "the name of an app that has not ended")

    def _submitted(self, now: Time, body: dict[str, Any], largest: int, owner: str = "") -> Iterator[Event]:
        found = self._setup.read(body, largest)
        names = self._names()
        for app, _ in found:
            if app.name in names:
                raise InputError("name", app.name, "one that no other app has had here")
        for app, task in found:
            number = self._coming[app.name] = len(self._tasks)
            self._tasks[number] = msgspec.structs.replace(task, owner=owner)
            self.store.add_app(number, app.name, self._tasks[number], now, app.team)
            yield AppArrived(msgspec.structs.replace(app, id=number))

    def _names(self) -> set[str]:
        """Return the names of all apps, those of the file that are still to come included."""
        known = {row.app.name for row in self.state.ledger.rows.values()}
        return known | self._coming.keys() | {each.name for each in self._planned}

    def status(self, alive: bool = True) -> dict[str, Any]:
        told = status(self.now(), self.state, self._allocator_now, self.live.memory.machines)
        for app, number in zip(told["apps"], self.state.ledger.rows, strict=True):
            app["owner"] = self._tasks[number].owner
        return {**told, "epoch": self.epoch, "arbiter": alive, "policy": self._setup.policy.spec,
                "wall": self._setup.wall()}  # fmt: skip


def _locked(home: Path) -> Any:
    file = (home / "arbiter.lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        told = "a folder on which no other arbiter is running (`cluster submit` and `status` work beside it)"
        raise InputError("live.state", str(home), told) from None
    return file
