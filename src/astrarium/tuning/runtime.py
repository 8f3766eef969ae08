"""This module says how long an iteration takes on a share of a GPU and on several (Equation 3.2 of the
dissertation), and how far packing and spreading pay."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import msgspec

from astrarium.core.quantities import SECOND, Time

Width = Fraction  # GPUs: 1/c, or a whole number


class Place(msgspec.Struct, frozen=True, gc=False):
    """A place is all of these GPUs, or one part in *parts* of a single GPU."""

    gpus: tuple[int, ...]
    parts: int = 1

    @property
    def width(self) -> Width:
        return Fraction(len(self.gpus), self.parts)

    @property
    def share(self) -> Fraction:
        """Return the share that the place has of each of its GPUs."""
        return Fraction(1, self.parts)


BENEFIT = 0.05  # packing one more must save so much of the mean time of a trial


class Runtime(msgspec.Struct, frozen=True, gc=False):
    """A runtime tells how long an iteration takes at any width: *iteration* on one GPU alone. Each further
    trial on the GPU makes it *packing* times as long, and each further GPU costs a factor of *scaling*; 1 is
    ideal."""

    iteration: Time = SECOND
    packing: float = 1.0
    scaling: float = 1.0

    def at(self, width: Width) -> float:
        gpus = width.numerator
        parts = width.denominator
        if gpus < parts:
            return self.iteration * float(self.packing ** (parts / gpus - 1))
        return self.iteration * parts / gpus * float(self.scaling ** (gpus / parts - 1))


def marginal_benefit(times: Sequence[float], packed: int) -> float:
    """Return what packing that many trials saves of the mean completion time, against one less (Equation
    3.1). *times* are mean times of an iteration with 1, 2, ... trials on a GPU."""
    return 1 - (packed - 1) / packed * times[packed - 1] / times[packed - 2]


def most_packed(times: Sequence[float], benefit: float = BENEFIT) -> int:
    """Return c: the number of trials on a GPU up to which each further trial saves more than *benefit*."""
    packed = 1
    while packed < len(times) and marginal_benefit(times, packed + 1) > benefit:
        packed += 1
    return packed


def most_spread(runtime: Runtime, gpus: int) -> int:
    """Return d: the number of GPUs beyond which an iteration gets no shorter."""
    spread = 1
    while spread < gpus and runtime.at(Width(spread + 1)) < runtime.at(Width(spread)):
        spread += 1
    return spread


def packed_times(runtime: Runtime, most: int) -> list[float]:
    return [runtime.at(Width(1, packed)) for packed in range(1, most + 1)]
