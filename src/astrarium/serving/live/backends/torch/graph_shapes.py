"""A graph is captured for one shape: a batch size and, where items have a length, one length.

Items have a length where all their open dimensions are one axis, such as tokens and their types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest
from math import prod
from typing import NamedTuple

import numpy as np

from astrarium.serving.live import fills, limits
from astrarium.serving.live.backends.contract import ModelFiles
from astrarium.serving.live.buckets import buckets_of
from astrarium.serving.live.packing import is_packed
from astrarium.serving.live.tensors import Array, TensorSpec


class GraphShape(NamedTuple):
    """A graph's shape has the length 0 where items have none."""

    size: int
    length: int = 0

    @property
    def elements(self) -> int:
        """Return what graphs are compared by: large ones are captured first."""
        return self.size * max(1, self.length)


@dataclass(frozen=True)
class GraphShapes:
    """Graph shapes are those that a model with these *inputs* may have: `largest` is by length."""

    inputs: tuple[TensorSpec, ...]
    largest: Mapping[int, int]

    @cached_property
    def axis(self) -> tuple[int, int] | None:
        """Return the first input with a length, and which dimension of its batches that is.

        There is none where inputs are packed.
        """
        axes = fills.axes_of(self.inputs)
        if len(axes) != 1 or is_packed(self.inputs):
            return None
        name, place = axes[0][0]
        return [spec.name for spec in self.inputs].index(name), 1 + place

    @property
    def buckets(self) -> tuple[int, ...]:
        return tuple(length for length in self.largest if length)

    def length(self, arrays: Sequence[Array]) -> int:
        """Return the length of a batch."""
        return 0 if self.axis is None else int(arrays[self.axis[0]].shape[self.axis[1]])

    def item(self, spec: TensorSpec, length: int) -> tuple[int, ...]:
        """Return the shape of an item; a dimension that does not follow the length stays open."""
        place = self._place(spec)
        sizes = enumerate(spec.shape)
        return tuple(length if size < 0 and at == place else size for at, size in sizes)

    def _place(self, spec: TensorSpec) -> int:
        """Return which dimension of an item follows the length: of a mask, its own open one; -1 for none."""
        if self.axis is None:
            return -1
        is_mask = spec.fill is not None and spec.fill.kind == "mask"
        return spec.open_dimensions[0] if is_mask else self.axis[1] - 1

    def room(self, spec: TensorSpec) -> int:
        """Return the elements of the largest batch of any length."""
        sizes = (size * prod(self.item(spec, length)) for length, size in self.largest.items())
        return max(sizes, default=0)

    def rest(self, spec: TensorSpec, length: int) -> float:
        """Return what the rows behind a batch are filled with, as `Padding.with_rows` does it."""
        if spec.fill is not None:
            return length if spec.fill.kind == "lengths" else 1
        element = np.asarray(limits.padding_element(spec))
        number: float = limits.numbers(spec.datatype, element.tobytes())[0].item()
        return number

    def planned(self, sizes: Sequence[int]) -> tuple[list[GraphShape], list[GraphShape]]:
        """Return the shapes to capture before a model serves, and the rest, in the order of capturing."""
        first: list[GraphShape] = []
        later: list[list[GraphShape]] = []
        for length, largest in self.largest.items():
            soon, rest = first_sizes(sorted({min(size, largest) for size in sizes} if length else sizes))
            first += [GraphShape(size, length) for size in soon]
            later.append([GraphShape(size, length) for size in rest])
        in_turn = chain.from_iterable(zip_longest(*later))
        return largest_first(first), [shape for shape in in_turn if shape is not None]


def largest_first(shapes: Sequence[GraphShape]) -> list[GraphShape]:
    return sorted(shapes, key=lambda shape: shape.elements, reverse=True)


def shapes_of(files: ModelFiles, inputs: tuple[TensorSpec, ...], with_graphs: bool) -> GraphShapes:
    """Return the shapes that a model's graphs may have: by the buckets of its profile, or of its range.

    There are none of packed batches, which are of any length in all.
    """
    axes = fills.axes_of(inputs)
    if not axes:
        return GraphShapes(inputs, {0: files.max_batch})
    if len(axes) > 1 or is_packed(inputs) or not with_graphs:
        return GraphShapes(inputs, {})
    name, place = axes[0][0]
    range_ = next(spec for spec in inputs if spec.name == name).sizes_of(place)
    from astrarium.core.lengths import lengths_between  # with packages that no model needs

    derived = lengths_between(*range_) if range_ else ()
    return GraphShapes(inputs, buckets_of(files, inputs) or dict.fromkeys(derived, files.max_batch))


def first_sizes(sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the sizes to capture before a model serves, and the rest, each in the order of capturing.

    The first are the largest one, those that are a quarter of one before or less, and the smallest: any batch
    finds a graph that is not far too large. The rest halves what gaps remain, and then fills them.
    """
    if not sizes:
        return [], []
    first = _spaced(sizes, 4)
    half = _spaced(sizes, 2)
    between = [size for size in half if size not in first]
    return first, between + sorted(set(sizes) - {*first, *between}, reverse=True)


def _spaced(sizes: Sequence[int], factor: int) -> list[int]:
    """Return sizes from the largest down, each at most the factor's part of the one before; the smallest."""
    kept: list[int] = []
    for size in sorted(sizes, reverse=True):
        if not kept or size * factor <= kept[-1] or size == min(sizes):
            kept.append(size)
    return kept
