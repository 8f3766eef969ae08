"""Batch times of dynamic models are learnt from the times that single requests took (Orloj, 4.4.2).

Each application of a dynamic model has its samples: those measured before the run, and what the profiler
reports while they are fresh. They become histograms over one grid for the whole model. The longest of k
independent requests has the product of their CDFs; a batch of k takes c0 + c1 k times the longest.

What `batch` gives is computed in a fixed order with + - * / alone, so that a native twin finds the same bit
by bit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from astrarium.core.quantities import FOREVER, LONGEST, MICROSECOND, Time
from astrarium.serving.contract import DynamicSpec, ModelSpec

FEWEST = 10  # samples that say something; so many are kept, however old, until newer ones have come


class SampleMemory:
    """An application's samples that still count are its `history`, then those heard within a window.

    Old samples are given up for newer ones only, so the last knowledge is never lost.
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
        """Give up samples that were heard before an instant."""
        if before > self.since and len(self.heard) >= FEWEST:
            self.history = ()
        while len(self.heard) > FEWEST and self.heard[0][0] < before:
            self.heard.popleft()

    def cdf(self, edges: Sequence[Time]) -> list[float]:
        """Return the CDF of the samples at the edges; empty without samples."""
        if not len(self):
            return []
        if all(among == 1 for _, _, among in self.heard):
            return cdf(self.times(), edges)
        heard = [(time, among) for _, time, among in self.heard]
        return cdf_by_longest([*((time, 1) for time in self.history), *heard], edges)


def cdf(times: Iterator[Time], edges: Sequence[Time]) -> list[float]:
    """Return the share of times under each edge; the last bin holds its upper edge too."""
    last = len(edges) - 1
    counts = [0] * len(edges)
    for time in times:
        counts[min(last, bisect_right(edges, time))] += 1
    below = list(accumulate(counts))
    return [count / below[-1] for count in below]


def cdf_by_longest(longest: Sequence[tuple[Time, int]], edges: Sequence[Time]) -> list[float]:
    """Return the CDF of single times of which only the longest of some were seen, *among* how many.

    Kaplan and Meier's estimator, from the top down: of all who took no longer than a time that was seen, one
    took that time, and the others less. Where every time was seen this is the share of them.
    """
    rising = sorted(longest)
    no_longer = list(accumulate(among for _, among in rising))
    below = [1.0] * len(edges)
    place = len(rising)
    chance = 1.0
    for edge in range(len(edges) - 2, -1, -1):
        while place and rising[place - 1][0] >= edges[edge]:
            place -= 1
            chance *= 1 - 1 / no_longer[place]
        below[edge] = chance
    return below


NARROWEST: Time = MICROSECOND  # of a bin: what always takes the same time keeps a width to divide by


class BatchTime(NamedTuple):
    """A batch's time is a histogram: chances[i] that it lies in [edges[i], edges[i + 1]), evenly."""

    edges: tuple[Time, ...]
    chances: tuple[float, ...]
    mean: Time


def quantile(edges: Sequence[Time], below: Sequence[float], chance: float) -> float:
    """Return where the CDF, *below[i]* at *edges[i]* with straight lines between, comes up to *chance*."""
    place = bisect_left(below, chance)
    if place == 0 or place == len(below):
        return edges[min(place, len(edges) - 1)]
    low = below[place - 1]
    high = below[place]
    return edges[place - 1] + (edges[place] - edges[place - 1]) * ((chance - low) / (high - low))


def certain(time: Time) -> BatchTime:
    """Return the histogram of a batch that always takes *time*."""
    return BatchTime((time - NARROWEST, time), (1.0,), time)


class Traffic:
    """Traffic counts the requests of each application since the window before the present one began."""

    def __init__(self, applications: int) -> None:
        self._now = [0] * applications
        self._before = [0] * applications
        self._turns: Time = -1

    def count(self, now: Time, application: int, window: Time) -> None:
        if now >= self._turns:
            if self._turns >= 0:
                self._before = self._now
                self._now = [0] * len(self._now)
            self._turns = now + window
        self._now[application] += 1

    def weights(self) -> list[int]:
        """Return one more than was counted for each application: one that has not come yet still may."""
        return [1 + now + before for now, before in zip(self._now, self._before, strict=True)]


class LearntTimes:
    """Learnt times tell how long one model's batches take; those of a static model are its table's."""

    def __init__(self, model: ModelSpec, bins: int, window: Time, refresh: Time) -> None:
        self._latency = model.latency
        self._bins = bins
        self._window = window
        self._refresh = refresh
        self._spec = model.dynamic or DynamicSpec(0, 1.0, ())
        self.applications = max(1, len(self._spec.history))
        self._memories = [SampleMemory(history) for history in self._spec.history]
        self._traffic = Traffic(self.applications)
        self._learns = model.dynamic is not None
        self._news = False
        self._due: Time = -1  # when the histograms are to be made again
        self._edges: list[Time] = []  # of the grid; none: too little is known
        self._cdfs: list[list[float]] = []  # at the edges, by application; none of one without samples
        self._mixture: list[float] = []
        self._own: list[list[float]] = [[]] * self.applications  # its CDF, or the mixture's if unknown
        self._remake()

    @property
    def known(self) -> bool:
        """Whether anything is known but the model's table."""
        return bool(self._edges)

    def begin(self, now: Time) -> None:
        """Count what is known beforehand as heard now; without this call, as heard at 0."""
        for memory in self._memories:
            memory.since = now

    def arrived(self, now: Time, application: int) -> None:
        if self._learns:
            self._traffic.count(now, application, self._window)
            self._news = True

    def measured(self, now: Time, application: int, time: Time, among: int = 1) -> None:
        """Remember that one request took *time*, or the longest *among* so many did."""
        self._memories[application].heard.append((now, time, among))
        self._news = True

    def finished(self, now: Time, applications: Sequence[int], took: Time, chance: float) -> None:
        """Learn from a batch of these applications that took *took*: the time of its longest member.

        Whose time that is, is known if all are of one application. A batch that took longer than it was to
        take with that *chance* is a reason to learn at once.
        """
        size = len(applications)
        longest = list[float]()
        for application in applications:
            longest = self.joined(longest, application)
        if took > self.kept(longest, size, chance):
            self._due = now
        if len(set(applications)) == 1:
            single = (took - self._spec.c0) / (self._spec.c1 * size)
            self.measured(now, applications[0], max(1, int(min(single + 0.5, LONGEST))), size)

    def refreshed(self, now: Time) -> bool:
        """Make the histograms anew if it is time and there is news; return whether they may have changed."""
        if self._due < 0:
            self._due = now + self._refresh  # so much must be seen before shares mean anything
        if not self._news or (now < self._due and self._edges) or self._samples() < FEWEST:
            return False
        for memory in self._memories:
            memory.forget(now - self._window)
        self._remake()
        self._news = False
        self._due = now + self._refresh
        return True

    def batch(self, size: int, application: int | None = None) -> BatchTime:
        """Return the time of a batch of *size* requests drawn from the mixture of applications.

        With an *application*, one of the requests is known to be of it.
        """
        if not self._edges:
            return certain(self._latency[size])
        own = self._mixture
        if application is not None and len(self._memories[application]) >= FEWEST:
            own = self._cdfs[application]
        longest = [one * power(rest, size - 1) for one, rest in zip(own, self._mixture, strict=True)]
        chances = tuple(high - low for low, high in pairwise(longest))
        edges = self._batch_edges(size)
        return BatchTime(edges, chances, mean(edges, chances))

    def table(self, applications: Sequence[int], chance: float) -> list[Time]:
        """Return the times that batches of 0, 1, 2, ... of these applications do not exceed with *chance*.

        Where too little is known of them, all applications count. The longest of k requests keeps a time with
        a chance if one request keeps it with the k-th root of the chance.
        """
        if not self._edges:
            return list(self._latency)
        below = self.mixture(applications)
        times = [0]
        for size in range(1, len(self._latency) - 1):
            times.append(max(times[-1], self.kept(below, size, chance ** (1 / size))))
        return [*times, FOREVER]

    def time(self, applications: Sequence[int], size: int, chance: float) -> Time:
        """Return one entry of `table`."""
        return self.kept(self.mixture(applications), size, chance ** (1 / size))

    def joined(self, below: Sequence[float], application: int) -> list[float]:
        """Return the CDF of the longest request of a batch, *below*, once one of an application joins it."""
        own = self._own[application]
        return [one * rest for one, rest in zip(own, below, strict=True)] if below else own

    def kept(self, longest: Sequence[float], size: int, chance: float) -> Time:
        """Return the time that a batch does not exceed with *chance*, by the CDF of its longest request."""
        if not self._edges:
            return self._latency[size]
        reach = quantile(self._edges, longest, chance)
        return max(1, self._spec.c0 + int(min(self._spec.c1 * size * reach + 0.5, LONGEST)))

    def mixture(self, applications: Sequence[int]) -> list[float]:
        known = [place for place in applications if len(self._memories[place]) >= FEWEST]
        weights = self._traffic.weights()
        cdfs = [self._cdfs[place] for place in known]
        return mixed(cdfs, [weights[place] for place in known]) if known else self._mixture

    def _samples(self) -> int:
        return sum(map(len, self._memories))

    def _remake(self) -> None:
        counted = [memory for memory in self._memories if len(memory)]
        if self._samples() < FEWEST:
            return
        low = min(min(memory.times()) for memory in counted)
        high = max(max(memory.times()) for memory in counted)
        self._edges = grid(low, high, self._bins)
        self._cdfs = [memory.cdf(self._edges) for memory in self._memories]
        self._mixture = mixed(self._cdfs, self._traffic.weights())
        pairs = zip(self._memories, self._cdfs, strict=True)
        self._own = [below if len(memory) >= FEWEST else self._mixture for memory, below in pairs]

    def _batch_edges(self, size: int) -> tuple[Time, ...]:
        """Return the grid's edges as times of a batch, each at least a nanosecond after the one before."""
        factor = self._spec.c1 * size
        last = -1
        edges = []
        for edge in self._edges:
            last = max(last + 1, self._spec.c0 + int(min(factor * edge + 0.5, LONGEST)))
            edges.append(last)
        return tuple(edges)


def grid(low: Time, high: Time, bins: int) -> list[Time]:
    """Return the edges of equal bins over what was observed, fewer where they would be too narrow."""
    span = max(high - low, NARROWEST)
    bins = max(1, min(bins, span // NARROWEST))
    return [low + span * place // bins for place in range(bins + 1)]


def mixed(cdfs: Sequence[Sequence[float]], weights: Sequence[int]) -> list[float]:
    """Return the mean of the known CDFs, each with its weight; an empty CDF is not known."""
    known = [(own, weight) for own, weight in zip(cdfs, weights, strict=False) if own]
    total = sum(weight for _, weight in known)
    sums = [0.0] * len(known[0][0]) if known else []
    for own, weight in known:
        sums = [before + weight * below for before, below in zip(sums, own, strict=True)]
    return [part / total for part in sums]


def power(base: float, exponent: int) -> float:
    """Return the power by squaring, from the lowest bit up, as the native twin computes it."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def mean(edges: Sequence[Time], chances: Sequence[float]) -> Time:
    """Return the mean of a histogram, rounded half up; every bin counts with its middle."""
    total = 0.0
    for (low, high), chance in zip(pairwise(edges), chances, strict=True):
        total += chance * (low + high)
    return int(total / 2 + 0.5)
