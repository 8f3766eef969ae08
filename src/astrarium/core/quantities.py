"""Quantities are plain numbers inside: nanoseconds, requests per second, bytes. People read and write units.

A field of the type `Duration`, `Rate` or `Bytes` is read with its unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import NewType

from astrarium.core.errors import InputError

Time = int  # nanoseconds since the start of the run

MICROSECOND: Time = 1_000
MILLISECOND: Time = 1_000_000
SECOND: Time = 1_000_000_000
FOREVER: Time = 1 << 60  # later than any instant; small enough that sums of two stay in 64 bits
LONGEST: Time = 1 << 53  # 104 days: sums and products with batch sizes stay far below FOREVER

GIB = 2**30

Duration = NewType("Duration", int)
Rate = NewType("Rate", float)
Bytes = NewType("Bytes", int)

_DURATIONS = {
    "ns": 1,
    "us": MICROSECOND,
    "µs": MICROSECOND,
    "ms": MILLISECOND,
    "s": SECOND,
    "min": 60 * SECOND,
    "h": 3600 * SECOND,
    "d": 24 * 3600 * SECOND,
}
_PERIODS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {
    "B": 1,
    **{f"{prefix}B": 10 ** (3 * power) for power, prefix in enumerate("KMGT", 1)},
    **{f"{prefix}iB": 2 ** (10 * power) for power, prefix in enumerate("KMGT", 1)},
}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/%]*)\s*\Z")


DURATION_FORM = "a duration with its unit, such as 25ms, 100us or 30s"
RATE_FORM = "a rate such as 5000/s or 90/min"
BYTES_FORM = "a size with its unit, such as 16GiB"


def read_duration(raw: object) -> Duration:
    """Read '1.053ms' as 1053000. A bare number other than zero is refused: its unit would be a guess."""
    time = _scaled(raw, _DURATIONS, DURATION_FORM)
    if time > LONGEST:
        raise ValueError(f"{DURATION_FORM}, and at most 100 days")
    return Duration(time)


def duration_in(field: str, raw: object) -> Duration:
    """Read the duration that stands in a field, or raise an error that names the field."""
    try:
        return read_duration(raw)
    except ValueError as error:
        raise InputError(field, raw, str(error)) from None


def read_bytes(raw: object) -> Bytes:
    return Bytes(_scaled(raw, _BYTES, BYTES_FORM))


def read_rate(raw: object) -> Rate:
    """Read '5000/s' as 5000.0 requests per second."""
    if not isinstance(raw, str) or "/" not in raw:
        raise ValueError(RATE_FORM)
    amount, _, period = raw.partition("/")
    number, unit = _split(amount, RATE_FORM)
    scale = {"": 1, "k": 1000, "M": 1_000_000}.get(unit)
    if scale is None or period.strip() not in _PERIODS:
        raise ValueError(RATE_FORM)
    rate = float(number * scale) / _PERIODS[period.strip()]
    if not math.isfinite(rate):
        raise ValueError(RATE_FORM)
    return Rate(rate)


def split_quantity(text: str) -> tuple[Decimal, str]:
    """'25 ms' -> (25, 'ms'), exactly; raises ValueError on anything that is not number-then-unit."""
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError(text)
    try:
        number = Decimal(match.group(1))
    except InvalidOperation:  # an exponent of twenty digits
        raise ValueError(text) from None
    if not math.isfinite(float(number)):
        raise ValueError(text)
    return number, match.group(2)


def _split(text: str, form: str) -> tuple[Decimal, str]:
    try:
        number, unit = split_quantity(text)
    except ValueError:
        raise ValueError(form) from None
    if number < 0:
        raise ValueError(f"{form}, not below 0")
    return number, unit


def _scaled(raw: object, factors: dict[str, int], form: str) -> int:
    if raw == 0 and not isinstance(raw, bool):  # zero needs no unit
        return 0
    if not isinstance(raw, str):
        raise ValueError(form)
    number, unit = _split(raw, form)
    if number == 0 and not unit:
        return 0
    if unit not in factors:
        raise ValueError(form)
    return round(number * factors[unit])


def write_duration(time: Time) -> str:
    """The form in the largest unit that reads back to the very same nanosecond."""
    for unit in ("s", "ms", "us"):
        size = _DURATIONS[unit]
        text = f"{time / size:.15g}{unit}"
        if time >= size and "e" not in text and read_duration(text) == time:
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
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return f"{size}B"


def gib(size: int) -> str:
    """Write a size that is needed, rounded up: rounded down, it would not be enough."""
    return f"{math.ceil(100 * size / GIB) / 100:.2f} GiB" if size > GIB / 100 else f"{size} bytes"


def to_ms(time: Time) -> float:
    return time / MILLISECOND


def to_seconds(time: Time) -> float:
    return time / SECOND


def counted(number: int, noun: str) -> str:
    """'1 GPU' or '2 GPUs'"""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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
