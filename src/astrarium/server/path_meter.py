"""The path meter tells what calls cost the path, and so how many calls a second the path carries.

The path is the network threads, which read and answer calls, and the scheduler's thread. What passes through
Python is not counted, nor are GPUs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from astrarium.core.quantities import SECOND, Time

FEWEST = 1000  # calls a second; with fewer a call costs mostly what waking up for it costs
KEPT = 60 * SECOND


class PathUse(NamedTuple):
    """Path use is what the path has done since the server began."""

    calls: int = 0  # answered
    network: Time = 0  # CPU time of all network threads
    scheduler: Time = 0  # CPU time of the scheduler's thread


class PathMeter:
    """The path meter looks once a second; the second of the last minute in which calls cost least counts.

    The more calls come, the less each costs, since those that come together share a turn of a thread. So a
    path carries at least what its busiest second says; *carries* is 0 before there was one, and stays after.
    """

    def __init__(self, threads: int, use: Callable[[], PathUse]) -> None:
        self.use = use
        self.carries = 0.0
        self._threads = threads
        self._looked: Time = 0
        self._before = PathUse()
        self._seconds: deque[tuple[Time, float]] = deque()  # what each says, by when it ended

    def look(self, now: Time) -> None:
        if now - self._looked < SECOND:
            return
        use = self.use()
        new = PathUse(*(after - before for after, before in zip(use, self._before, strict=True)))
        if new.calls * SECOND >= FEWEST * (now - self._looked):
            self._seconds.append((now, carried(new, self._threads)))
        while self._seconds and self._seconds[0][0] < now - KEPT:
            self._seconds.popleft()
        self.carries = max((rate for _, rate in self._seconds), default=self.carries)
        self._looked = now
        self._before = use


def carried(use: PathUse, threads: int) -> float:
    """Return the calls a second at which so many network threads, or the scheduler's, would never sleep."""
    busiest = max(use.network / threads, use.scheduler)
    return use.calls * SECOND / busiest if busiest else 0.0
