"""What the last minute brought, for autoscaling advice and rates."""

from __future__ import annotations

from astrarium.core.quantities import MILLISECOND, Time


class LastMinute:
    """The last minute is kept in steps of one second, for autoscaling advice and rates."""

    SECONDS = 60

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}  # by second: ended, good, busy nanoseconds

    def add(self, now: Time, ended: int = 0, good: int = 0, busy: Time = 0) -> None:
        second = now // (1000 * MILLISECOND)
        row = self._rows.get(second)
        if row is None:
            row = self._rows[second] = [0, 0, 0]
            for old in [key for key in self._rows if key < second - self.SECONDS]:
                del self._rows[old]
        row[0] += ended
        row[1] += good
        row[2] += busy

    def totals(self, now: Time) -> tuple[int, int, Time]:
        """Return how many calls ended and were good over the last minute, and the busy nanoseconds."""
        since = now // (1000 * MILLISECOND) - self.SECONDS
        rows = [row for second, row in self._rows.items() if second > since]
        return sum(row[0] for row in rows), sum(row[1] for row in rows), sum(row[2] for row in rows)
