"""A precise wait ends at an instant of the monotonic clock, nearly exactly.

The kernel wakes a sleeper late: measured on a virtual machine with 2 cores, by 87 us in the median with the
default timer slack and by 37 us with the finest after 3 ms, by 150 us after 20 ms, when the core has gone to
sleep deeper. So a wait sleeps twice: first until NEARLY, when somebody may prepare for the end, then until
SPIN before it; the rest is spent looking at the clock and at what arrives. Batches of 6 to 22 ms are then
found to have ended 5 to 7 us late in the median; beyond that, it is other processes that want the core.
"""

from __future__ import annotations

import ctypes
import select
import time
from collections.abc import Callable

SPIN = 80_000  # nanoseconds
NEARLY = 450_000  # time to wake up late, and to prepare with cold caches
_PR_SET_TIMERSLACK = 29

Wait = Callable[[int], bool]  # until an instant; False where it was interrupted before
Heard = Callable[[int], bool]  # told until when the wait lasts; True ends it
Watch = Callable[[int, Heard, Callable[[], None]], Wait]


def fine_timers() -> bool:
    """Ask the kernel to wake this thread (and those it starts) as exactly as it can. Linux only."""
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def wait_until(instant: int) -> bool:
    """Sleep, then spin until an instant; return True, since nothing interrupts it."""
    rest = instant - SPIN - time.monotonic_ns()
    if rest > 0:
        time.sleep(rest / 1e9)
    return _spin(instant)


def watching(descriptor: int, heard: Heard, nearly: Callable[[], None]) -> Wait:
    """Return a wait that listens meanwhile: whenever *descriptor* can be read, *heard* is asked.

    It must read what is there; True ends the wait. *nearly* is called NEARLY before the end of a longer wait.
    """

    def wait(instant: int) -> bool:
        rest = instant - time.monotonic_ns()
        early = NEARLY if rest > NEARLY else SPIN
        while rest > 0:
            if select.select([descriptor], [], [], max(0, rest - early) / 1e9)[0] and heard(instant):
                return False
            rest = instant - time.monotonic_ns()
            if early == NEARLY >= rest:
                early = SPIN
                nearly()
                rest = instant - time.monotonic_ns()
        return True

    return wait


def _spin(instant: int) -> bool:
    while time.monotonic_ns() < instant:
        pass
    return True
