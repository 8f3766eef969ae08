"""A graph is captured for one shape: a batch size and, where items have a length, one length.

Items have a length where all their open dimensions are one axis, such as tokens and their types. Where these
are packed, a graph is for so many items that are so long in all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise, zip_longest
from math import prod
from typing import NamedTuple

import numpy as np

from astrarium.serving.live import fills, limits
from astrarium.serving.live.backends.contract import ModelFiles
from astrarium.serving.live.buckets import buckets_of, shares_of
from astrarium.serving.live.packing import even_lengths, is_packed, offsets_of
from astrarium.serving.live.ranges import Sizes
from astrarium.serving.live.tensors import DATATYPES, Array, TensorSpec

_QUARTER, _HALF = 4, 2  # how many times smaller the next size is


class GraphShape(NamedTuple):
    """A graph's shape has the length 0 where items have none; where they are *packed*, that of them all."""

    size: int
    length: int = 0
    packed: bool = False

    @property
    def elements(self) -> int:
        """Return what graphs are compared by: large ones are captured first."""
        return self.length if self.packed else self.size * max(1, self.length)

    def takes(self, batch: GraphShape) -> bool:
        """Whether a batch runs in a graph of this shape; a packed one has got it from the worker already."""
        return self == batch if self.packed else self.size >= batch.size and self.length == batch.length


@dataclass(frozen=True)
class GraphShapes:
    """Graph shapes are those that a model with these *inputs* may have: `largest` is by length.

    Those of a model with packed inputs are `packed`. The `shares` are those of requests, by length, where
    somebody knows.
    """

    inputs: tuple[TensorSpec, ...]
    largest: Mapping[int, int]
    packed: tuple[GraphShape, ...] = ()
    shares: Mapping[int, float] = field(default_factory=dict)

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

    @property
    def rows(self) -> int:
        """Return the size of the largest graph that there may be."""
        return max([*self.largest.values(), *(shape.size for shape in self.packed)], default=0)

    def of_batch(self, arrays: Sequence[Array], size: int) -> GraphShape:
        """Return the shape of a batch."""
        if self.packed:
            return self._of_packed(arrays)
        length = 0 if self.axis is None else arrays[self.axis[0]].shape[self.axis[1]]
        return GraphShape(size, int(length))

    def _of_packed(self, arrays: Sequence[Array]) -> GraphShape:
        """Return the shape of a packed batch with all of its items, also those that are nobody's."""
        pairs = list(zip(self.inputs, arrays, strict=True))
        items = next(len(one) - (spec.fill.kind == "offsets") for spec, one in pairs if spec.fill is not None)
        return GraphShape(items, next(len(one) for spec, one in pairs if spec.packed), packed=True)

    def may_have(self, shape: GraphShape) -> bool:
        return shape in self.packed or shape.size <= self.largest.get(shape.length, 0)

    def whole(self, spec: TensorSpec, shape: GraphShape) -> tuple[int, ...]:
        """Return the shape of an input or an output of all items of a batch."""
        if not shape.packed:
            return shape.size, *self.item(spec, shape.length)
        if spec.open_dimensions:
            return shape.length, *spec.shape[1:]
        return shape.size + (spec.fill is not None and spec.fill.kind == "offsets"), *spec.shape

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
        shapes = [*self.packed, *(GraphShape(size, length) for length, size in self.largest.items())]
        return max((prod(self.whole(spec, shape)) for shape in shapes), default=0)

    def empty(self, spec: TensorSpec, shape: GraphShape) -> float | Array:
        """Return what an input has in a graph without a batch: a number everywhere, or an array."""
        if not shape.packed or spec.fill is None:
            return self.rest(spec, shape.length)
        lengths = even_lengths(shape.length, shape.size)
        filled = offsets_of(lengths) if spec.fill.kind == "offsets" else np.array(lengths)
        return filled.astype(DATATYPES[spec.datatype]).reshape(self.whole(spec, shape))

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
        by_length = self._sizes(sizes)
        for length, of_length in by_length.items():
            soon, rest = first_sizes(of_length)
            first += [GraphShape(size, length, bool(self.packed)) for size in soon]
            later.append([GraphShape(size, length, bool(self.packed)) for size in rest])
        if any(self.shares.values()):
            return self._common_first(by_length, len(first))
        in_turn = chain.from_iterable(zip_longest(*later))
        return largest_first(first), [shape for shape in in_turn if shape is not None]

    def _common_first(
        self, by_length: Mapping[int, Sequence[int]], soon: int
    ) -> tuple[list[GraphShape], list[GraphShape]]:
        """Return the same where the shares are known: so many *soon*, those that spare the requests most.

        The largest graph of each length is always among them: any batch finds one, and none that is captured
        later needs more memory.
        """
        always = [GraphShape(max(sizes), length) for length, sizes in by_length.items() if sizes]
        spared = {
            GraphShape(size, length): self.shares.get(length, 0.0) * times
            for length, sizes in by_length.items()
            for size, times in times_too_large(sizes).items()
        }
        ordered = sorted(spared, key=lambda shape: spared[shape], reverse=True)
        more = soon - len(always)
        return largest_first([*always, *ordered[:more]]), ordered[more:]

    def _sizes(self, sizes: Sequence[int]) -> Mapping[int, Sequence[int]]:
        """Return the sizes of graphs by length."""
        by_length: dict[int, list[int]] = {}
        for shape in self.packed:
            by_length.setdefault(shape.length, []).append(shape.size)
        for length, largest in self.largest.items():
            by_length[length] = sorted({min(size, largest) for size in sizes} if length else sizes)
        return by_length


def largest_first(shapes: Sequence[GraphShape]) -> list[GraphShape]:
    return sorted(shapes, key=lambda shape: shape.elements, reverse=True)


def shapes_of(files: ModelFiles, inputs: tuple[TensorSpec, ...], sizes: Sequence[int]) -> GraphShapes:
    """Return the shapes that a model's graphs may have: by the buckets of its profile, or of its range."""
    axes = fills.axes_of(inputs)
    if not axes:
        return GraphShapes(inputs, {0: files.max_batch})
    if len(axes) > 1 or not sizes:
        return GraphShapes(inputs, {})
    name, place = axes[0][0]
    range_ = next(spec for spec in inputs if spec.name == name).sizes_of(place)
    from astrarium.core.lengths import lengths_between  # with packages that no model needs

    derived = lengths_between(*range_) if range_ else ()
    largest = buckets_of(files, inputs) or dict.fromkeys(derived, files.max_batch)
    if not is_packed(inputs):
        return GraphShapes(inputs, largest, shares=shares_of(files, inputs))
    return GraphShapes(inputs, {}, packed_shapes(range_, largest, sizes) if range_ else ())


def packed_shapes(range_: Sizes, largest: Mapping[int, int], sizes: Sequence[int]) -> tuple[GraphShape, ...]:
    """Return the shapes of packed graphs for items of a range, up to so many of each length.

    A graph is for up to *size* items that are *total* in all, where so many can be. What a batch has less is
    made up by items *behind* it, within the range: by so many where it has just more than the next smaller
    total. Where the range is so narrow that these were more than the batch, there is no graph.
    """
    from astrarium.core.lengths import steps_between

    low, high = range_
    totals = steps_between(min(largest), max(length * size for length, size in largest.items()))
    shapes = []
    for before, total in pairwise([low - 1, *totals]):
        behind = max(1, -(-(total - before - 1) // max(1, high - low)))
        fitting = [size for size in sizes if size * low <= total <= size * high and behind <= size]
        shapes += [GraphShape(size + behind, total + behind * low, packed=True) for size in fitting]
    return tuple(shapes)


def first_sizes(sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the sizes to capture before a model serves, and the rest, each in the order of capturing.

    The first are the largest one, those that are a quarter of one before or less, and the smallest: any batch
    finds a graph that is not far too large. The rest halves what gaps remain, and then fills them.
    """
    if not sizes:
        return [], []
    first = _spaced(sizes, _QUARTER)
    half = _spaced(sizes, _HALF)
    between = [size for size in half if size not in first]
    return first, between + sorted(set(sizes) - {*first, *between}, reverse=True)


def times_too_large(sizes: Sequence[int]) -> dict[int, float]:
    """Return sizes below the largest in the order of capturing, each with what it spares.

    That is how many times too large a graph batches may run in until all sizes of the same step are there.
    """
    first, rest = first_sizes(sizes)
    half = _spaced(sizes, _HALF)
    steps = dict.fromkeys(first[1:], max(sizes) / min(sizes)) if sizes else {}
    return steps | {size: float(_QUARTER if size in half else _HALF) for size in rest}


def _spaced(sizes: Sequence[int], factor: int) -> list[int]:
    """Return sizes from the largest down, each at most the factor's part of the one before; the smallest."""
    kept: list[int] = []
    for size in sorted(sizes, reverse=True):
        if not kept or size * factor <= kept[-1] or size == min(sizes):
            kept.append(size)
    return kept
