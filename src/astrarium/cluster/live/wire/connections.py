"""Connections to an arbiter are of three kinds, and each has places of its own: users, operators, and agents.

Who has not yet shown a key is a stranger, and strangers give way to each other, never the others to them.
"""

from __future__ import annotations

import resource
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from astrarium.core.errors import AstrariumError

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
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_DESCRIPTORS if allowed == resource.RLIM_INFINITY else allowed


class Slot:
    """A connection's place in a pool, until it leaves; *evict* has the connection end."""

    def __init__(self, pool: Pool, group: str, evict: Callable[[], None]) -> None:
        self._pool = pool
        self.group = group
        self.evict = evict

    def leave(self) -> None:
        self._pool.leave(self)


class Pool:
    """At most *most* connections at a time, and *group_most* of one group, such as a user or an address.

    When all places are taken, the oldest connection of the largest group gives way, if that makes groups
    more alike; else the newcomer is refused. With *yields* one always gives way, if need be of the
    newcomer's own group.
    """

    def __init__(self, what: str, most: int, group_most: int = 0, yields: bool = False) -> None:
        self._what = what
        self._most = most
        self._group_most = group_most or most
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
        if own >= self._group_most and not self._yields:
            raise Full(f"{group} has {own} connections open, and may have {self._group_most}: close some")
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
