"""Where a trial runs: on a share of one GPU, or on several GPUs."""

from __future__ import annotations

from fractions import Fraction

import msgspec

Width = Fraction  # GPUs: 1/c, or a whole number


class Place(msgspec.Struct, frozen=True, gc=False):
    """All of these GPUs, or one part in *parts* of the only one."""

    gpus: tuple[int, ...]
    parts: int = 1

    @property
    def width(self) -> Width:
        return Fraction(len(self.gpus), self.parts)

    @property
    def share(self) -> Fraction:
        """Of each of its GPUs."""
        return Fraction(1, self.parts)
