"""How much of an arbiter one user may take, so that there is always some left for the others.

Here are the sizes of what somebody submits or asks, and how often; `wire.connections` has how many connect.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from astrarium.core.errors import InputError

LONGEST_NAME = 200  # bytes of UTF-8 of the name of an app, a team or a model: it becomes part of file names
LONGEST_COMMAND = 1 << 15  # bytes: taking a line apart takes a microsecond for each
LARGEST_ENV = 1 << 16  # bytes of all names and values
LONGEST_PATH = 4096  # bytes: as the kernel has it
LARGEST_APP = 1 << 17  # bytes of an app as written
MOST_JOBS = 10_000  # of all copies of an app together
LARGEST_QUESTION = 1 << 20  # bytes of one message of a user
MOST_LOGS = 20_000  # logs of which somebody says how much is there
MOST_UNREAD = 1000  # messages of one user that the arbiter has not answered
MOST_OPEN = 10_000  # apps of one user that have not ended
MOST_OPEN_JOBS = 20_000  # of all of these together: the arbiter keeps each in memory
JOBS_HOURLY = 100_000  # of all apps of one user that are taken in an hour
MOST_HOURLY = 1 << 26  # bytes of all messages of one user in an hour: the arbiter's disk keeps what they ask
OVERHEAD = 1 << 10  # bytes that any message costs: its row, its answer, an event
MOST_DEPTH = 50  # lists and mappings in each other: whoever reads a message must have the stack for it
LONGEST_ANSWER = 2000  # characters of an error, which may repeat what somebody wrote
HOUR = 3600.0  # seconds
TURN = 20  # messages of one user that the arbiter answers in one turn: nobody waits for all of another's
MOST_LOGS_AT_ONCE = 8  # questions for logs of one user that are answered at a time


def check_size(app: object, field: str) -> None:
    """Refuse an app that is too large as written, or that no message could hold."""
    check_depth(app, field)
    expected = f"an app of at most {LARGEST_APP} bytes, of text, numbers, lists and mappings"
    try:
        size = len(msgspec.json.encode(app))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(field, None, f"{expected} ({error})") from None
    if size > LARGEST_APP:
        raise InputError(field, f"{size} bytes", expected)


def check_depth(body: object, field: str) -> None:
    """Refuse what is nested deeper than anybody writes, however much of the stack is used here."""
    level = [body]
    for _ in range(MOST_DEPTH):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, _NESTED)]
        if not level:
            return
    raise InputError(field, None, f"at most {MOST_DEPTH} lists and mappings in each other")


_NESTED = (dict, list, tuple)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, _NESTED) else ()


class Turns:
    """Each user has so many turns at a time; who has more questions waits, and others do not."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._asking: dict[str, list[threading.Semaphore]] = {}  # of each user, once for every question

    @contextmanager
    def of(self, user: str) -> Iterator[None]:
        with self._lock:
            asking = self._asking.setdefault(user, [])
            turn = asking[0] if asking else threading.Semaphore(self._most)
            asking.append(turn)
        try:
            with turn:
                yield
        finally:
            with self._lock:
                asking.pop()
                if not asking:
                    del self._asking[user]


class Hourly:
    """How much of something each user has taken in an hour, which begins with the first time."""

    def __init__(self, what: str, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._taken: dict[str, tuple[float, int]] = {}  # since when, and how much

    def take(self, user: str, count: int) -> None:
        """Count so much more, or refuse it."""
        now = self._clock()
        with self._lock:
            self._taken = {name: hour for name, hour in self._taken.items() if now < hour[0] + HOUR}
            since, before = self._taken.get(user, (now, 0))
            if before + count > self._most:
                expected = f"at most {self._most} {self._what} of a user in an hour"
                raise InputError("user", user, f"{expected}: wait {since + HOUR - now:.0f} s")
            self._taken[user] = since, before + count
