"""What a trial could have: widths, and how long it would still take on each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from astrarium.core.units import Time
from astrarium.tuning.runtime import Runtime, Width, most_packed, most_spread, packed_times
from astrarium.tuning.state import TrialRow, TuningState

# GPUs that widths need, if those who share a GPU have like parts of it.


class Slots:
    def __init__(self, gpus: int, widths: Iterable[Width]) -> None:
        self._gpus, self._whole, self._parts = gpus, 0, Counter[int]()
        for width in widths:
            self._count(width, 1)

    @property
    def free(self) -> int:
        """Less than none where not all can run at a time."""
        shared = sum(-(-count // parts) for parts, count in self._parts.items())
        return self._gpus - self._whole - shared

    def changed(self, before: Width, after: Width) -> bool:
        """Whether there is room for one to have another width; then it has."""
        self._count(before, -1)
        self._count(after, 1)
        if self.free >= 0:
            return True
        self._count(after, -1)
        self._count(before, 1)
        return False

    def _count(self, width: Width, by: int) -> None:
        if width.denominator > 1:
            self._parts[width.denominator] += by
        else:
            self._whole += by * width.numerator


def wider(width: Width) -> Width:
    """By a step."""
    return whole(1) if width.denominator > 1 else whole(width.numerator + 1)


# Fractions are slow to make and to compare, and plans are tried by the hundred.


@cache
def part(parts: int) -> Width:
    return Width(1, parts)


@cache
def whole(gpus: int) -> Width:
    return Width(gpus)


class Options(NamedTuple):
    """Of one trial, times from now to its end, with what a move would cost: `parts[c - 1]` if it had one part
    in c of a GPU, `whole[w - 1]` if it had w GPUs. No further than it pays."""

    trial: int
    alone: float  # on one GPU from now on, without a move
    total: int  # iterations of its candidate when it ends
    has: Width  # 0: it waits
    parts: Sequence[float]
    whole: Sequence[float]

    def time(self, width: Width) -> float:
        """No shorter than the furthest that pays, for one who has more."""
        times, at = (
            (self.parts, width.denominator) if width.denominator > 1 else (self.whole, width.numerator)
        )
        return times[min(at, len(times)) - 1]

    @property
    def best(self) -> float:
        return min(*self.parts, *self.whole)


def options(now: Time, row: TrialRow, gpus: int, state: TuningState, packed: int, spread: int) -> Options:
    """Who moves does so at the end of its iteration."""
    runtime, left, place = state.runtime(row), state.left(now, row), row.going or row.place
    factors = _factors(runtime, packed, min(spread, gpus))
    if place is None:
        parts, whole = _times(factors, left * runtime.iteration, 0.0)
        return Options(row.trial.id, left * runtime.iteration, row.trial.total, Width(0), parts, whole)
    later = int(left)
    before = state.moving + (left - later) * runtime.at(place.width)
    parts, whole = _times(factors, later * runtime.iteration, before)
    times, at = (parts, place.parts) if place.parts > 1 else (whole, len(place.gpus))
    if at <= len(times):
        times[at - 1] = left * runtime.at(place.width)
    return Options(row.trial.id, left * runtime.iteration, row.trial.total, place.width, parts, whole)


def deepest(trials: Iterable[Options]) -> int:
    """As many on one GPU as pays for everybody."""
    return min((len(each.parts) for each in trials), default=1)


class _Factors(NamedTuple):
    """Times as long as alone on a GPU."""

    parts: list[float]
    whole: list[float]


@lru_cache(maxsize=4096)
def _factors(runtime: Runtime, packed: int, spread: int) -> _Factors:
    most, furthest = most_packed(packed_times(runtime, packed), 0.0), most_spread(runtime, spread)
    parts = [runtime.at(Width(1, count)) / runtime.iteration for count in range(1, most + 1)]
    whole = [runtime.at(Width(count)) / runtime.iteration for count in range(1, furthest + 1)]
    return _Factors(parts, whole)


def _times(factors: _Factors, alone: float, before: float) -> tuple[list[float], list[float]]:
    parts = [before + alone * factor for factor in factors.parts]
    return parts, [before + alone * factor for factor in factors.whole]
