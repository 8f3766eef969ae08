"""Words that several policies use."""

from __future__ import annotations

import math

GIB = 2**30


def gib(size: int) -> str:
    """Rounded up: what is needed is not enough if it is rounded down."""
    return f"{math.ceil(100 * size / GIB) / 100:.2f} GiB" if size > GIB / 100 else f"{size} bytes"
