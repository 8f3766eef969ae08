"""The times of one application's requests that still count, and their distribution."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate

from astrarium.core.units import Time

FEWEST = 10  # samples that say something; so many are kept, however old, until newer ones have come


class Memory:
    """The samples of one application that still count: `history`, then what was heard within a window.

    Old ones are given up for newer ones only, so the last knowledge is never lost.
    """

    def __init__(self, history: Sequence[Time]) -> None:
        self.history = history
        self.since: Time = 0  # when the history counts as heard
        self.heard: deque[tuple[Time, Time, int]] = deque()  # (when, what, the longest among how many)

    def __len__(self) -> int:
        return len(self.history) + len(self.heard)

    def times(self) -> Iterator[Time]:
        yield from self.history
        for _, time, _ in self.heard:
            yield time

    def forget(self, before: Time) -> None:
        """Give up what was heard before an instant."""
        if before > self.since and len(self.heard) >= FEWEST:
            self.history = ()
        while len(self.heard) > FEWEST and self.heard[0][0] < before:
            self.heard.popleft()

    def cdf(self, edges: Sequence[Time]) -> list[float]:
        """At the edges; none without samples."""
        if not len(self):
            return []
        if all(among == 1 for _, _, among in self.heard):
            return cdf(self.times(), edges)
        heard = [(time, among) for _, time, among in self.heard]
        return cdf_by_longest([*((time, 1) for time in self.history), *heard], edges)


def cdf(times: Iterator[Time], edges: Sequence[Time]) -> list[float]:
    """The share of times under each edge; the last bin holds its upper edge too."""
    last = len(edges) - 1
    counts = [0] * len(edges)
    for time in times:
        counts[min(last, bisect_right(edges, time))] += 1
    below = list(accumulate(counts))
    return [count / below[-1] for count in below]


def cdf_by_longest(longest: Sequence[tuple[Time, int]], edges: Sequence[Time]) -> list[float]:
    """The same for single times of which only the longest of some were seen, *among* how many.

    Kaplan and Meier's estimator, from the top down: of all who took no longer than a time that was seen, one
    took that time, and the others less. Where every time was seen this is the share of them.
    """
    rising = sorted(longest)
    no_longer = list(accumulate(among for _, among in rising))
    below, place, chance = [1.0] * len(edges), len(rising), 1.0
    for edge in range(len(edges) - 2, -1, -1):
        while place and rising[place - 1][0] >= edges[edge]:
            place -= 1
            chance *= 1 - 1 / no_longer[place]
        below[edge] = chance
    return below
