"""A case is played: a policy is simulated in it, with every step kept and the books validated."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from astrarium.core.engine import Engine
from astrarium.core.policy import Policy, SetTimer, State, TimerFired
from astrarium.core.quantities import FOREVER, Time
from astrarium.core.trace import Step
from astrarium.run.simulate import World, simulate
from astrarium.testing.checks import EndlessRunError, ensure

UNKNOWN = 1_000_000  # the number of an item, a run or a machine that no case has

Timed = tuple[Time, Any]
Alter = Callable[[Time, Time, Any], Iterable[Timed]]  # of now, when an event is due, and the event


class Case(Protocol):
    """A small scenario: what a level's books and world are made for, and what comes from outside."""

    def events(self) -> list[Timed]:
        """Return what arrives, in order of time."""


C = TypeVar("C", bound=Case)
S = TypeVar("S", bound=State[Any, Any])


@dataclass
class Played(Generic[C, S]):
    """What a policy did in a case: every step, and the books at the end."""

    case: C
    state: S
    steps: list[Step] = field(default_factory=list)
    end: Time = 0

    @property
    def actions(self) -> list[Any]:
        return [action for step in self.steps for action in step.actions]


def play(
    case: C,
    policy: Policy[S, Any, Any],
    state: S,
    world: World[Any, Any, S],
    also: Iterable[Timed] = (),
    most_steps: int = 1_000_000,
) -> Played[C, S]:
    """Simulate a case to its end, with the books validated after every step; *also* happens on top."""
    played = Played(case, state)

    def record(step: Step) -> None:
        played.steps.append(step)
        if len(played.steps) > most_steps:
            raise EndlessRunError(f"more than {most_steps} steps: does a timer repeat?")

    engine: Engine[S, Any, Any] = Engine(state, policy, validate=True, record=record)
    events = sorted([*case.events(), *also], key=lambda timed: timed[0])
    played.end = simulate(engine, events, world)
    return played


class AlteredWorld(World[Any, Any, Any]):
    """A simulated world whose news is altered on the way: doubled, delayed, turned into failures."""

    def __init__(self, world: Any, alter: Alter) -> None:
        self._world = world
        self._alter = alter

    def consequences(self, now: Time, action: Any, state: Any) -> Iterator[Timed]:
        for at, event in self._world.consequences(now, action, state):
            yield from self._alter(now, at, event)

    def aftermath(self, now: Time, event: Any, state: Any) -> Iterator[Timed]:
        for at, later in self._world.aftermath(now, event, state):
            yield from self._alter(now, at, later)


def stuttering(late_by: Time) -> Alter:
    """News is heard twice, and in between there is news of runs that never were."""

    def alter(now: Time, at: Time, event: Any) -> Iterator[Timed]:
        yield at, event
        yield at + late_by, event
        if hasattr(event, "run"):
            yield (now + at) // 2, msgspec.structs.replace(event, run=event.run + UNKNOWN)

    return alter


def check_steps(steps: Iterable[Step]) -> None:
    """Raise ContractError where time goes back, or a timer fires otherwise than as it was last set."""
    last = -1
    timers = dict[str, Time]()
    for step in steps:
        ensure(step.now >= last, f"time went back from {last} to {step.now} ns")
        last = step.now
        for event in step.events:
            if type(event) is TimerFired:
                asked = timers.pop(event.name, None)
                ensure(asked == last, f"timer {event.name!r} fired at {last} ns, was last set to {asked}")
        for action in step.actions:
            if type(action) is SetTimer:
                timers[action.name] = max(action.at, last)
    pending = {name: at for name, at in timers.items() if at < FOREVER}
    ensure(not pending, f"the run ended with timers still set: {pending}")


class Ending(NamedTuple):
    """Where the books say that an item ended up; *good* where nobody has to say why."""

    outcome: str
    at: Time
    reason: str
    good: bool


class ReadOnly:
    """A policy that is caught when it writes into the books instead of answering with an action."""

    def __init__(self, policy: Policy[Any, Any, Any], but: Iterable[str] = ()) -> None:
        self._policy = policy
        self._but = {"_on_event", "_on_action", *but}  # the books' tables of their own methods do not change

    def decide(self, now: Time, events: Sequence[Any], state: Any) -> Iterator[Any]:
        before = self._contents(state)
        for action in self._policy.decide(now, events, state):
            self._compare(now, before, state)
            yield action
            before = self._contents(state)
        self._compare(now, before, state)

    def _compare(self, now: Time, before: dict[str, bytes], state: Any) -> None:
        after = self._contents(state)
        changed = [name for name in after if after[name] != before.get(name)]
        ensure(not changed, f"at {now} ns the policy wrote into the books by itself: {changed}")

    def _contents(self, state: Any) -> dict[str, bytes]:
        """Return the books in a form that is quick to compare."""
        return {
            name: pickle.dumps(value)
            for name, value in vars(state).items()
            if name not in self._but and not isinstance(value, msgspec.Struct)  # those are frozen
        }
