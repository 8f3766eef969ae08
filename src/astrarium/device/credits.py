"""Credits keep a job that comes late, or was idle, from catching up with what others had before."""

from __future__ import annotations

from collections.abc import Iterable

from astrarium.core.quantities import Time
from astrarium.device.ledger import Ledger


class Credits:
    """A credit is what an admitted job is taken to have had beside its service, so that it does not catch up
    with what others had before it came, or while it was idle. The level is what the least served of the jobs
    that use the GPU had; it only rises."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._credit: dict[int, Time] = {}
        self._level: Time = 0

    def of(self, job: int) -> Time:
        return self._credit.get(job, self._level)

    def came(self, job: int) -> None:
        self._credit[job] = self._level

    def came_back(self, job: int) -> None:
        """Raise the credit of a job that was idle. A job that is back before another has ended an iteration
        gets nothing: the level is not above it yet."""
        self._credit[job] = max(self._credit[job], self._level - self._ledger.rows[job].service)

    def ran(self, using: Iterable[int]) -> None:
        """Raise the level after an iteration: *using* are the job that ended it, and those using the GPU."""
        had = (self._credit[job] + self._ledger.rows[job].service for job in using)
        self._level = max(self._level, min(had, default=0))

    def left(self, job: int) -> None:
        self._credit.pop(job, None)
