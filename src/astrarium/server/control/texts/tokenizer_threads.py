"""The CPU time of threads that make tokens is counted: ours, and those of the library.

The library tokenizes a text that comes alone in the thread that asks, and several in threads of its own, as
many as there are cores. These have no names: they are those that its first texts leave behind.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from time import clock_gettime_ns
from typing import TypeVar

from astrarium.core.quantities import Time

_OF_A_THREAD = 6  # in Linux's number of a clock, behind that of the thread: it is the CPU time of one
T = TypeVar("T")


class LibraryThreads:
    """The threads that the library starts when it first has several texts at once; they stay to the end."""

    def __init__(self) -> None:
        self.numbers: frozenset[int] = frozenset()
        self._looked = False
        self._lock = Lock()

    def watched(self, encode: Callable[[], T]) -> T:
        """Have several texts encoded, and find the threads that do it."""
        if self._looked:
            return encode()
        with self._lock:
            before = _threads()
            result = encode()
            if not self._looked:
                self.numbers = _threads() - before
                self._looked = True
            return result

    def cpu_time(self) -> Time:
        return sum(map(cpu_time, self.numbers))


def cpu_time(thread: int) -> Time:
    """Return the CPU time that a thread of this process has had; 0 where it has ended."""
    with suppress(OSError):
        return clock_gettime_ns(cpu_clock(thread))
    return 0


def cpu_clock(thread: int) -> int:
    """Return the clock of a thread by its number in Linux; the library for threads knows those of its own."""
    return ~thread << 3 | _OF_A_THREAD


def _threads() -> frozenset[int]:
    return frozenset(map(int, os.listdir("/proc/self/task")))


library_threads = LibraryThreads()  # of this process
