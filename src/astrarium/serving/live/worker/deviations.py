"""Deviations are how far answers to the same item are apart, and how far they may be by rounding.

Numbers with fractions are looked at twice: the whole output, and each position of its last dimension where
that is fixed. Coordinates of 1000 in an output [x, y, score] say nothing of what a score of .1 may change.
Whole numbers and texts are the same or not: what counts is how often they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from astrarium.serving.live import limits
from astrarium.serving.live.ranges import is_real
from astrarium.serving.live.tensors import BF16, DATATYPES, Array, TensorSpec

# Rounding leaves half of the digits, also through many layers; what padding does is of the order of the part
# of an item that is padding.
ROUNDING = {"FP16": sqrt(2**-10), BF16: sqrt(2**-7), "FP32": sqrt(2**-23), "FP64": sqrt(2**-52)}
# Numbers that stay the same beside much smaller ones that do not are constants, such as -1e9 for a class
# that may not be: changes are seen beside so many times the largest number that changes.
_FAR = 8
_NOISE = 4  # times what equal lengths have shown: a few items have not shown all of it
_LAST_DIGITS = 128  # so many of its last digits of a whole output are rounding at any position


def deviation(datatype: str, one: Array, other: Array) -> float:
    """Return how far two answers to the same item are apart.

    For numbers with fractions it is the largest difference as a share of the largest number in *one* that is
    no constant; for whole numbers and texts the share of elements that differ.
    """
    if one.shape != other.shape:
        return inf
    if not one.size:
        return 0.0
    if not is_real(datatype):
        return float(np.mean(one != other))
    first, second = numbers(one), numbers(other)
    apart = _apart(first, second)
    if not apart.any():
        return 0.0
    largest, scale = apart.max(), _magnitude(first, second, apart > 0)
    return float(largest / scale) if np.isfinite(largest) and np.isfinite(scale) and scale > 0 else inf


def allowed(spec: TensorSpec, noise: float) -> float:
    """Return how far apart answers may be; *noise* counts up to what the coarsest of all types leaves."""
    return max(ROUNDING.get(spec.datatype, 0.0), min(_NOISE * noise, ROUNDING[BF16]))


def numbers(array: Array) -> Array:
    """Return an output's elements as numbers that can be compared."""
    is_bf16 = array.dtype == DATATYPES[BF16]
    plain: Array = limits.numbers(BF16, array.tobytes()).reshape(array.shape) if is_bf16 else array
    return plain.astype(np.float64)


def share_unbounded(array: Array) -> float:
    """Return the share of an output's numbers that is NaN or infinite."""
    return 1.0 - float(np.isfinite(numbers(array)).mean()) if array.size else 0.0


def _apart(first: Array, second: Array) -> Array:
    """Return by element how far numbers are apart: infinitely where only one is NaN."""
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(first - second))
    return np.where(np.isnan(apart), inf, apart)


def _magnitude(first: Array, second: Array, changed: Array) -> float:
    """Return the largest number that is no constant."""
    changing = np.maximum(np.abs(first), np.abs(second))[changed].max(initial=0.0)
    return float(min(np.abs(first[np.isfinite(first)]).max(initial=0.0), _FAR * changing))


class Changed(NamedTuple):
    """A change is of one position of an output's last dimension, as a share of the numbers there."""

    position: int
    share: float


class Positions:
    """The positions of an output's last dimension, each with its largest number and its own rounding.

    Few items show little of a position's rounding, so that of others whose numbers are not much larger counts
    too.
    """

    def __init__(self, datatype: str, answers: Sequence[Array]) -> None:
        self._datatype = datatype
        rows = [numbers(answer).reshape(-1, answer.shape[-1]) for answer in answers]
        magnitudes = np.abs(np.concatenate(rows))
        self._scale = np.where(np.isfinite(magnitudes), magnitudes, 0.0).max(axis=0, initial=0.0)
        self._noise = np.zeros_like(self._scale)

    def note(self, one: Array, other: Array) -> None:
        """Take note of two answers that differ by rounding."""
        if one.shape == other.shape:
            self._noise = np.maximum(self._noise, self._by_position(one, other))

    def changed(self, one: Array, other: Array) -> Changed | None:
        """Return the position that changes most beyond rounding."""
        apart = self._by_position(one, other)
        beyond = apart > self._allowed(one, other)
        if not beyond.any():
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(beyond, apart / self._scale, 0.0)
        place = int(share.argmax())
        return Changed(place, float(share[place]))

    def _allowed(self, one: Array, other: Array) -> Array:
        first, second = numbers(one), numbers(other)
        half = ROUNDING[self._datatype]
        last_digits = min(half, _LAST_DIGITS * half**2) * _magnitude(first, second, _apart(first, second) > 0)
        by_position: Array = np.maximum(half * self._scale, _NOISE * self._noise_nearby())
        return np.maximum(by_position, last_digits)

    def _noise_nearby(self) -> Array:
        """Return the largest rounding of positions whose numbers are not much larger."""
        order = np.argsort(self._scale)
        rising = np.maximum.accumulate(self._noise[order])
        ends = np.searchsorted(self._scale[order], _FAR * self._scale, side="right")
        nearby: Array = rising[ends - 1]
        return nearby

    @staticmethod
    def _by_position(one: Array, other: Array) -> Array:
        by_element = _apart(numbers(one), numbers(other)).reshape(-1, one.shape[-1])
        largest: Array = by_element.max(axis=0, initial=0.0)
        return largest


def has_positions(spec: TensorSpec) -> bool:
    """Whether each position of an output's last dimension has a meaning of its own."""
    return is_real(spec.datatype) and bool(spec.shape) and spec.shape[-1] > 1


@dataclass
class Flips:
    """The flips of an output that is no number with fractions: how often it differs, in all comparisons."""

    equal: list[float] = field(default_factory=list)  # the share that differs, beside others of equal length
    padded: list[float] = field(default_factory=list)
    first: str = ""  # how the first one by padding showed

    def note_padded(self, share: float, shown: str) -> None:
        self.padded.append(share)
        if share:
            self.first = self.first or shown

    def are_more(self, surely: bool) -> bool:
        """Whether padding flips more often than equal lengths do; *surely* where those never do."""
        if surely:
            return bool(self.first) and not any(self.equal)
        return bool(self.first) and bool(np.mean(self.padded) > np.mean(self.equal or [0.0]))
