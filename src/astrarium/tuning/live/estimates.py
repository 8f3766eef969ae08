"""This module estimates how long candidates' iterations take, from those that were seen.

Equation 3.2 in logarithms is a straight line: an iteration takes log t + (c - 1) log alpha with c trials on
its GPU, and log t - log w + (w - 1) log beta on w GPUs. Each candidate has its own t; alpha and beta are
shared by all. They follow from how much one candidate's time differs between its widths: its usual
iterations, or the first ones of its runs where there is nothing else. Where no candidate was seen at two
widths, candidates are compared with each other, and the result counts half: those that are given more GPUs
are the slow ones.

How much a trial is slowed down depends on its neighbours. The shared alpha is the median of that; a
candidate's t is taken from where it ran alone on a GPU, or from the nearest to that: there such differences
matter least.

Medians are used throughout, so that an outlier changes nothing. Until something was seen, packing and
spreading are assumed to cost what they usually do: were they dear nobody would ever try, and were they free
the first groups would be packed and spread too far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from math import exp, log
from statistics import median
from typing import NamedTuple

from astrarium.core.quantities import Time
from astrarium.tuning.runtime import Runtime, Width

PRIOR = Runtime(packing=1.3, scaling=1.2)  # as for most of the tasks that we know
CHANGE = 0.1
KEPT = 31  # samples of a candidate at one width
ROUNDS = 4  # in which packing and spreading are told apart
DOUBT = 4.0  # candidates that must be compared before a comparison counts half
MOST = log(16.0)  # an overhead beyond which nothing is packed or spread anyway
LONGEST = 10**18  # an iteration, in nanoseconds
WATCHED = (Width(1, 4), Width(1), Width(8))


class WidthSample(NamedTuple):
    """A sample is one candidate at one width; *level* is the logarithm of its iterations' GPU time."""

    level: float
    packed: float  # trials beside it
    spread: float  # GPUs beside the first
    weight: int


class Overheads(NamedTuple):
    """The overheads of packing and scaling are logarithms."""

    packing: float
    scaling: float

    def left_out(self, sample: WidthSample) -> float:
        """Return the level that the candidate would have on a GPU alone."""
        return sample.level - sample.packed * self.packing - sample.spread * self.scaling


@dataclass
class _Bucket:
    gpus: int
    levels: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    packed: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))

    def sample(self) -> WidthSample:
        beside = sum(self.packed) / len(self.packed)
        return WidthSample(median(self.levels), beside, self.gpus - 1.0, len(self.levels))


_Buckets = dict[tuple[int, int], _Bucket]  # by GPUs, and by trials on the GPU
_Samples = Mapping[int, Sequence[WidthSample]]  # by candidate


class Estimates:
    """*prior* says what packing and scaling are assumed to cost at first. A candidate's runtime is reported
    after *profile* iterations, and again when it has changed by more than the share CHANGE."""

    def __init__(self, prior: Runtime | None = None, profile: int = 1) -> None:
        usual = prior or PRIOR
        self._prior = Overheads(log(max(1.0, usual.packing)), log(max(1.0, usual.scaling)))
        self._profile = profile
        self._usual: dict[int, _Buckets] = {}  # by candidate
        self._first: dict[int, _Buckets] = {}
        self._reported: dict[int, Runtime] = {}
        self._fresh = False

    def seen(self, candidate: int, gpus: int, sharers: float, took: Time, first: bool = False) -> None:
        """Take an iteration on *gpus*, or on one GPU that so many trials shared. The *first* of a run may
        have compiled something."""
        gpus = max(1, gpus)
        beside = min(sharers, 64.0) - 1 if sharers > 1 and gpus == 1 else 0.0
        buckets = (self._first if first else self._usual).setdefault(candidate, {})
        bucket = buckets.setdefault((gpus, round(beside)), _Bucket(gpus))
        bucket.levels.append(log(min(LONGEST, max(1, took))) + log(gpus))
        bucket.packed.append(beside)
        self._fresh = True

    def news(self) -> dict[int, Runtime]:
        """Return the runtimes that have changed since the last call, by candidate."""
        if not self._fresh:
            return {}
        self._fresh = False
        changed = {
            candidate: runtime for candidate, runtime in self.all().items() if self._new(candidate, runtime)
        }
        self._reported |= changed
        return changed

    def all(self) -> dict[int, Runtime]:
        """Return the runtime of every candidate that has trained for long enough."""
        usual = _samples(self._usual)
        first = _samples(self._first)
        overheads = fitted(usual, first, self._prior)
        levels = {number: _level(samples, overheads) for number, samples in usual.items()}
        late = {number: _level(samples, overheads) for number, samples in first.items()}
        both = [late[number] - levels[number] for number in levels.keys() & late.keys()]
        warming = max(0.0, median(both)) if both else 0.0
        levels |= {number: level - warming for number, level in late.items() if number not in levels}
        return {number: _runtime(level, overheads) for number, level in levels.items() if self._known(number)}

    def _known(self, candidate: int) -> bool:
        seen = [*self._usual.get(candidate, {}).values(), *self._first.get(candidate, {}).values()]
        return sum(len(bucket.levels) for bucket in seen) >= self._profile

    def _new(self, candidate: int, runtime: Runtime) -> bool:
        before = self._reported.get(candidate)
        return before is None or any(
            abs(log(runtime.at(width) / before.at(width))) > log(1 + CHANGE) for width in WATCHED
        )


def fitted(usual: _Samples, first: _Samples, prior: Overheads) -> Overheads:
    """Fit packing and scaling in turn, each with the current estimate of the other."""
    overheads = prior
    for _ in range(ROUNDS):
        packing = _slope(usual, first, prior.packing, "packed", Overheads(0.0, overheads.scaling))
        overheads = Overheads(packing, overheads.scaling)
        scaling = _slope(usual, first, prior.scaling, "spread", Overheads(overheads.packing, 0.0))
        overheads = Overheads(overheads.packing, scaling)
    return overheads


class _Slope(NamedTuple):
    value: float
    weight: float


def _slope(usual: _Samples, first: _Samples, prior: float, axis: str, other: Overheads) -> float:
    """Return how fast times grow along one axis, once the cost of the other is left out."""
    slope = _compared(usual, prior, axis, other)
    for by_candidate in (usual, first):  # what the first iteration of a run compiles is in all of the latter
        slopes = [pair for samples in by_candidate.values() for pair in _slopes(samples, axis, other)]
        if slopes:
            slope = _weighted_median([_Slope(prior, 1.0), *slopes])
            break
    return min(MOST, max(0.0, slope))


def _slopes(samples: Iterable[WidthSample], axis: str, other: Overheads) -> Iterator[_Slope]:
    for one, two in combinations(samples, 2):
        apart = getattr(two, axis) - getattr(one, axis)
        if abs(apart) >= 0.5:
            rise = other.left_out(two) - other.left_out(one)
            yield _Slope(rise / apart, min(one.weight, two.weight) * abs(apart))


def _compared(by_candidate: _Samples, prior: float, axis: str, other: Overheads) -> float:
    """Compare candidates with each other, where each has been seen at one width only."""
    levels: dict[int, list[float]] = {}
    for sample in chain.from_iterable(by_candidate.values()):
        levels.setdefault(round(getattr(sample, axis)), []).append(other.left_out(sample))
    pooled = [WidthSample(median(group), at, at, len(group)) for at, group in levels.items()]
    slopes = list(_slopes(pooled, axis, Overheads(0.0, 0.0)))
    if not slopes:
        return prior
    compared = min(sample.weight for sample in pooled)
    trust = compared / (compared + DOUBT)
    return trust * _weighted_median(slopes) + (1 - trust) * prior


def _weighted_median(slopes: Sequence[_Slope]) -> float:
    """Return the lowest value with half of the weight up to it; the mean of two if halves are equal."""
    ordered = sorted(slopes)
    half = sum(slope.weight for slope in slopes) / 2
    below = 0.0
    for slope, later in zip(ordered, [*ordered[1:], ordered[-1]], strict=True):
        below += slope.weight
        if below == half:
            return (slope.value + later.value) / 2
        if below > half:
            return slope.value
    return ordered[-1].value


def _samples(seen: Mapping[int, _Buckets]) -> dict[int, list[WidthSample]]:
    return {number: [bucket.sample() for bucket in buckets.values()] for number, buckets in seen.items()}


def _level(samples: Sequence[WidthSample], overheads: Overheads) -> float:
    """Return a candidate's level. The less ran beside it, the less of that is a guess."""
    beside = [sample.packed + sample.spread for sample in samples]
    levels = [overheads.left_out(sample) for sample in samples]
    weights = [sample.weight / (1 + more) for sample, more in zip(samples, beside, strict=True)]
    return _weighted_median([_Slope(*pair) for pair in zip(levels, weights, strict=True)])


def _runtime(level: float, overheads: Overheads) -> Runtime:
    iteration = max(1, round(exp(level)))
    return Runtime(iteration, exp(overheads.packing), exp(overheads.scaling))
