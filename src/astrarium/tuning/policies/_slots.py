"""GPUs that widths need, if those who share a GPU have like parts of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache

from astrarium.tuning.places import Width


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
