"""The timers that a policy has set, on whatever clock its driver has."""

from __future__ import annotations

from collections.abc import Iterable

from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import FOREVER, Time


class Timers:
    """Timers by name: one that is set again replaces the earlier, and one that is set for ever is unset.

    *at* holds them, where a driver keeps them beyond its own life.
    """

    def __init__(self, at: dict[str, Time] | None = None) -> None:
        self._at: dict[str, Time] = {} if at is None else at

    def set(self, timer: SetTimer) -> None:
        self._at.pop(timer.name, None)  # it fires after those that were set before it for the same instant
        if timer.at < FOREVER:
            self._at[timer.name] = timer.at

    def set_from(self, actions: Iterable[object]) -> None:
        """Set the timers among what a policy asked for."""
        for action in actions:
            if type(action) is SetTimer:
                self.set(action)

    def due(self, now: Time) -> list[TimerFired]:
        """Return the timers whose instant has come, which are set no more."""
        names = [name for name, at in self._at.items() if at <= now]
        for name in names:
            del self._at[name]
        return [TimerFired(name) for name in names]

    @property
    def earliest(self) -> Time:
        return min(self._at.values(), default=FOREVER)

    def clear(self) -> None:
        self._at.clear()

    def __bool__(self) -> bool:
        return bool(self._at)
