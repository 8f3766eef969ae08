"""How much of an arbiter one user may take, so that there is always some left for the others.

Connections are of three kinds, and each has places of its own: users, operators, and agents. Who has not yet
shown a key is a stranger, and strangers give way to each other, never the others to them.
"""

from __future__ import annotations

import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import msgspec

from astrarium.core.errors import AstrariumError, InputError

# What somebody submits or asks.

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
    told = f"an app of at most {LARGEST_APP} bytes, of text, numbers, lists and mappings"
    try:
        size = len(msgspec.json.encode(app))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(field, None, f"{told} ({error})") from None
    if size > LARGEST_APP:
        raise InputError(field, f"{size} bytes", told)


def check_depth(body: object, field: str) -> None:
    """Refuse what is nested deeper than anybody writes, however much of the stack is used here."""
    level = [body]
    for _ in range(MOST_DEPTH):
        level = [inner for each in level for inner in _inside(each) if isinstance(inner, _NESTED)]
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

    def __init__(self, each: int) -> None:
        self._each = each
        self._lock = threading.Lock()
        self._asking: dict[str, list[threading.Semaphore]] = {}  # of each user, once for every question

    @contextmanager
    def of(self, user: str) -> Iterator[None]:
        with self._lock:
            asking = self._asking.setdefault(user, [])
            turn = asking[0] if asking else threading.Semaphore(self._each)
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
            self._taken = {name: each for name, each in self._taken.items() if now < each[0] + HOUR}
            since, before = self._taken.get(user, (now, 0))
            if before + count > self._most:
                told = f"at most {self._most} {self._what} of a user in an hour"
                raise InputError("user", user, f"{told}: wait {since + HOUR - now:.0f} s")
            self._taken[user] = since, before + count


# Connections.

IDLE = 60.0  # seconds in which somebody who is connected has to ask something
MOST_DESCRIPTORS = 1 << 16  # jobs inherit the limit, and some programs do something for each


class Full(AstrariumError):
    """Somebody has as many connections as may be."""


class ConnectionLimits(NamedTuple):
    """The most connections at a time. The default is for 1024 descriptors, of which one question takes up
    to five: its connection, the store with its log and index, and a log."""

    strangers: int = 64
    user: int = 12  # of one of them
    users: int = 48
    operators: int = 16
    agents: int = 512


def fitting(descriptors: int) -> ConnectionLimits:
    """Return limits that leave a tenth of all descriptors, or more, for the store, keepers and logs."""
    users = min(2048, descriptors * 48 // 1024)
    return ConnectionLimits(
        strangers=min(256, descriptors // 16),
        user=max(1, min(64, users // 4)),
        users=users,
        operators=min(256, descriptors // 64),
        agents=descriptors // 2,
    )


def raised_descriptors() -> int:
    """Let this process open as many files as it may, and return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    found = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_DESCRIPTORS if found == resource.RLIM_INFINITY else found


class Slot:
    """A connection's place in a pool, until it leaves; *evict* has the connection end."""

    def __init__(self, pool: Pool, group: str, evict: Callable[[], None]) -> None:
        self._pool = pool
        self.group = group
        self.evict = evict

    def leave(self) -> None:
        self._pool.leave(self)


class Pool:
    """At most *most* connections at a time, and *each* of one group, such as a user or an address.

    When all places are taken, the oldest connection of the largest group gives way, if that makes groups
    more alike; else the newcomer is refused. With *yields* one always gives way, if need be of the
    newcomer's own group.
    """

    def __init__(self, what: str, most: int, each: int = 0, yields: bool = False) -> None:
        self._what = what
        self._most = most
        self._each = each or most
        self._yields = yields
        self._slots: dict[Slot, None] = {}  # the oldest first
        self._sizes: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._slots)

    def enter(self, group: str, evict: Callable[[], None]) -> Slot:
        """Return a place for a connection, or raise Full."""
        slot = Slot(self, group, evict)
        with self._lock:
            loser = self._loser(group)
            if loser is not None:
                self._remove(loser)
            self._slots[slot] = None
            self._sizes[group] += 1
        if loser is not None:
            loser.evict()
        return slot

    def give_way(self) -> None:
        """Have the oldest connection of the largest group end: something else needs its descriptor."""
        with self._lock:
            loser = self._oldest(self._largest()) if self._slots else None
            if loser is not None:
                self._remove(loser)
        if loser is not None:
            loser.evict()

    def leave(self, slot: Slot) -> None:
        with self._lock:
            self._remove(slot)

    def _loser(self, group: str) -> Slot | None:
        """Return who has to give way to a newcomer, if somebody must."""
        own = self._sizes[group]
        if own >= self._each and not self._yields:
            raise Full(f"{group} has {own} connections open, and may have {self._each}: close some")
        if len(self._slots) < self._most:
            return None
        largest = self._largest()
        if self._yields or self._sizes[largest] > own + 1:
            return self._oldest(largest)
        raise Full(f"all {self._most} connections for {self._what} are taken: try again in a moment")

    def _largest(self) -> str:
        return self._sizes.most_common(1)[0][0]

    def _oldest(self, group: str) -> Slot:
        return next(slot for slot in self._slots if slot.group == group)

    def _remove(self, slot: Slot) -> None:
        """Forget a place; one that was given up already has been forgotten."""
        if slot in self._slots:
            del self._slots[slot]
            self._sizes[slot.group] -= 1
            if not self._sizes[slot.group]:
                del self._sizes[slot.group]


class Connections:
    """The connections of all whom an arbiter knows; *operator* tells operators by their names."""

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        operator: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self.limits = limits = limits or ConnectionLimits()
        self._operator = operator
        self.agents = Pool("agents", limits.agents)
        self.operators = Pool("operators", limits.operators, yields=True)
        self.users = Pool("users", limits.users, limits.user)

    def of(self, name: str) -> Pool:
        """Return the pool in which somebody's connection has its place."""
        return self.operators if self._operator(name) else self.users
