"""A score is the priority of a request, as a point in the plane (Orloj, sections 4.4.1 and 4.4.4).

A request that is not chosen now waits for an anticipated delay, exponential with rate b. Choosing it gains
the chance that it would be in time now and late after that delay, for each unit of time that its batch is
expected to take. With the batch's time as a histogram, a bin [a, z) of chance h, and r = due - t left, gains

    r >= z       h exp(-b (r - z)) (1 - exp(-b (z - a))) / (b (z - a))
    a <= r < z   h (1 - exp(-b (r - a))) / (b (z - a))
    r < a        0

So while r stays between two edges the score is alpha exp(b t) + beta with alpha and beta fixed. At most one
bin is in the second case; all before it are in the first, and their sum is a number of the table times
exp(-b (due - e)), e being the last edge that r has not fallen below. No exponent is ever above zero, but
the query's exp(b t): t and due count from a base that is moved up before b t grows beyond reason.

Numbers are computed in a fixed order with + - * / exp and expm1, so that a native twin finds the same bit
by bit.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from math import exp, expm1
from typing import NamedTuple

from astrarium.core.quantities import FOREVER, Time
from astrarium.serving.policies._times import BatchTime


class Point(NamedTuple):
    """A point gives a request's score: alpha exp(b (t - base)) + beta until the milestone."""

    alpha: float
    beta: float
    milestone: Time


class ScoreTable:
    """A score table scores requests of one kind in batches of one size; *rate* is b, per nanosecond."""

    def __init__(self, time: BatchTime, rate: float) -> None:
        self.mean = time.mean
        self._rate = rate
        self._scale = float(max(1, time.mean))
        self._edges: list[Time] = []
        self._alphas: list[float] = []  # by the last edge not fallen below, over exp(-b (due - edge))
        self._betas: list[float] = []
        gathered = last = 0.0
        for (low, high), chance in zip(pairwise(time.edges), time.chances, strict=True):
            width = rate * (high - low)
            inside = chance / width
            if chance or last:  # an edge between two empty bins changes nothing
                self._append(low, gathered - inside, inside)
            gathered = gathered * exp(-width) - chance * (expm1(-width) / width)
            last = chance
        if last:
            self._append(time.edges[-1], gathered, 0.0)

    def _append(self, edge: Time, alpha: float, beta: float) -> None:
        self._edges.append(edge)
        self._alphas.append(alpha / self._scale)
        self._betas.append(beta / self._scale)

    def point(self, now: Time, due: Time, base: Time) -> Point:
        """Return the point of a request whose batch, started now, must end by *due*."""
        place = bisect_right(self._edges, due - now) - 1
        if place < 0:
            return Point(0.0, 0.0, FOREVER)
        left = due - self._edges[place]
        alpha = exp(-self._rate * (left - base)) * self._alphas[place]
        return Point(alpha, self._betas[place], left + 1)
