"""Timers of a live policy: one thread, which is there while any is set."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, RLock, Thread

from astrarium.core.units import FOREVER, SECOND, Time

IDLE: Time = SECOND  # without a timer, until the thread ends


class Alarms:
    """*ring* is called with the names that are due, and without the lock; the rest with the lock held."""

    def __init__(self, lock: RLock, now: Callable[[], Time], ring: Callable[[list[str]], None]) -> None:
        self._now, self._ring = now, ring
        self._earlier = Condition(lock)
        self._set: dict[str, Time] = {}
        self._thread: Thread | None = None
        self._sleeps_until: Time = 0

    def set(self, name: str, at: Time) -> None:
        """A later timer of the same name replaces it. The thread is woken only if it would sleep too long."""
        self._set[name] = at
        if self._thread is None:
            self._thread = Thread(target=self._work, name="alarms of a shared GPU", daemon=True)
            self._thread.start()
        elif at < self._sleeps_until:
            self._earlier.notify()

    def clear(self) -> None:
        self._set.clear()

    def _work(self) -> None:
        while (due := self._due()) is not None:
            if due:
                self._ring(due)

    def _due(self) -> list[str] | None:
        """After some sleep, where there is time; None where nobody needs the thread any more."""
        with self._earlier:
            if not self._set and not self._sleep(self._now() + IDLE) and not self._set:
                self._thread = None
                return None
            self._sleep(min(self._set.values(), default=FOREVER))
            due = [name for name, at in self._set.items() if at <= self._now()]
            for name in due:
                del self._set[name]
            return due

    def _sleep(self, until: Time) -> bool:
        """Whether it was woken."""
        self._sleeps_until = until
        left = (until - self._now()) / SECOND
        return left > 0 and self._earlier.wait(left)
