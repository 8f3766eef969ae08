"""A forecast says when apps that wait will start: the present books and policy are simulated ahead.

It knows what the policy remembers, who holds what until when, and how long owners say that jobs take; it
knows no app that comes later, and no machine that will die. It is made from bytes, in a process of its own
with bounds on steps and CPU time, so that an arbiter never waits for it.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import IO, Any, Protocol

import msgspec

from astrarium.cluster.contract import Action, Event, Grant, LeaseExpired, Run
from astrarium.cluster.live.policy import NonPreemptibleAllocator, pickled_policy, unpickled_policy
from astrarium.cluster.policies import Arbiter, ClusterPolicy
from astrarium.cluster.state import ClusterState, Ledger
from astrarium.cluster.world import ClusterWorld
from astrarium.core.engine import Engine
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import FOREVER, SECOND, Time
from astrarium.core.trace import Step
from astrarium.run.simulate import simulate

# of one forecast: steps, and CPU time
MOST_STEPS = 20_000
MOST_SECONDS = 5.0
# between forecasts: so long, and so many times what the last one took
PAUSE = 5 * SECOND
TIMES = 5
HANGS = 30 * SECOND  # a process that takes so long is ended: it was told to take MOST_SECONDS


class Forecast(msgspec.Struct, frozen=True):
    """What was foreseen at an instant. *starts*: when apps that wait will run; *heirs*: which app is given a
    GPU next that is free now. *later*: apps that had not run when it was broken off, at *until*."""

    made: Time
    starts: dict[int, Time] = {}
    heirs: dict[int, int] = {}
    later: tuple[int, ...] = ()
    until: Time = -1


def as_bytes(
    now: Time, state: ClusterState, allocator: object, timers: Mapping[str, Time], lasting: Collection[int]
) -> bytes:
    """Return all that a forecast needs; apps that have ended are left out."""
    books = {name: value for name, value in vars(state).items() if name not in ("_on_event", "_on_action")}
    books["ledger"] = Ledger(dict(state.apps))
    policy = pickled_policy(allocator, state)
    return pickle.dumps((now, books, policy, dict(timers), set(lasting)))


class _Enough(Exception):
    """All is known that was asked for, or it has taken long enough."""


class _Resumed:
    """A policy in the middle of its life: its timers are set first, and it is asked from then on."""

    def __init__(self, policy: ClusterPolicy, timers: Mapping[str, Time]) -> None:
        self._policy = policy
        self._timers = dict(timers)
        self._resumed = False

    def decide(self, now: Time, events: Sequence[Event], state: ClusterState) -> Iterable[Action]:
        if self._resumed:
            return self._policy.decide(now, events, state)
        self._resumed = True
        return [SetTimer(max(at, now + 1), name) for name, at in self._timers.items()]


class _Watch:
    """Who watches the future notes when each waiting app runs, and who is given the GPUs that are free."""

    def __init__(self, now: Time, state: ClusterState) -> None:
        rows = state.apps.items()
        self._waiting = {app for app, row in rows if not any(job.gpus for job in row.jobs.values())}
        self._free = set(state.free)
        self._steps = 0
        self.now = now
        self.starts: dict[int, Time] = {}
        self.heirs: dict[int, int] = {}

    def later(self) -> tuple[int, ...]:
        return tuple(sorted(self._waiting - self.starts.keys()))

    def __call__(self, step: Step) -> None:
        for action in step.actions:
            if isinstance(action, Grant):
                for gpu in self._free.intersection(action.gpus):
                    self.heirs.setdefault(gpu, action.app)
            elif isinstance(action, Run) and action.app in self._waiting:
                self.starts.setdefault(action.app, step.now)
        self._steps = self._steps + 1
        self.now = step.now
        if self._waiting == self.starts.keys() or self._steps >= MOST_STEPS:
            raise _Enough


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Break a forecast off that has taken so much CPU time; for the main thread of a process of its own."""

    def enough(*_: object) -> None:
        raise _Enough

    signal.signal(signal.SIGPROF, enough)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def foreseen(asked: bytes, seconds: float | None = None) -> Forecast | None:
    """Return the forecast from what `as_bytes` wrote; None where the policy could not be kept. *seconds*: the
    CPU time that it may take, where there is a bound."""
    now, books, kept, timers, lasting = pickle.loads(asked)
    state = ClusterState()
    vars(state).update(books)
    policy = unpickled_policy(kept, state)
    if policy is None:
        return None
    world = ClusterWorld(state.slowdowns, state.startup)
    watch = _Watch(now, state)
    arbiter = _Resumed(Arbiter(NonPreemptibleAllocator(policy, lasting.__contains__)), timers)
    first = [(now, TimerFired("forecast")), *sorted(_known(now, state, world), key=lambda timed: timed[0])]
    with suppress(_Enough), nullcontext() if seconds is None else bounded(seconds):
        simulate(Engine(state, arbiter, record=watch), first, world)
        return Forecast(now, watch.starts, watch.heirs)
    return Forecast(now, watch.starts, watch.heirs, watch.later(), watch.now)


def _known(now: Time, state: ClusterState, world: ClusterWorld) -> Iterator[tuple[Time, Any]]:
    """Yield what will happen if nothing is decided: leases and runs end."""
    for at, event in world.take_over(now, state):
        yield max(at, now + 1), event
    for app, row in state.apps.items():
        for until in {end for end in row.leases.values() if end < FOREVER}:
            gpus = tuple(gpu for gpu, end in row.leases.items() if end == until)
            yield max(until, now + 1), LeaseExpired(app, gpus, until)


class Foresight(Protocol):
    def ask(self, now: Time, question: Callable[[], bytes]) -> Forecast | None:
        """Return the newest forecast that there is; *question* is called if another one is to be made."""


class ForecastProcess:
    """Forecasts made in a child process, one at a time, with a pause between them."""

    def __init__(self, pause: Time = PAUSE) -> None:
        self._pause = pause
        self._asked = -FOREVER
        self._due = -FOREVER
        self._newest = Forecast(-1)
        self._child: tuple[subprocess.Popen[bytes], IO[bytes]] | None = None

    def ask(self, now: Time, question: Callable[[], bytes]) -> Forecast | None:
        if self._child is not None:
            self._look(now)
        elif now >= self._due:
            self._asked = now
            self._due = now + self._pause
            with suppress(OSError):  # no room for another process, or for its files: then there is none
                self._child = _started(question())
        return self._newest if self._newest.made >= 0 else None

    def close(self) -> None:
        if self._child is not None:
            child, answer = self._child
            child.kill()
            child.wait()
            answer.close()

    def _look(self, now: Time) -> None:
        assert self._child is not None
        child, answer = self._child
        if child.poll() is not None:
            with answer:
                answer.seek(0)
                self._newest = _read(answer.read()) or self._newest
                self._child = None
            self._due = now + max(self._pause, TIMES * (now - self._asked))
        elif now - self._asked >= HANGS:
            child.kill()


def _started(asked: bytes) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """Start a process that makes a forecast. Files, not pipes: neither waits for the other."""
    with ExitStack() as closing:
        question, answer = (closing.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        question.write(asked)
        question.seek(0)
        command = [sys.executable, "-m", __name__]
        silent = subprocess.DEVNULL
        child = subprocess.Popen(
            command, stdin=question, stdout=answer, stderr=silent, start_new_session=True
        )
        return child, os.fdopen(os.dup(answer.fileno()), "rb")


def _read(answer: bytes) -> Forecast | None:
    try:
        return msgspec.json.decode(answer, type=Forecast | None)
    except msgspec.DecodeError:  # it died: then there is none
        return None


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(foreseen(sys.stdin.buffer.read(), MOST_SECONDS)))
