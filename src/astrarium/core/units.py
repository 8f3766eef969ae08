"""Time is an integer number of nanoseconds inside; people read and write units."""

from __future__ import annotations

import math

# Words that several policies use.


GIB = 2**30


def gib(size: int) -> str:
    """Rounded up: what is needed is not enough if it is rounded down."""
    return f"{math.ceil(100 * size / GIB) / 100:.2f} GiB" if size > GIB / 100 else f"{size} bytes"


def counted(number: int, noun: str) -> str:
    """'1 GPU' or '2 GPUs'"""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


Time = int  # nanoseconds since the start of the run

MICROSECOND: Time = 1_000
MILLISECOND: Time = 1_000_000
SECOND: Time = 1_000_000_000
FOREVER: Time = 1 << 60  # later than any instant; small enough that sums of two stay in 64 bits

LONGEST: Time = 1 << 53  # 104 days: sums and products with batch sizes stay far below FOREVER


def to_ms(time: Time) -> float:
    return time / MILLISECOND


def to_seconds(time: Time) -> float:
    return time / SECOND
