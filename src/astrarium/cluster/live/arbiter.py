"""The arbiter as a process opens the store, makes the books again, and takes turns until it is told to stop.

Killed at any point and started again, it goes on: steps are in the store before orders are given, the policy
is kept with all that it remembers, jobs run on meanwhile, and what they did is seen at the first look.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from astrarium.cluster.contract import App, AppArrived, AppWithdrawn, Event, GpuFailed
from astrarium.cluster.live.backend import Backend, JobCommand
from astrarium.cluster.live.cluster import LiveCluster, Options
from astrarium.cluster.live.inbox import InboxMessage
from astrarium.cluster.live.limits import (
    JOBS_HOURLY,
    LONGEST_ANSWER,
    LONGEST_NAME,
    MOST_OPEN,
    MOST_OPEN_JOBS,
    Hourly,
)
from astrarium.cluster.live.machine.keeping.claims import checked_words
from astrarium.cluster.live.machine.keeping.records import locked_file, private_folder
from astrarium.cluster.live.memory import EndedRun, JobKey, Memory
from astrarium.cluster.live.policy import NonPreemptibleAllocator, TakeoverAllocator
from astrarium.cluster.live.slowdowns import FixedSlowdowns, RelativeSlowdowns
from astrarium.cluster.live.store import Store
from astrarium.cluster.live.watching.events import ClusterEvent
from astrarium.cluster.live.watching.forecast import Forecast, Foresight, as_bytes
from astrarium.cluster.live.watching.status import health, learnt, status
from astrarium.cluster.policies import Allocator, Arbiter
from astrarium.cluster.slowdowns import Slowdowns
from astrarium.cluster.state import ClusterState
from astrarium.cluster.teams.sharing import TeamSharing
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND, Time
from astrarium.core.trace import Step

TELL_AGAIN = 600 * SECOND
ANY = 1 << 30  # GPUs: an app of the file waits for machines that are not there yet
Submitted = tuple[App, JobCommand]
Read = Callable[[dict[str, Any], int, str], Sequence[Submitted]]  # an app as written, all GPUs, the owner


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
    """The composition makes it, a test makes its own. *read* turns what was submitted into an app. *wall* is
    the clock that a later arbiter can go on with, *clock* the one that nobody sets. *observe* hears how long
    a `step` and a `write` of the store took, and for how long the arbiter has to `wait` for its disk."""

    policy: ChosenPolicy
    read: Read
    wall: Callable[[], Time]
    clock: Callable[[], Time]
    slowdowns: Slowdowns = Slowdowns()
    startup: Time = 0
    options: Options = Options()
    planned: Sequence[PlannedApp] = ()
    foresight: Foresight | None = None
    observe: Callable[[str, Time], None] = lambda what, took: None
    learns: bool = False  # what being apart costs


class ArbiterProcess:
    """One arbiter with its store and policy; a lock lets one at a time be open on a folder."""

    def __init__(self, home: Path, setup: ArbiterSetup, backend: Backend) -> None:
        self._lock = _locked(home)
        self.store = Store(home)
        self._setup = setup
        self.state, self._last = self._books()
        allocator = self._allocator()
        self._tasks = self.store.tasks()
        wall = setup.wall()
        self.epoch = self.store.begin(wall - self._last, self.state, allocator)
        self._allocator_now = allocator
        self._last = max(self._last, wall - int(self.store.get("origin")))
        self.store.set_clock(self._last, wall)
        self._ahead = self._last - setup.clock()
        self.store.put("policy_spec", setup.policy.spec)
        backend.enter(self.epoch)
        known = allocator if allocator is not setup.policy.allocator else TakeoverAllocator(allocator)
        policy = Arbiter(NonPreemptibleAllocator(known, self._lasts))
        memory = self.store.memory()
        journal = _TimedJournal(self.store, setup)
        self.live = LiveCluster(self.state, policy, backend, journal, self._tasks, setup.options, memory)
        self._coming: dict[str, int] = {}  # apps that arrive in this very turn, by name
        self._jobs_coming: dict[int, int] = {}  # how many jobs each of them has
        self._hourly = Hourly("jobs", JOBS_HOURLY, lambda: setup.clock() / SECOND)
        self._going: set[int] = set()  # those that are withdrawn in it
        self._planned: list[PlannedApp] = []
        known_names = self._names()
        self.known_before = [planned.name for planned in setup.planned if planned.name in known_names]
        self._planned = [planned for planned in setup.planned if planned.name not in known_names]
        self._shown_at = -SECOND
        self._drained = False
        self._troubled: dict[JobKey, Time] = {}  # when that was told last
        silent = self.store.last_of("arbiter_") not in (None, "arbiter_ended")
        reason = f"policy {setup.policy.spec}{'; the one before left without a word' if silent else ''}"
        self.store.tell(self.event("arbiter_started", reason))

    def now(self) -> Time:
        """Return nanoseconds since the first arbiter began; never backwards, whatever the wall clock does."""
        return self._setup.clock() + self._ahead

    def turn(self) -> bool:
        """Take one step and return whether anything has happened. When the store cannot be written, this
        raises, nothing is ordered, and a later turn goes on with the step that was not written."""
        now = self.now()
        wall = self._setup.wall()
        if abs(self.store.drift(now, wall)) > SECOND:  # somebody has set it, or the machine slept
            self.store.set_clock(now, wall)
        happened = self.store.catch_up() or self.live.step(now, self._news(now))
        self.store.catch_up()  # with answers to those who were refused
        self._setup.observe("step", self.now() - now)
        self._tell_troubles(now)
        if happened or now - self._shown_at >= SECOND:
            self.store.put("status", msgspec.json.encode(self.status()).decode())
            self._shown_at = now
        return happened

    def _tell_troubles(self, now: Time) -> None:
        """Write an event for each job that has come into trouble, such as a full disk, and goes on: now and
        then, since a job could come and go."""
        for key, words in self.live.troubles.items():
            app = self.state.ledger.rows[key.app].app
            job = JobKey(key.app, key.job)
            if now - self._troubled.get(job, -TELL_AGAIN) >= TELL_AGAIN:
                self._troubled[job], reason = now, f"job {key.job}: {words}"
                event = ClusterEvent(now, "trouble", app.name, app.team, key.app, reason=reason)
                self.store.tell_later(event)

    def drain(self) -> bool:
        """Ask all that runs to leave and return whether it has left."""
        self.store.catch_up()
        self._drained = self.live.drain()
        return self._drained

    @property
    def idle(self) -> bool:
        """Return whether nothing is left to do, and nothing to come."""
        busy = self.state.apps or self.live.memory.open or self.store.behind
        return not busy and not self._planned and not self.store.inbox.unread()

    def close(self) -> None:
        left = "its jobs have left" if self._drained else "its jobs run on"
        reason = left if self.state.apps else "all apps have ended"
        with suppress(sqlite3.OperationalError):  # no room: whoever asks sees the status before
            if not self.store.behind:
                self.store.tell(self.event("arbiter_ended", reason))
                self.store.put("status", msgspec.json.encode(self.status(alive=False)).decode())
        self.store.close()
        os.close(self._lock)

    def event(self, kind: str, reason: str) -> ClusterEvent:
        """Return an event of now that tells of the arbiter itself."""
        return ClusterEvent(self.now(), kind, f"arbiter {self.epoch}", reason=reason)

    def _books(self) -> tuple[ClusterState, Time]:
        """Return the books, made again from the steps as they were decided: no policy is asked again."""
        setup = self._setup
        last = 0
        kind = RelativeSlowdowns if setup.learns else FixedSlowdowns
        known = kind(dict(setup.slowdowns.known), setup.slowdowns.guess)
        state = ClusterState(known, setup.startup)
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
        kept: Allocator | None = self.store.policy(self.state) if same else None
        if isinstance(kept, TeamSharing) and isinstance(policy.allocator, TeamSharing):
            kept.rules = policy.allocator.rules  # what teams have used is remembered, whatever they may now
        return kept or policy.allocator

    def _lasts(self, app: int) -> bool:
        """Return whether an app is not to be stopped."""
        task = self._tasks.get(app)
        return task is not None and task.on_stop == "never"

    def _news(self, now: Time) -> Iterator[Event]:
        self._coming = {}
        self._jobs_coming = {}
        self._going = set()
        messages = self.store.inbox.unread()
        due = [planned for planned in self._planned if planned.at <= now]
        self._planned = [planned for planned in self._planned if planned.at > now]
        for planned in due:
            yield from self._submitted(now, planned.body, ANY)
        for message in messages:
            comes_only_now = message.kind == "withdraw" and message.body.get("app") in self._coming
            if not comes_only_now:  # else it is withdrawn in the next turn
                yield from self._answered(now, message)

    def _answered(self, now: Time, message: InboxMessage) -> Iterator[Event]:
        try:
            events = list(self._events_of(now, message))
        except (InputError, OSError, ValueError, TypeError, RecursionError) as error:
            reason = checked_words(str(error), LONGEST_ANSWER)
            self.store.answer_later(message.id, f"refused: {reason}")
            name = _subject(message.body)
            team = _short(message.body.get("team") or "")
            self.store.tell_later(ClusterEvent(now, "refused", name, team, reason=reason))
            return
        self.store.answer_later(message.id, "accepted")
        yield from events

    def _events_of(self, now: Time, message: InboxMessage) -> Iterator[Event]:
        if message.fault:
            raise InputError("message", None, f"one that can be read ({message.fault})")
        if message.kind == "withdraw":
            yield AppWithdrawn(self._open_app(str(message.body.get("app"))))
        elif message.kind == "drain":
            gpu = self._gpu(message.body, works=True)
            yield GpuFailed(gpu, str(message.body.get("why") or "taken out by hand"), lost=False)
        elif message.kind == "retry":
            self.live.retry(self._gpu(message.body, works=False))
        else:
            gpus = sum(machine.gpus for machine in self.live.machines().values())
            yield from self._submitted(now, message.body, gpus, message.owner)

    def _open_app(self, name: str) -> int:
        for app, row in self.state.apps.items():
            if row.app.name == name and app not in self._going:
                self._going.add(app)
                return app
        raise InputError("app", name, "the name of an app that has not ended")

    def _gpu(self, body: dict[str, Any], works: bool) -> int:
        """Return the GPU that is meant: of a machine by number or name, as the machine counts them."""
        name = str(body.get("machine"))
        number = body.get("gpu")
        known = self.live.memory.machines
        floor = self.state.floor
        machine = next((m for m, own in known.items() if name in (str(m), own) and m in floor.machines), None)
        if machine is None:
            there = ", ".join(f"{m} ({own})" for m, own in known.items()) or "there is none"
            raise InputError("machine", name, f"the number or name of a machine: {there}")
        gpus = floor.all_of(floor.machines[machine])
        fitting = {n: gpu for n, gpu in enumerate(gpus) if (gpu not in self.state.failed) is works}
        if number not in fitting:
            kind = "is in use" if works else "is out of use"
            there = ", ".join(map(str, fitting)) or "there is none"
            raise InputError("gpu", number, f"a GPU of machine {machine} that {kind}: {there}")
        return fitting[number]

    def _submitted(self, now: Time, body: dict[str, Any], largest: int, owner: str = "") -> Iterator[Event]:
        apps = self._setup.read(body, largest, owner)
        names = self._names()
        for app, _ in apps:
            if app.name in names:
                raise InputError("name", app.name, "one that no other app has had here")
        self._check_open(owner, [app for app, _ in apps])
        for app, task in apps:
            number = self._coming[app.name] = len(self._tasks)
            self._tasks[number] = msgspec.structs.replace(task, owner=owner)
            self._jobs_coming[number] = app.jobs_in_all
            self.store.add_app(number, app.name, self._tasks[number], now, app.team)
            yield AppArrived(msgspec.structs.replace(app, id=number))

    def _check_open(self, owner: str, more: Sequence[App]) -> None:
        """Refuse what would be too much of one user's in the books; who may write the file may do all."""
        if not owner:
            return
        open_ = {app: row.app.jobs_in_all for app, row in self.state.apps.items()} | self._jobs_coming
        mine = [app for app in open_ if self._tasks[app].owner == owner]
        jobs = sum(app.jobs_in_all for app in more)
        if len(mine) + len(more) > MOST_OPEN:
            raise InputError("user", owner, f"at most {MOST_OPEN} apps of a user that have not ended")
        if sum(open_[app] for app in mine) + jobs > MOST_OPEN_JOBS:
            expected = f"at most {MOST_OPEN_JOBS} jobs of all apps of a user that have not ended"
            raise InputError("user", owner, expected)
        self._hourly.take(owner, jobs)

    def _names(self) -> set[str]:
        """Return the names of all apps, those of the file that are still to come included."""
        known = {row.app.name for row in self.state.ledger.rows.values()}
        return known | self._coming.keys() | {planned.name for planned in self._planned}

    def status(self, alive: bool = True) -> dict[str, Any]:
        now = self.now()
        memory = self.live.memory
        shown = status(now, self.state, self._allocator_now, memory.machines, self._ahead_of(now))
        shown |= {**health(self.state, self.live), "learnt": learnt(self.state) if self._setup.learns else []}
        for app, number in zip(shown["apps"], self.state.ledger.rows, strict=True):
            app["owner"] = self._tasks[number].owner
            troubles = [words for key, words in self.live.troubles.items() if key.app == number]
            app["why"] = "; ".join(filter(None, (app["why"], *troubles[:1])))
        return {**shown, "epoch": self.epoch, "arbiter": alive, "policy": self._setup.policy.spec,
                "wall": self._setup.wall()}  # fmt: skip

    def _ahead_of(self, now: Time) -> Forecast | None:
        """Return the newest forecast, if somebody waits and there is one."""
        waits = any(not any(job.gpus for job in row.jobs.values()) for row in self.state.apps.values())
        if self._setup.foresight is None or not waits:
            return None
        return self._setup.foresight.ask(now, lambda: self._question(now))

    def _question(self, now: Time) -> bytes:
        lasting = [app for app in self.state.apps if self._lasts(app)]
        return as_bytes(now, self.state, self._allocator_now, self.live.memory.timers, lasting)


class _TimedJournal:
    """The store, and somebody who hears how long writing takes."""

    def __init__(self, store: Store, setup: ArbiterSetup) -> None:
        self._store = store
        self._setup = setup

    def write(self, step: Step, memory: Memory, ended: Sequence[EndedRun]) -> None:
        began = self._setup.clock()
        self._store.write(step, memory, ended)
        self._setup.observe("write", self._setup.clock() - began)


def _locked(home: Path) -> int:
    held = locked_file(private_folder(home) / "arbiter.lock")
    if held is None:
        expected = (
            "a folder on which no other arbiter is running (`cluster submit` and `status` work beside it)"
        )
        raise InputError("live.state", str(home), expected)
    return held


def _subject(body: Mapping[str, Any]) -> str:
    """Return what a message is about: an app, or a GPU as `cluster gpu` names it."""
    name = body.get("name") or body.get("app")
    return _short(name or f"{body.get('machine', '')}:{body.get('gpu', '')}")


def _short(value: object) -> str:
    """Return what somebody wrote as a name, to be shown to others."""
    return checked_words(str(value), LONGEST_NAME)
