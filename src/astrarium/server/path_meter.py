"""The path meter tells what calls cost the path, and so how many calls a second the path carries.

The path is the threads that have something to do for every call: network threads read and answer, the
scheduler's decides, and Python's event loop has what goes the long way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from astrarium.core.quantities import SECOND, Time

LEAST_BUSY = 0.1  # of a second: with less to do a call costs mostly what waking up for it costs
FEWEST = 100  # calls of a second: with fewer, what else a thread does counts for too much
KEPT = 60 * SECOND


class PathUse(NamedTuple):
    """Path use is what the path has done since the server began: calls answered, and CPU time."""

    calls: int = 0
    network: Time = 0  # of all network threads
    scheduler: Time = 0
    python: Time = 0

    def busiest(self, threads: int) -> float:
        """Return the CPU time of the busiest thread, where there are so many network threads."""
        return max(self.network / threads, self.scheduler, self.python)


class PathMeter:
    """The path meter looks once a second; the second of the last minute in which calls cost least counts.

    The more calls come, the less each costs, since those that come together share a turn of a thread. So a
    path carries at least what a busy second says; *carries* is 0 before there was one, and stays after.
    """

    def __init__(self, threads: int, use: Callable[[], PathUse]) -> None:
        self.use = use
        self.carries = 0.0  # calls a second at which some thread would never sleep
        self._threads = threads
        self._looked: Time = 0
        self._before = PathUse()
        self._seconds: deque[tuple[Time, float]] = deque()  # what each says, by when it ended

    def look(self, now: Time) -> None:
        passed = now - self._looked
        if passed < SECOND:
            return
        use = self.use()
        new = PathUse(*(after - before for after, before in zip(use, self._before, strict=True)))
        busiest = new.busiest(self._threads)
        if new.calls * SECOND >= FEWEST * passed and busiest >= LEAST_BUSY * passed:
            self._seconds.append((now, new.calls * SECOND / busiest))
        while self._seconds and self._seconds[0][0] < now - KEPT:
            self._seconds.popleft()
        self.carries = max((rate for _, rate in self._seconds), default=self.carries)
        self._looked = now
        self._before = use
