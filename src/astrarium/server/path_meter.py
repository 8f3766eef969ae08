"""The path meter tells what calls cost the path, and so how many calls a second the path carries.

The path is the threads that have something to do for every call: network threads read and answer, the
scheduler's decides, and Python's event loop has what goes the long way. Texts also have threads that make
tokens of them, and those of the tokenizers' library.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from astrarium.core.quantities import SECOND, Time

LEAST_BUSY = 0.1  # of a second: with less to do a call costs mostly what waking up for it costs
FEWEST = 100  # calls of a second: with fewer, what else a thread does counts for too much
KEPT = 60 * SECOND


class PathThreads(NamedTuple):
    """There are so many threads of each kind; of all others there is one."""

    network: int = 1
    tokenizers: int = 0
    library: int = 0


class PathUse(NamedTuple):
    """Path use is what the path has done since the server began: calls, and CPU time."""

    accepted: int = 0
    answered: int = 0
    network: Time = 0  # of all network threads
    scheduler: Time = 0
    python: Time = 0
    tokenizers: Time = 0  # of all threads that make tokens
    library: Time = 0  # of all those of the tokenizers' library

    @property
    def calls(self) -> int:
        """Return how many calls all of this was done for: those that were only read cost more, or waited."""
        return min(self.accepted, self.answered)

    def busiest(self, threads: PathThreads) -> float:
        """Return the CPU time of the busiest thread, where those of a kind have as much to do."""
        shared = zip((self.network, self.tokenizers, self.library), threads, strict=True)
        return max(self.scheduler, self.python, *(time / max(1, count) for time, count in shared))


class PathMeter:
    """The path meter looks once a second; the second of the last minute in which calls cost least counts.

    The more calls come, the less each costs, since those that come together share a turn of a thread. So a
    path carries at least what a busy second says; *carries* is 0 before there was one, and stays after. A
    second that answers what one before it has read says no more than the calls that it has read itself.
    """

    def __init__(self, threads: Callable[[], PathThreads], use: Callable[[], PathUse]) -> None:
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
        busiest = new.busiest(self._threads())
        if new.calls * SECOND >= FEWEST * passed and busiest >= LEAST_BUSY * passed:
            self._seconds.append((now, new.calls * SECOND / busiest))
        while self._seconds and self._seconds[0][0] < now - KEPT:
            self._seconds.popleft()
        self.carries = max((rate for _, rate in self._seconds), default=self.carries)
        self._looked = now
        self._before = use
