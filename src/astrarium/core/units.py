"""Time is an integer number of nanoseconds inside; people read and write units."""

from __future__ import annotations

import math
import re
from decimal import Decimal

# Words that several policies use.


GIB = 2**30


def gib(size: int) -> str:
    """Rounded up: what is needed is not enough if it is rounded down."""
    return f"{math.ceil(100 * size / GIB) / 100:.2f} GiB" if size > GIB / 100 else f"{size} bytes"


Time = int  # nanoseconds since the start of the run

MICROSECOND: Time = 1_000
MILLISECOND: Time = 1_000_000
SECOND: Time = 1_000_000_000
FOREVER: Time = 1 << 60  # later than any instant; small enough that sums of two stay in 64 bits

_DURATIONS = {
    "ns": 1,
    "us": MICROSECOND,
    "µs": MICROSECOND,
    "ms": MILLISECOND,
    "s": SECOND,
    "min": 60 * SECOND,
    "h": 3600 * SECOND,
}
_PERIODS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/%]*)\s*\Z")

DURATION_FORM = "a duration with its unit, such as 25ms, 100us or 30s"
LONGEST: Time = 1 << 53  # 104 days: sums and products with batch sizes stay far below FOREVER
RATE_FORM = "a rate such as 5000/s or 90/min"
BYTES_FORM = "a size with its unit, such as 16GiB"


def split_quantity(text: str) -> tuple[Decimal, str]:
    """'25 ms' -> (25, 'ms'), exactly; raises ValueError on anything that is not number-then-unit."""
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError(text)
    number = Decimal(match.group(1))
    if not math.isfinite(float(number)):
        raise ValueError(text)
    return number, match.group(2)


def _scaled(text: object, factors: dict[str, int], form: str) -> int:
    if text == 0 and not isinstance(text, bool):  # zero needs no unit
        return 0
    if not isinstance(text, str):
        raise ValueError(form)
    try:
        number, unit = split_quantity(text)
    except ValueError:
        raise ValueError(form) from None
    if number == 0 and not unit:
        return 0
    if unit not in factors or number < 0:
        raise ValueError(form)
    return round(number * factors[unit])


def parse_duration(text: object) -> Time:
    """'1.053ms' -> 1053000. A bare number other than zero is refused: its unit would be a guess."""
    time = _scaled(text, _DURATIONS, DURATION_FORM)
    if time > LONGEST:
        raise ValueError(f"{DURATION_FORM}, and at most 100 days")
    return time


def parse_bytes(text: object) -> int:
    return _scaled(text, _BYTES, BYTES_FORM)


def parse_rate(text: object) -> float:
    """'5000/s' -> 5000.0 requests per second."""
    if not isinstance(text, str) or "/" not in text:
        raise ValueError(RATE_FORM)
    amount, _, period = text.partition("/")
    try:
        number, unit = split_quantity(amount)
    except ValueError:
        raise ValueError(RATE_FORM) from None
    scale = {"": 1, "k": 1000, "M": 1_000_000}.get(unit)
    if scale is None or period.strip() not in _PERIODS or number < 0:
        raise ValueError(RATE_FORM)
    return float(number * scale) / _PERIODS[period.strip()]


def to_ms(time: Time) -> float:
    return time / MILLISECOND


def to_seconds(time: Time) -> float:
    return time / SECOND
