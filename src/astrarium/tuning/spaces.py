"""A search space has a range of numbers, or some options, for each hyperparameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import exp, isfinite, log
from typing import Any

import msgspec

from astrarium.core.errors import InputError

STEP = 1.2  # a number is made so many times larger or smaller where it is changed a little
Values = Mapping[str, Any]


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A range holds the numbers from *low* to *high*, both included; *log* spaces them by their logarithms,
    *whole* allows whole numbers only. A grid takes *points* of them."""

    low: float
    high: float
    log: bool = False
    whole: bool = False
    points: int = 3

    def __post_init__(self) -> None:
        if not (isfinite(self.low) and isfinite(self.high) and self.low <= self.high):
            raise ValueError("low and high must be numbers, and low not more than high")
        if self.log and self.low <= 0:
            raise ValueError("low must be more than 0 where log is set")
        if self.whole and (self.low % 1 or self.high % 1):
            raise ValueError("low and high must be whole numbers where whole is set")
        if self.points < 1:
            raise ValueError("points must be 1 or more")

    def at(self, part: float) -> float | int:
        """Return the number that is *part* of the way from low (0) to high (1); each whole number gets the
        same share of the way."""
        half = 0.5 if self.whole and not self.log else 0.0
        low = self.low - half
        high = self.high + half
        value = exp(log(low) + part * (log(high) - log(low))) if self.log else low + part * (high - low)
        return self._inside(value)

    def part(self, value: float) -> float:
        """Return how far along the range a value is, from 0 (low) to 1 (high)."""
        ends = (self.low, self.high, value)
        low, high, at = map(log, ends) if self.log else ends
        return (at - low) / (high - low) if high > low else 0.0

    def grid(self) -> list[float | int]:
        last = max(1, self.points - 1)
        return list(dict.fromkeys(self.at(point / last) for point in range(self.points)))

    def near(self, value: float, up: bool) -> float | int:
        """Return a number a little above or below *value*; whole numbers change by at least 1."""
        after = value * STEP if up else value / STEP
        if self.whole and round(after) == value:
            after = value + 1 if up else value - 1
        return self._inside(after)

    def _inside(self, value: float) -> float | int:
        value = min(self.high, max(self.low, value))
        return round(value) if self.whole else float(value)


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    options: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.options:
            raise ValueError("options must name at least one")

    def at(self, part: float) -> Any:
        return self.options[min(len(self.options) - 1, int(part * len(self.options)))]

    def part(self, value: Any) -> float:
        return self.options.index(value) / max(1, len(self.options) - 1)

    def grid(self) -> list[Any]:
        return list(self.options)

    def near(self, value: Any, up: bool) -> Any:
        """Return the option before or after *value*; the first and the last have one neighbour."""
        at = self.options.index(value) + (1 if up else -1)
        return self.options[min(len(self.options) - 1, max(0, at))]


Space = Mapping[str, Range | Choice]


def space_of(written: Mapping[str, Any], field: str = "space") -> dict[str, Range | Choice]:
    """Convert what people write: {rate: {low: 0.001, high: 1, log: true}, kind: [gru, lstm]}, and from Python
    also {momentum: (0.0, 1.0)}: a pair is a range, and a list, which is all that files have, are options."""
    return {name: _dimension(dimension, f"{field}.{name}") for name, dimension in written.items()}


def _dimension(written: Any, field: str) -> Range | Choice:
    if isinstance(written, Range | Choice):
        return written
    if isinstance(written, tuple):
        return _pair(written, field)
    if isinstance(written, list):
        written = {"options": written}
    if not isinstance(written, Mapping):
        expected = "a range such as (0.001, 1.0) or {low: 0.001, high: 1}, or options such as [16, 32]"
        raise InputError(field, written, expected)
    kind: type[Range | Choice] = Choice if "options" in written else Range
    try:
        return msgspec.convert(written, kind)
    except msgspec.ValidationError as error:
        expected = f"a range (low, high, log, whole, points) or options: {error}"
        raise InputError(field, written, expected) from None


def _pair(written: tuple[Any, ...], field: str) -> Range:
    """Return the range from the first to the second number: of whole ones, if both are."""
    kinds = {type(end) for end in written}
    if len(written) != 2 or not kinds <= {int, float}:
        raise InputError(field, written, "(low, high), two numbers; options are a list: [16, 32]")
    try:
        return Range(*written, whole=kinds == {int})
    except ValueError as error:
        raise InputError(field, written, f"(low, high): {error}") from None


def grid(space: Space) -> Iterator[dict[str, Any]]:
    """Yield every combination of values; the last hyperparameter changes fastest."""
    for values in product(*(dimension.grid() for dimension in space.values())):
        yield dict(zip(space, values, strict=True))
