"""A precise wait ends at an instant of the monotonic clock, nearly exactly.

The kernel wakes a sleeper late: measured on a virtual machine with 2 cores, by 87 us in the median with the
default timer slack and by 37 us with the finest after 3 ms, by 150 us after 20 ms, when the core has gone to
sleep deeper. So a wait sleeps twice: first until NEARLY, then until SPIN before it; the rest is spent looking
at the clock and at what arrives. Batches of 6 to 22 ms are then found to have ended 5 to 7 us late in the
median; beyond that, it is other processes that want the core.

Of what a real GPU does, nobody knows the end beforehand, only when it can be expected: such a wait asks
whether it is ready, all the time around that instant, and less and less often afterwards.
"""

from __future__ import annotations

import ctypes
import select
import time
from collections.abc import Callable
from typing import Protocol

SPIN = 80_000  # nanoseconds
NEARLY = 450_000  # time to wake up late
_PR_SET_TIMERSLACK = 29

LONGEST_PAUSE = 1_000_000  # between two questions whether something is ready

Ready = Callable[[], bool]


class Wait(Protocol):
    """A wait lasts until an instant, or until something is *ready*, which is expected at that instant.

    It returns False where it was interrupted before. What has to get ready is not interrupted.
    """

    def __call__(self, instant: int, ready: Ready | None = None) -> bool: ...


Heard = Callable[[int], bool]  # told until when the wait lasts; True ends it
Watch = Callable[[int, Heard], Wait]


def fine_timers() -> bool:
    """Ask the kernel to wake this thread (and those it starts) as exactly as it can. Linux only."""
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def watching(descriptor: int | None = None, heard: Heard = lambda until: False) -> Wait:
    """Return a wait that listens meanwhile: whenever *descriptor* can be read, *heard* is asked.

    It must read what is there; True ends the wait.
    """
    watched = [] if descriptor is None else [descriptor]

    def wait(instant: int, ready: Ready | None = None) -> bool:
        if ready is not None:
            return wait_for(instant, ready)
        rest = instant - time.monotonic_ns()
        early = NEARLY if rest > NEARLY else SPIN
        while rest > 0:
            if select.select(watched, [], [], max(0, rest - early) / 1e9)[0] and heard(instant):
                return False
            rest = instant - time.monotonic_ns()
            if rest <= NEARLY:
                early = SPIN
        return True

    def wait_for(instant: int, ready: Ready) -> bool:
        while not ready():
            rest = instant - time.monotonic_ns()
            pause = rest - NEARLY if rest > NEARLY else _pause(rest)
            if select.select(watched, [], [], pause / 1e9)[0]:
                heard(instant)
        return True

    return wait


def _pause(rest: int) -> int:
    """Return how long not to ask whether something is ready that is expected in *rest*.

    Around that instant it is asked all the time; later, at most an eighth of the delay is added to it.
    """
    if rest > SPIN:
        return rest - SPIN
    return 0 if rest > -SPIN else min(-rest // 8, LONGEST_PAUSE)


wait_until = watching()  # nothing interrupts it
