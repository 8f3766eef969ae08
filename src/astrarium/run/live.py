"""The wall clock: what happened since the last look is one instant, decided together.

The driver has no thread and no sleep of its own. It is told of events, asks to be called again soon, and
sets one alarm for the earliest timer; an event loop (or a test) does the rest.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from astrarium.core.engine import Engine
from astrarium.core.policy import SetTimer
from astrarium.core.timers import Timers
from astrarium.core.units import FOREVER, SECOND, Time

# A timer as exact as the kernel's: event loops round theirs up to whole milliseconds.


_CLOCK_MONOTONIC, _ABSOLUTE = 1, 1
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)
_set = _libc.timerfd_settime
_set.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)  # known types convert faster


class _Moment(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Moment), ("value", _Moment))


class KernelAlarm:
    """Calls *ring* once the monotonic clock has reached the moment that was set last."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop, self._ring = loop, ring
        self._fd = _libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._setting = _Setting()
        self._value, self._address = self._setting.value, ctypes.addressof(self._setting)
        loop.add_reader(self._fd, self._rang)

    def set(self, moment: Time) -> None:
        """A moment that has passed rings at once."""
        value = self._value
        value.seconds, value.nanoseconds = divmod(max(moment, 1), SECOND)
        _set(self._fd, _ABSOLUTE, self._address, None)

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _rang(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # it was set anew before we came to read it
        self._ring()


class Alarm(Protocol):
    def set(self, moment: Time) -> None:
        """Call `LiveDriver.step` at *moment*, instead of any moment set before."""

    def close(self) -> None:
        """Ring no more."""


class LiveDriver:
    """*clock* starts near 0 and never runs backwards; *soon* calls back after what is going on now."""

    def __init__(
        self,
        engine: Engine[Any, Any, Any],
        carry_out: Callable[[Time, Sequence[Any]], None],
        clock: Callable[[], Time],
        soon: Callable[[Callable[[], None]], object],
        alarm: Alarm,
    ) -> None:
        self._engine, self._carry_out = engine, carry_out
        self._clock, self._soon, self._alarm = clock, soon, alarm
        self._inbox: list[Any] = []
        self._timers = Timers()
        self._set_for = FOREVER
        self._called = False

    def post(self, event: Any) -> None:
        """Something happened; it is decided on with all else that is heard before the next step."""
        self._inbox.append(event)
        if not self._called:
            self._called = True
            self._soon(self.step)

    @property
    def pending(self) -> bool:
        """Whether something was posted that no step has taken yet."""
        return bool(self._inbox)

    def step(self) -> None:
        self._called = False
        now = self._clock()
        events, self._inbox = self._inbox, []
        events.extend(self._timers.due(now))
        if events:
            actions = self._engine.step(now, events)
            self._carry_out(now, [action for action in actions if not self._is_timer(action)])
        self._set_alarm(now)

    def forget_timers(self) -> None:
        """For a policy that is asked no more."""
        self._timers.clear()

    def _is_timer(self, action: Any) -> bool:
        if type(action) is not SetTimer:
            return False
        self._timers.set(action)
        return True

    def _set_alarm(self, now: Time) -> None:
        """Also when it rang too early: what is due later needs another."""
        earliest = self._timers.earliest
        if earliest < FOREVER and (earliest != self._set_for or earliest <= now):
            self._alarm.set(earliest)
        self._set_for = earliest
