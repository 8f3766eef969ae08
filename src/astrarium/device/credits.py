"""What jobs are taken to have had beside their service, so that nobody is made up for what others had before
it came, or while it was idle."""

from __future__ import annotations

from collections.abc import Iterable

from astrarium.core.units import Time
from astrarium.device.ledger import Ledger


class Credits:
    """Of admitted jobs. The level is what the least served of those who use the GPU had; it only rises."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._credit: dict[int, Time] = {}
        self._level: Time = 0

    def of(self, job: int) -> Time:
        return self._credit.get(job, self._level)

    def came(self, job: int) -> None:
        self._credit[job] = self._level

    def came_back(self, job: int) -> None:
        """Nothing for one that is back before somebody else has ended an iteration: the level is not above
        it yet."""
        self._credit[job] = max(self._credit[job], self._level - self._ledger.rows[job].service)

    def ran(self, using: Iterable[int]) -> None:
        """After an iteration: *using* are the job that ended it, and those who run or want to."""
        had = (self._credit[job] + self._ledger.rows[job].service for job in using)
        self._level = max(self._level, min(had, default=0))

    def left(self, job: int) -> None:
        self._credit.pop(job, None)
