"""A policy in Python decides for the native scheduler, which asks it in batches: events in, actions out.

The books that count, who waits and what runs, are the native scheduler's; those here are what a policy reads,
and forget what has ended. Whoever asks is mostly another thread, one at a time; times begin at 0 when the
policy does. The other side is native/scheduler/python_policy.h.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from typing import Any, TypeAlias

from astrarium.core.engine import Engine
from astrarium.core.errors import InvalidAction
from astrarium.core.policy import SetTimer
from astrarium.core.quantities import FOREVER, Time
from astrarium.core.timers import Timers
from astrarium.core.trace import Step
from astrarium.server.control.plan import ServingPlan
from astrarium.serving import contract
from astrarium.serving.contract import Action, Event, Request, Setup
from astrarium.serving.ledger import Fate, Ledger, Outcome
from astrarium.serving.policies import ServingPolicy, listens_to_profiler
from astrarium.serving.state import ServingState
from astrarium.serving.twin.native import event_classes

DISPATCH, DROP, PREEMPT = range(3)
EventParts: TypeAlias = tuple[Any, ...]  # what the class of an event is made with
RawEvent: TypeAlias = tuple[int, EventParts]  # its kind, as `_EVENTS` counts, and those
DispatchWish: TypeAlias = tuple[int, int, tuple[int, ...], Time]  # DISPATCH, a GPU, requests, from when on
DropWish: TypeAlias = tuple[int, int, str, Time]  # DROP, a request, why, 0
PreemptWish: TypeAlias = tuple[int, int, int, Time]  # PREEMPT, a GPU, the run that is to end there, 0
Wish: TypeAlias = DispatchWish | DropWish | PreemptWish
Recorder = Callable[[Setup], Callable[[Step], None]]  # given anew to every policy that takes over
log = logging.getLogger("astrarium.control")


def _arrived(*request: Any) -> Event:
    return contract.RequestArrived(Request(*request))


def _whole(what: object, time: Any) -> Time:
    """Return a time that native code can hold; refuse what is no whole number of nanoseconds, such as the
    result of a division."""
    try:
        return max(-FOREVER, min(FOREVER, index(time)))
    except TypeError:
        raise InvalidAction(f"{what}: {time!r} is no whole number of nanoseconds") from None


def _readable(words: str) -> str:
    """Return words as others can read them: half of a character is no text to them."""
    return words.encode(errors="backslashreplace").decode()


class OpenLedger(Ledger):
    """An open ledger does not grow: it knows when the batches that run were dispatched, and no more."""

    def __init__(self) -> None:
        super().__init__()
        self._batches = 0
        self.batch_dispatched: Any = {}  # by number, like the column it replaces

    def open_request(self, request: int) -> None:
        """Keep nothing: the books know which requests wait."""

    def end_request(self, request: int, outcome: Outcome, reason: str, now: Time, batch: int = -1) -> None:
        """Keep nothing: the native scheduler knows how requests end."""

    def open_batch(self, model: int, gpu: int, size: int, now: Time) -> int:
        number = self._batches
        self._batches = self._batches + 1
        self.batch_dispatched[number] = now
        return number

    def end_batch(self, batch: int, fate: Fate, started: Time, finished: Time) -> None:
        self.batch_dispatched.pop(batch, None)


class PythonPolicy:
    """A policy with the books that it reads and its timers; *record* notes every step."""

    def __init__(
        self, name: str, policy: ServingPolicy, setup: Setup, record: Callable[[Step], None] | None = None
    ) -> None:
        self._name = name
        self._state = ServingState(setup, OpenLedger())
        self._engine: Engine[ServingState, Any, Any] = Engine(self._state, policy, record=record)
        self._timers = Timers()
        self._events: tuple[Callable[..., Event], ...] = (*event_classes(), _arrived)  # by number
        self.listens_to_profiler = listens_to_profiler(policy)

    def decide(self, now: Time, raw_events: Sequence[RawEvent]) -> tuple[list[Wish], Time]:
        """Return what the policy wants done, and when to be asked again at the latest."""
        events: list[Any] = [self._events[kind](*what) for kind, what in raw_events]
        events += self._timers.due(now)
        if not events:
            return [], self._timers.earliest
        try:
            return self._wishes(now, events)
        except BaseException as error:  # the native scheduler tells its requests, and asks for a fresh policy
            log.exception("the policy %s failed", self._name)
            words = f"{type(error).__name__}: {error}"
            raise RuntimeError(_readable(words)) from None

    def _wishes(self, now: Time, events: list[Any]) -> tuple[list[Wish], Time]:
        actions = self._engine.step(now, events)
        self._timers.set_from(actions)
        wishes = [self._wish(action) for action in actions if type(action) is not SetTimer]
        return wishes, _whole("a timer", self._timers.earliest)

    def _wish(self, action: Action) -> Wish:
        if type(action) is contract.Dispatch:
            return DISPATCH, action.gpu, action.requests, _whole(action, action.start)
        if type(action) is contract.Drop:
            if not isinstance(action.reason, str):
                raise InvalidAction(f"{action}: its reason is no text")
            return DROP, action.request, _readable(action.reason), 0
        assert type(action) is contract.Preempt, "the books have taken the action"
        return PREEMPT, action.gpu, self._state.gpus[action.gpu].recovering, 0


def policy_maker(plan: ServingPlan, setup: Setup, recorder: Recorder | None) -> Callable[[], PythonPolicy]:
    """Return what makes a fresh policy; the native scheduler calls it between two of its turns.

    What it holds must not refer to the scheduler: nothing would ever free the two.
    """
    return partial(_made, plan, setup, recorder)


def _made(plan: ServingPlan, setup: Setup, recorder: Recorder | None) -> PythonPolicy:
    policy = plan.new_policy(setup)  # a setup that no policy takes leaves the recording as it is
    return PythonPolicy(plan.policy_name, policy, setup, recorder(setup) if recorder else None)
