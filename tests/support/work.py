"""Work is counted, not timed: a test of what something costs needs no quiet machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls_of(do: Callable[[], object]) -> int:
    """Return how many functions, of Python or C, are called while something is done in this thread."""
    counts = {"call": 0, "c_call": 0}

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event in counts:
            counts[event] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        do()
    finally:
        sys.setprofile(before)
    return sum(counts.values())
