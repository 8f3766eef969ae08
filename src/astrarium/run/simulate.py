"""Virtual time: the one event loop of every simulated level."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any, Protocol, TypeVar

from astrarium.core.engine import Engine
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import FOREVER, Time

S_in = TypeVar("S_in", contravariant=True)
A_in = TypeVar("A_in", contravariant=True)
E_out = TypeVar("E_out", covariant=True)


class World(Protocol[A_in, E_out, S_in]):
    """A simulated world says what actions and events lead to, and when; the simulation keeps the time."""

    def consequences(self, now: Time, action: A_in, state: S_in) -> Iterable[tuple[Time, E_out]]:
        """Return what an action leads to, once it is committed."""
        ...

    def aftermath(self, now: Time, event: Any, state: S_in) -> Iterable[tuple[Time, E_out]]:
        """Return what an event leads to, once the books know of it."""
        return ()

    def is_void(self, event: Any, state: S_in) -> bool:
        """Return whether what was to happen now does not, since its cause was undone."""
        return False


def simulate(
    engine: Engine[Any, Any, Any],
    arrivals: Iterable[tuple[Time, Any]],
    world: World[Any, Any, Any],
    progress: Callable[[Time], None] | None = None,
) -> Time:
    """Run until nothing more can happen; return the last instant reached.

    *arrivals* are (time, event) in order of time. All events of an instant are decided together.
    """
    run = _Run(engine, iter(arrivals), world)
    while (now := run.next_instant()) < FOREVER:
        events = run.events_at(now)
        if events:
            actions = engine.step(now, events)
            run.follow(now, events)
            run.carry_out(now, actions)
        if progress is not None:
            progress(now)
    engine.close(run.now)
    return run.now


class _Run:
    """The future: arrivals still to come, a heap of consequences, and the timers that are set."""

    def __init__(self, engine: Engine[Any, Any, Any], arrivals: Any, world: World[Any, Any, Any]) -> None:
        self.engine = engine
        self.world = world
        self.now: Time = 0
        self._arrivals = arrivals
        self._next: tuple[Time, Any] = next(arrivals, (FOREVER, None))
        self._heap: list[tuple[Time, int, Any]] = []
        self._sequence = 0  # makes ties deterministic: first caused, first delivered
        self._timers: dict[str, Time] = {}

    def next_instant(self) -> Time:
        return min(self._next[0], self._heap[0][0]) if self._heap else self._next[0]

    def events_at(self, now: Time) -> list[Any]:
        self.now = now
        events: list[Any] = []
        while self._next[0] == now:
            events.append(self._next[1])
            self._next = next(self._arrivals, (FOREVER, None))
        heap = self._heap
        while heap and heap[0][0] == now:
            event = heappop(heap)[2]
            if type(event) is TimerFired:
                if self._timers.get(event.name) != now:
                    continue  # replaced by a later SetTimer
                del self._timers[event.name]  # set away and back again, it still fires once
            if not self.world.is_void(event, self.engine.state):
                events.append(event)
        return events

    def follow(self, now: Time, events: Iterable[Any]) -> None:
        for event in events:
            for at, later in self.world.aftermath(now, event, self.engine.state):
                self._push(at, later)

    def carry_out(self, now: Time, actions: Iterable[Any]) -> None:
        for action in actions:
            if type(action) is SetTimer:
                at = self._timers[action.name] = max(action.at, now)
                self._push(at, TimerFired(action.name))
            else:
                for at, event in self.world.consequences(now, action, self.engine.state):
                    self._push(at, event)

    def _push(self, at: Time, event: Any) -> None:
        if at < FOREVER:
            self._sequence += 1
            heappush(self._heap, (at, self._sequence, event))
