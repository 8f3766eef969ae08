"""A timer as exact as the kernel's: event loops round theirs up to whole milliseconds."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable

from astrarium.core.units import SECOND, Time

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
