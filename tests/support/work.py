"""Work is counted, not timed: a test of what something costs needs no quiet machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class CallCounter:
    """Counts the functions, of Python or C, that its thread calls between `begin` and `end`."""

    def __init__(self) -> None:
        self.calls = 0
        self._before: Any = None

    def begin(self) -> None:
        self._before = sys.getprofile()
        sys.setprofile(self._count)

    def end(self) -> None:
        sys.setprofile(self._before)

    def _count(self, frame: FrameType, event: str, argument: Any) -> None:
        self.calls += event in ("call", "c_call")


def calls_of(do: Callable[[], object]) -> int:
    """Return how many functions are called while something is done in this thread."""
    counter = CallCounter()
    counter.begin()
    try:
        do()
    finally:
        counter.end()
    return counter.calls
