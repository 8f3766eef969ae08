"""The arbiter as a process: opens the store, makes the books again, and takes turns until it is told to stop.

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
from astrarium.cluster.explain import Seat, View, view
from astrarium.cluster.fairness import phase_alone, rho
from astrarium.cluster.live.backend import Backend, Task
from astrarium.cluster.live.cluster import LiveCluster
from astrarium.cluster.live.memory import Options, Told
from astrarium.cluster.live.policy import Introduced, Unstopped
from astrarium.cluster.live.store import Letter, Store
from astrarium.cluster.machines import Slowdowns
from astrarium.cluster.policies import Allocator, Arbiter
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.errors import InputError
from astrarium.core.units import FOREVER, SECOND, Time, to_seconds

# A live cluster in plain words and numbers, for `cluster status`.


def status(now: Time, state: ClusterState, allocator: object, machines: Mapping[int, str]) -> dict[str, Any]:
    try:
        seen = view(now, state, allocator)
    except Exception:  # a stranger's policy that cannot be copied, or does not know: then it tells no line
        seen = view(now, state, None)
    return {
        "now_s": to_seconds(now),
        "gpus": seen.gpus,
        "free": seen.free,
        "machines": [_machine(number, name, state) for number, name in machines.items()],
        "apps": [_app(now, row, seen, state) for row in state.ledger.rows.values()],
    }


def _machine(number: int, name: str, state: ClusterState) -> dict[str, Any]:
    gpus = state.floor.gpus_of.get(number, ())
    names = {gpu: state.apps[state.holder[gpu]].app.name for gpu in gpus if gpu in state.holder}
    return {"machine": number, "name": name, "gpus": list(gpus), "held": names}


def _app(now: Time, row: AppRow, seen: View, state: ClusterState) -> dict[str, Any]:
    seat, end = seen.seats.get(row.app.id), now if row.open else row.ended
    jobs = list(row.jobs.values())
    return {
        "app": row.app.name,
        "outcome": row.outcome.name.lower(),
        "reason": row.reason,
        "arrived_s": to_seconds(row.arrived),
        "waited_s": to_seconds((row.started if row.started >= 0 else end) - row.arrived),
        "took_s": to_seconds(end - row.arrived),
        "gpus": list(seat.holds) if seat else [],
        "until_s": to_seconds(seat.until) if seat and 0 <= seat.until < FOREVER else None,
        "wants": seat.wants if seat else 0,
        "phase": row.phase if row.open else None,
        "jobs_running": seat.running if seat else 0,
        "jobs": len(jobs),
        "done": sum(state.done(now, job) for job in jobs) / sum(job.job.work for job in jobs),
        "gpu_s": to_seconds(state.service(now, row) if row.open else row.service),
        "rho": _rho(now, row, state),
        "why": why(row, seat, seen) if seat else "",
    }


def _rho(now: Time, row: AppRow, state: ClusterState) -> float | None:
    """Of the definition `share`. Of an app that is still there, the least that it can become: if it had all
    that it can use from now on."""
    size = max(1, state.floor.size)
    if not row.open:
        finished = row.outcome.name == "FINISHED"
        return rho(row.ended - row.arrived, row.app, size, row.contention, "share") if finished else None
    later = sum(
        phase_alone(phase, size, lambda job: job.forecast) for phase in row.app.phases[row.phase + 1 :]
    )
    took = now - row.arrived + alone_left(now, row, state, size) + later
    return rho(took, row.app, size, state.contention(now, row), "share")


def alone_left(now: Time, row: AppRow, state: ClusterState, size: int) -> Time:
    """What is left of the present phase, on as many GPUs as it can use."""
    jobs = row.unfinished()
    left = [max(1, job.job.forecast - state.done(now, job)) for job in jobs]
    longest = max((work / min(job.job.most, size) for work, job in zip(left, jobs, strict=True)), default=0)
    together = sum(left) / max(1, min(size, sum(job.job.most for job in jobs)))
    return round(max(longest, together))


def why(row: AppRow, seat: Seat, seen: View) -> str:
    """Why it waits, or that it does not."""
    if not seat.wants:
        return "it has all that it can use"
    place = next((n for n, (app, _) in enumerate(seen.standing or (), 1) if app == row.app.id), None)
    words = next((words for app, words in seen.standing or () if app == row.app.id), "")
    needs = f"it needs {seat.needs} more" if seat.holds else f"it needs {seat.needs}"
    line = f"; number {place} of {len(seen.standing or ())} in line ({words})" if place else ""
    return f"{needs}, {seen.free} of {seen.gpus} GPUs are free{line}"


ANY = 1 << 30  # GPUs: an app of the file waits for machines that are not there yet
Submitted = tuple[App, Task]
Read = Callable[[dict[str, Any], int], Sequence[Submitted]]  # an app as written, and the GPUs that there are


class Planned(NamedTuple):
    """An app of the file, and when it comes."""

    at: Time
    name: str
    body: dict[str, Any]


class Policy(NamedTuple):
    """*spec* as written: a policy that was kept goes on only where it is the same."""

    spec: str
    allocator: Allocator


class Setting(NamedTuple):
    """*read* turns what was submitted into an app. *wall* is the clock that a later arbiter can go on with,
    *clock* the one that nobody sets."""

    policy: Policy
    read: Read
    wall: Callable[[], Time]
    clock: Callable[[], Time]
    slowdowns: Slowdowns = Slowdowns()
    startup: Time = 0
    options: Options = Options()
    planned: Sequence[Planned] = ()


class Office:
    """Everything of one arbiter. One at a time may be open on a folder: a lock that ends with the process."""

    def __init__(self, home: Path, setting: Setting, backend: Backend) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(home)
        self.store, self._setting = Store(home), setting
        self.state, self._last = self._books()
        allocator = self._allocator()
        self._tasks = self.store.tasks()
        wall = setting.wall()
        self.epoch = self.store.begin(wall - self._last, self.state, allocator)
        self._allocator_now = allocator
        self._last = max(self._last, wall - int(self.store.get("origin")))
        self._ahead = self._last - setting.clock()
        self.store.put("policy_spec", setting.policy.spec)
        backend.enter(self.epoch)
        known = allocator if allocator is not setting.policy.allocator else Introduced(allocator)
        policy = Arbiter(Unstopped(known, _Never(self._tasks)))
        memory = self.store.memory()
        self.live = LiveCluster(self.state, policy, backend, self.store, self._tasks, setting.options, memory)
        self._coming: dict[str, int] = {}  # apps that arrive in this very turn, by name
        self._going: set[int] = set()  # those that are withdrawn in it
        self._planned: list[Planned] = []
        known_names = self._names()
        self.seen_before = [each.name for each in setting.planned if each.name in known_names]
        self._planned = [each for each in setting.planned if each.name not in known_names]
        self._shown_at = -SECOND

    def now(self) -> Time:
        """Nanoseconds since the first arbiter began; never backwards, whatever the wall clock does."""
        return self._setting.clock() + self._ahead

    def turn(self) -> bool:
        """One step; whether anything has happened."""
        now = self.now()
        happened = self.live.step(now, list(self._news(now)))
        self._show(now, happened)
        return happened

    def drain(self) -> bool:
        """Whether all that runs has left."""
        return self.live.drain()

    @property
    def idle(self) -> bool:
        """Nothing is left to do, and nothing to come."""
        busy = self.state.apps or self.live.memory.open
        return not busy and not self._planned and not self.store.letters()

    def close(self) -> None:
        self.store.put("status", msgspec.json.encode(self.status(alive=False)).decode())
        self.store.close()
        self._lock.close()

    def _books(self) -> tuple[ClusterState, Time]:
        """From the steps, as they were decided: no policy is asked again."""
        setting, last = self._setting, 0
        told = Told(dict(setting.slowdowns.known), setting.slowdowns.guess)
        state = ClusterState(told, setting.startup)
        for step in self.store.steps():
            last = step.now
            for event in step.events:
                state.apply(step.now, event)
            for action in step.actions:
                state.commit(step.now, action)
        state.unsettled.clear()  # what was to be arranged was arranged in those steps
        return state, last

    def _allocator(self) -> Allocator:
        policy = self._setting.policy
        same = self.store.get("policy_spec") == policy.spec
        return (self.store.policy(self.state) if same else None) or policy.allocator

    def _news(self, now: Time) -> Iterator[Event]:
        self._coming, self._going = {}, set()
        due = [each for each in self._planned if each.at <= now]
        self._planned = [each for each in self._planned if each.at > now]
        for each in due:
            yield from self._submitted(now, each.body, ANY)
        for letter in self.store.letters():
            if letter.kind != "withdraw" or letter.body.get("app") not in self._coming:  # else: the next turn
                yield from self._answered(now, letter)

    def _answered(self, now: Time, letter: Letter) -> Iterator[Event]:
        try:
            found = list(self._told(now, letter))
        except InputError as error:
            self.store.reply(letter.id, f"refused: {error}")
            return
        self.store.answer_later(letter.id, "accepted")
        yield from found

    def _told(self, now: Time, letter: Letter) -> Iterator[Event]:
        if letter.kind == "withdraw":
            yield AppWithdrawn(self._open_app(str(letter.body.get("app"))))
        else:
            seen = self.live.machines_seen().values()
            yield from self._submitted(now, letter.body, sum(machine.gpus for machine in seen))

    def _open_app(self, name: str) -> int:
        for app, row in self.state.apps.items():
            if row.app.name == name and app not in self._going:
                self._going.add(app)
                return app
        raise InputError("app", name, "the name of an app that has not ended")

    def _submitted(self, now: Time, body: dict[str, Any], largest: int) -> Iterator[Event]:
        found = self._setting.read(body, largest)
        names = self._names()
        for app, _ in found:
            if app.name in names:
                raise InputError("name", app.name, "a name that no other app has had here")
        for app, task in found:
            number = self._coming[app.name] = len(self._tasks)
            self._tasks[number] = task
            self.store.add_app(number, app.name, task, now)
            yield AppArrived(msgspec.structs.replace(app, id=number))

    def _names(self) -> set[str]:
        """Those of the file that are still to come included."""
        known = {row.app.name for row in self.state.ledger.rows.values()}
        return known | self._coming.keys() | {each.name for each in self._planned}

    def _show(self, now: Time, happened: bool) -> None:
        if happened or now - self._shown_at >= SECOND:
            self._shown_at = now
            self.store.put("status", msgspec.json.encode(self.status()).decode())

    def status(self, alive: bool = True) -> dict[str, Any]:
        told = status(self.now(), self.state, self._allocator_now, self.live.memory.machines)
        return {**told, "epoch": self.epoch, "arbiter": alive, "policy": self._setting.policy.spec,
                "wall": self._setting.wall()}  # fmt: skip


class _Never:
    """Apps that are not to be stopped, those of later included."""

    def __init__(self, tasks: dict[int, Task]) -> None:
        self._tasks = tasks

    def __contains__(self, app: object) -> bool:
        task = self._tasks.get(app) if isinstance(app, int) else None
        return task is not None and task.on_stop == "never"


def _locked(home: Path) -> Any:
    file = (home / "arbiter.lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        told = "a folder on which no other arbiter is running (`cluster submit` and `status` work beside it)"
        raise InputError("live.state", str(home), told) from None
    return file
