"""A rate meter counts arriving requests in short bins over a sliding window, in integers.

Integers make the estimate the same on every machine, and let the native twin agree to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.core.quantities import MILLISECOND, Time

BIN: Time = 50 * MILLISECOND
BINS = 100  # a window of five seconds (Symphony's authors: 100 samples of 50 ms)


class RateMeter:
    def __init__(self) -> None:
        self._counts = [0] * BINS
        self._bin = -1  # the bin being filled; -1 before the first request
        self._complete = 0
        self._sum = 0
        self._squares = 0
        self._filling = 0

    def roll(self, now: Time) -> bool:
        """Move on to the bin of *now*; True if at least one more bin is complete."""
        current = now // BIN
        if current == self._bin:
            return False
        if self._bin < 0:
            self._bin = current
            return False
        self._store(self._filling)
        for _ in range(min(current - self._bin - 1, BINS)):
            self._store(0)
        self._bin = current
        self._filling = 0
        return True

    def count(self, requests: int = 1) -> None:
        self._filling += requests

    def window(self) -> tuple[int, Time]:
        """Return the requests counted in the window's complete bins, and its length; (0, 0) at first."""
        return self._sum, min(self._complete, BINS) * BIN

    def rate(self) -> float:
        """Return the requests per nanosecond in the window; 0 at first."""
        count, window = self.window()
        return count / window if window else 0.0

    def dispersion(self) -> float:
        """Return variance over mean of the bins' counts: 1 if requests come independently, more in bursts."""
        bins = min(self._complete, BINS)
        if bins < 2 or self._sum == 0:
            return 1.0
        return (self._squares * bins - self._sum * self._sum) / (bins * self._sum)

    @classmethod
    def sum(cls, meters: Sequence[RateMeter]) -> RateMeter:
        """Return a meter that has counted what all *meters* have, which have rolled to the same bin."""
        total = cls()
        total._bin = max(meter._bin for meter in meters)
        bins = max(min(meter._complete, BINS) for meter in meters)
        for back in range(bins, 0, -1):
            total._store(sum(meter._past(back) for meter in meters))
        total._filling = sum(meter._filling for meter in meters)
        return total

    def _past(self, back: int) -> int:
        """Return the count of the bin that is *back* bins before the present one."""
        return self._counts[(self._complete - back) % BINS] if back <= min(self._complete, BINS) else 0

    def _store(self, count: int) -> None:
        slot = self._complete % BINS
        self._sum += count - self._counts[slot]
        self._squares += count * count - self._counts[slot] * self._counts[slot]
        self._counts[slot] = count
        self._complete += 1
