"""One state and one policy, stepped by a driver: the same object simulated, live and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from astrarium.core.policy import Policy, State
from astrarium.core.quantities import Time
from astrarium.core.trace import Step

S = TypeVar("S", bound=State[Any, Any])
E = TypeVar("E")
A = TypeVar("A")


@dataclass
class Engine(Generic[S, E, A]):
    """Applies events to the books, asks the policy once, commits what it answers."""

    state: S
    policy: Policy[S, E, A]
    validate: bool = False
    record: Callable[[Step], None] | None = None

    def step(self, now: Time, events: Sequence[E]) -> list[A]:
        """Everything that happened at one instant is decided together."""
        state = self.state
        for event in events:
            state.apply(now, event)
        actions = []
        for action in self.policy.decide(now, events, state):
            state.commit(now, action)
            actions.append(action)
        if self.validate:
            state.validate()
        if self.record is not None:
            self.record(Step(now, tuple(events), tuple(actions)))
        return actions

    def close(self, now: Time) -> None:
        self.state.close(now)
        if self.validate:
            self.state.validate()
