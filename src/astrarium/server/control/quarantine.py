"""The quarantine holds inputs that have broken a worker alone: the same bytes are refused for a while.

The native scheduler has one of its own (native/src/front/quarantine.h); this one is for the Python scheduler.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from secrets import token_bytes
from typing import NamedTuple

from astrarium.core.units import SECOND, Time
from astrarium.server.control.tickets import Ticket

LASTS = 600 * SECOND
MOST = 1000  # of a model; then the oldest is let out


class QuarantinedInput(NamedTuple):
    """An input is held from *since* until *until* (monotonic clock) for what it did."""

    model: int
    digest: int
    since: Time
    until: Time
    reason: str


class Quarantine:
    """*memory* is where tickets have their inputs."""

    def __init__(self, models: int, memory: memoryview) -> None:
        self._held: list[deque[QuarantinedInput]] = [deque(maxlen=MOST) for _ in range(models)]
        self._memory, self._key = memory, token_bytes(32)  # so that nobody can make two inputs of one digest

    def add(self, ticket: Ticket, reason: str, now: Time) -> None:
        if self.find(ticket, now) is not None:
            return
        held = QuarantinedInput(ticket.model, self._digest(ticket), now, now + LASTS, reason)
        self._held[ticket.model].append(held)

    def find(self, ticket: Ticket, now: Time) -> QuarantinedInput | None:
        """Return the entry that a call's inputs are held by; None where they are not, or not made yet."""
        held = self._held[ticket.model]
        while held and held[0].until <= now:
            held.popleft()
        if not held or not ticket.inputs_ready:
            return None
        digest = self._digest(ticket)
        return next((one for one in held if one.digest == digest), None)

    def release(self, model: int) -> int:
        """Let all inputs of a model out; return how many there were."""
        count = len(self._held[model])
        self._held[model].clear()
        return count

    def all(self, now: Time) -> list[QuarantinedInput]:
        return [one for held in self._held for one in held if one.until > now]

    def _digest(self, ticket: Ticket) -> int:
        hashed = blake2b(self._memory[ticket.block : ticket.replies], digest_size=8, key=self._key)
        hashed.update(repr((ticket.call.rows, ticket.shapes)).encode())
        return int.from_bytes(hashed.digest())
