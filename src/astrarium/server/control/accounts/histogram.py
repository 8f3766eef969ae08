"""Histograms as Prometheus has them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from astrarium.core.quantities import Time

# Upper bounds in seconds: from a fast path to an objective of seconds.
TIME_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
SIZE_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class PrometheusHistogram:
    """It counts values for `/metrics`, each under the least of its bounds, or beyond the largest."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += count * value

    def enter(self, counts: Sequence[int], ns: Time) -> None:
        """Enter times that were counted by the same bounds elsewhere."""
        self.counts = list(map(int.__add__, self.counts, counts))
        self.sum += ns / 1e9
