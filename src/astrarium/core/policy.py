"""The contract of every level: events and the time come in, actions go out.

A policy never reads a clock, sleeps, opens a socket, starts a thread, or draws a random number it was
not handed. It may keep queues of its own, as long as they follow from the events it has heard. Actions
are committed to the books one by one as the policy yields them, so the state it reads is always current.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from astrarium.core.errors import InvalidAction
from astrarium.core.quantities import Time


class SetTimer(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Ask to be woken at *at*; a later timer of the same name replaces it."""

    at: Time
    name: str = ""


class TimerFired(msgspec.Struct, frozen=True, tag=True, gc=False):
    name: str = ""


EventIn = TypeVar("EventIn", contravariant=True)
ActionIn = TypeVar("ActionIn", contravariant=True)
ActionOut = TypeVar("ActionOut", covariant=True)
StateIn = TypeVar("StateIn", contravariant=True)


class Policy(Protocol[StateIn, EventIn, ActionOut]):
    """Decides. Pure: the same events at the same times give the same actions."""

    def decide(self, now: Time, events: Sequence[EventIn], state: StateIn) -> Iterable[ActionOut]: ...


class State(Protocol[EventIn, ActionIn]):
    """The books of one level. Only `apply`, `commit` and `close` change them."""

    def apply(self, now: Time, event: EventIn) -> None: ...
    def commit(self, now: Time, action: ActionIn) -> None: ...
    def close(self, now: Time) -> None:
        """End what is still open when the run ends: nothing vanishes."""

    def validate(self) -> None: ...


Handlers = Mapping[type, Callable[[Time, Any], None]]


class LevelState(Generic[EventIn, ActionIn]):
    """The state of a level has a table of what each event and each action changes in its books.

    Timers change nothing there: they concern the policy.
    """

    level: ClassVar[str]

    def __init__(self, events: Handlers, actions: Handlers) -> None:
        self._on_event = {TimerFired: nothing_changes, **events}
        self._on_action = {SetTimer: nothing_changes, **actions}

    def apply(self, now: Time, event: EventIn) -> None:
        self._on_event[type(event)](now, event)

    def commit(self, now: Time, action: ActionIn) -> None:
        handler = self._on_action.get(type(action))
        if handler is None:
            raise InvalidAction(f"{action!r} is not an action of the {self.level} level")
        handler(now, action)


def nothing_changes(now: Time, what: object) -> None:
    """Leave the books as they are."""
