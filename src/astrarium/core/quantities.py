"""Quantities as people write them: a field of one of these types is read and written with its unit.

At run time they are plain numbers (nanoseconds, requests per second, bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NewType

from astrarium.core.errors import InputError
from astrarium.core.units import (
    BYTES_FORM,
    DURATION_FORM,
    MICROSECOND,
    MILLISECOND,
    RATE_FORM,
    SECOND,
    Time,
    parse_bytes,
    parse_duration,
    parse_rate,
)

Duration = NewType("Duration", int)
Rate = NewType("Rate", float)
Bytes = NewType("Bytes", int)

_UNITS = (("s", SECOND), ("ms", SECOND // 10**3), ("us", SECOND // 10**6))
_SIZES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def read_duration(raw: object) -> Duration:
    return Duration(_read(parse_duration, raw, DURATION_FORM))


def read_rate(raw: object) -> Rate:
    return Rate(_read(parse_rate, raw, RATE_FORM))


def read_bytes(raw: object) -> Bytes:
    return Bytes(_read(parse_bytes, raw, BYTES_FORM))


def write_duration(time: Time) -> str:
    """The form in the largest unit that reads back to the very same nanosecond."""
    for unit, size in _UNITS:
        text = f"{time / size:.15g}{unit}"
        if time >= size and "e" not in text and parse_duration(text) == time:
            return text
    return f"{time}ns" if time else "0ms"


def rounded_duration(time: Time, digits: int = 3) -> str:
    """About how long, as people say it: in seconds, or milliseconds below one; a few digits, no exponent."""
    if time < MICROSECOND:
        return f"{time} ns" if time else "0 ms"
    unit, size = ("s", SECOND) if time >= SECOND else ("ms", MILLISECOND)
    return f"{time / size:.{digits}g} {unit}" if time < 999 * size else f"{time / size:.0f} {unit}"


def write_rate(rate: float) -> str:
    return f"{rate!r}/s" if rate % 1 or rate >= 1e15 else f"{int(rate)}/s"


def write_bytes(size: int) -> str:
    for unit, factor in _SIZES:
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def _read(parse: Callable[[object], Any], raw: object, form: str) -> Any:
    try:
        return parse(raw)
    except ValueError as error:
        if "at most" in str(error):
            raise
        negative = isinstance(raw, str) and raw.lstrip().startswith("-")
        raise ValueError(f"{form}, not below 0" if negative else form) from None


def check_above_zero(field: str, duration: Duration) -> None:
    if duration == 0:
        raise InputError(field, "0s", "a duration above 0")


def check_order(moments: Sequence[Duration]) -> None:
    """Changes take place one after the other, and after the start."""
    last = Duration(0)
    for place, moment in enumerate(moments):
        if moment <= last:
            expected = f"a moment after {write_duration(last)}: changes stand in order"
            raise InputError(f"changes[{place}].at", write_duration(moment), expected)
        last = moment
