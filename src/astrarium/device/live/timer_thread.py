"""The timers of a live policy are waited for by a thread."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, RLock, Thread

from astrarium.core.policy import SetTimer
from astrarium.core.quantities import SECOND, Time
from astrarium.core.timers import Timers

IDLE: Time = SECOND  # without a timer, until the thread ends


class TimerThread:
    """A thread, which exists while any timer is set, waits for the timers of a live policy. *on_due* is
    called with the names that are due, and without the lock; everything else with the lock held."""

    def __init__(self, lock: RLock, now: Callable[[], Time], on_due: Callable[[list[str]], None]) -> None:
        self._now = now
        self._timers_due = on_due
        self._earlier = Condition(lock)
        self._set = Timers()
        self._thread: Thread | None = None
        self._sleeps_until: Time = 0

    def set(self, name: str, at: Time) -> None:
        """Set a timer in place of one of the same name. A thread that would sleep too long is woken."""
        self._set.set(SetTimer(at, name))
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
                self._timers_due(due)

    def _due(self) -> list[str] | None:
        """Return the timers that are due, after some sleep; None where nobody needs the thread any more."""
        with self._earlier:
            if not self._set and not self._sleep(self._now() + IDLE) and not self._set:
                self._thread = None
                return None
            self._sleep(self._set.earliest)
            return [timer.name for timer in self._set.due(self._now())]

    def _sleep(self, until: Time) -> bool:
        """Sleep until then; tell whether the thread was woken."""
        self._sleeps_until = until
        left = (until - self._now()) / SECOND
        return left > 0 and self._earlier.wait(left)
