"""Arrival processes: one stream of chance for each model, merged into columns sorted by time.

A process is drawn once with a mean gap of one, in units of expected arrivals, and then stretched by the
rate, which may change over time. So two rates with one seed see the same pattern of gaps, a longer run
begins with the shorter one, and a model's arrivals depend on nothing but its name, its rate and the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from astrarium.core.quantities import SECOND, Time

Floats = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]
Gaps = Callable[[np.random.Generator, int], Floats]


class Stretch(NamedTuple):
    """A steady rate (per second) from one moment until the next."""

    start: Time
    end: Time
    rate: float

    @property
    def expected(self) -> float:
        return self.rate * (self.end - self.start) / SECOND


def poisson(generator: np.random.Generator, expected: float) -> Floats:
    return _renewals(lambda rng, count: rng.standard_exponential(count), generator, expected)


def gamma(generator: np.random.Generator, expected: float, shape: float) -> Floats:
    """Gaps of coefficient of variation 1 / sqrt(shape): bursty for shapes under one."""
    return _renewals(lambda rng, count: rng.standard_gamma(shape, count) / shape, generator, expected)


def uniform(generator: np.random.Generator, expected: float) -> Floats:
    """Constant gaps after a random part of one."""
    first = generator.random()
    return first + np.arange(max(0, int(np.ceil(expected - first))), dtype=np.float64)


def _renewals(gaps: Gaps, generator: np.random.Generator, expected: float) -> Floats:
    """The moments, in expected arrivals, before *expected*."""
    pieces: list[Floats] = []
    reached = 0.0
    while reached < expected:
        missing = expected - reached
        piece = gaps(generator, int(missing + 4 * missing**0.5) + 16)
        piece[0] += reached
        np.cumsum(piece, out=piece)
        reached = float(piece[-1])
        pieces.append(piece)
    moments = pieces[0] if len(pieces) == 1 else np.concatenate([*pieces, np.empty(0)])
    return moments[: np.searchsorted(moments, expected)]


def total(stretches: Sequence[Stretch]) -> float:
    """Expected arrivals."""
    return sum(stretch.expected for stretch in stretches)


def stretched(moments: Floats, stretches: Sequence[Stretch]) -> Times:
    """From expected arrivals to nanoseconds; nothing arrives while the rate is zero."""
    expected = np.cumsum([0.0, *(stretch.expected for stretch in stretches)])
    places = np.searchsorted(moments, expected)
    times = np.empty(places[-1], np.int64)
    for stretch, reached, (first, last) in zip(stretches, expected, pairwise(places), strict=False):
        if last > first:
            inside = (moments[first:last] - reached) * (SECOND / stretch.rate)
            times[first:last] = np.minimum(inside, stretch.end - stretch.start - 1)
            times[first:last] += stretch.start
    return times


def merged(streams: Sequence[Times]) -> tuple[Times, npt.NDArray[np.int32]]:
    """(times, stream numbers) in order of time, then of stream.

    Time and number travel in one integer: sorting whole values beats sorting an index (1.5 times).
    """
    bits = max(1, (len(streams) - 1).bit_length())
    latest = max((int(times[-1]) for times in streams if len(times)), default=0)
    if latest >= 1 << (63 - bits):
        return _merged_by_index(streams)
    keys = np.concatenate([(times << bits) | number for number, times in enumerate(streams)])
    keys.sort(kind="stable")  # merges runs that are sorted already
    numbers = (keys & ((1 << bits) - 1)).astype(np.int32)
    keys >>= bits
    return keys, numbers


def _merged_by_index(streams: Sequence[Times]) -> tuple[Times, npt.NDArray[np.int32]]:
    times = np.concatenate(streams)
    numbers = np.repeat(np.arange(len(streams), dtype=np.int32), [len(stream) for stream in streams])
    order = np.argsort(times, kind="stable")
    return times[order], numbers[order]
