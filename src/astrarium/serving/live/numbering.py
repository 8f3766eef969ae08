"""Items with several open dimensions have numbers in the place of lengths, by which they are scheduled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from astrarium.core.size_grid import Size, SizeGrid
from astrarium.serving.live import fills
from astrarium.serving.live.tensors import TensorSpec


class Numbering(NamedTuple):
    """A numbering says which dimension of which input lies along each axis of a grid."""

    grid: SizeGrid
    axes: tuple[tuple[int, int], ...]  # the first input along each, and its dimension, the batch first

    def number(self, shapes: Sequence[Sequence[int]]) -> int:
        """Return the number of items whose inputs have these shapes, the batch first."""
        return self.grid.number([shapes[at][dimension] for at, dimension in self.axes])


def numbering(inputs: Sequence[TensorSpec], sizes: Sequence[Size]) -> Numbering | None:
    """Return the numbering of a model's items; None where they have lengths, or other axes than the sizes."""
    names = [spec.name for spec in inputs]
    axes = [(names.index(name), 1 + place) for (name, place), *_ in fills.axes_of(inputs)]
    if not sizes or len(sizes[0]) != len(axes):
        return None
    return Numbering(SizeGrid(sizes), tuple(axes))
