"""What scheduling needs of an event loop, so that tests can be one: the time, another turn, an alarm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic_ns
from typing import Protocol

from astrarium.core.units import SECOND, Time
from astrarium.run.live import Alarm, KernelAlarm


class Loop(Protocol):
    def clock(self) -> Time: ...
    def soon(self, call: Callable[[], None]) -> object: ...
    def later(self, after: Time, call: Callable[[], None]) -> object: ...
    def alarm(self, ring: Callable[[], None]) -> Alarm: ...


class EventLoop:
    """That of asyncio."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def clock(self) -> Time:
        return monotonic_ns()

    def soon(self, call: Callable[[], None]) -> object:
        return self._loop.call_soon(call)

    def later(self, after: Time, call: Callable[[], None]) -> object:
        return self._loop.call_later(after / SECOND, call)

    def alarm(self, ring: Callable[[], None]) -> Alarm:
        return KernelAlarm(self._loop, ring)
