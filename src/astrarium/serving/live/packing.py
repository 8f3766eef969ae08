"""A packed batch has its items one after another, and the model is told where each begins.

That is how kernels for items of unequal length take them (`torch.nn.attention.varlen`, flash attention: their
`cu_seqlens` are our offsets). Nothing is padded, so nothing is computed in vain.

A CUDA graph has a fixed shape: so many items, which are so long in all. A batch in a graph has further items
behind its own, which are nobody's. They are no shorter and no longer than the range of the input allows: a
model that takes what clients send takes these. Empty ones would be simpler, but a model that looks for the
first token of each item would look for one behind the last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from astrarium.core.errors import InputError
from astrarium.serving.live.ranges import Sizes
from astrarium.serving.live.tensors import Array, TensorSpec

_OFFSETS = ("INT32", "INT64")


class PackedShape(NamedTuple):
    """A packed shape is what a graph takes: its items are so many, and so long in *total*."""

    total: int
    items: int


def rest_in(shapes: Sequence[PackedShape], lengths: Sequence[int], sizes: Sizes) -> list[int] | None:
    """Return how long the items are that make a batch the first shape that it fits; None where it fits none.

    The shapes rise, items have the *sizes* of a range.
    """
    count, total = len(lengths), sum(lengths)
    for shape in shapes[bisect_left(shapes, PackedShape(total, count)) :]:
        rest = rest_of(shape, count, total, sizes)
        if rest is not None:
            return rest
    return None


def rest_of(shape: PackedShape, count: int, total: int, sizes: Sizes) -> list[int] | None:
    """Return how long the items are behind *count* of a *total* length; None where there can be none such."""
    items, rest = shape.items - count, shape.total - total
    low, high = sizes
    return even_lengths(rest, items) if items >= 0 and items * low <= rest <= items * high else None


def even_lengths(total: int, items: int) -> list[int]:
    """Return lengths that are as equal as can be: attention takes the square of each."""
    return [total // items + (place < total % items) for place in range(items)]


def is_packed(specs: Iterable[TensorSpec]) -> bool:
    return any(spec.packed for spec in specs)


def offsets_of(lengths: Sequence[int] | Array) -> Array:
    """Return where items of these lengths begin, one behind the other, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def flat(stacked: Array) -> Array:
    """Return equal items, stacked, as they are packed: the same elements in the same order."""
    size, length, *rest = stacked.shape
    return stacked.reshape(size * length, *rest)


def joined(items: Sequence[Array]) -> Array:
    return items[0] if len(items) == 1 else np.concatenate(items)


def split(packed: Array, lengths: Sequence[int]) -> list[Array]:
    return np.split(packed, offsets_of(lengths)[1:-1])


def unlike(specs: Sequence[TensorSpec], shapes: Sequence[Sequence[int]]) -> tuple[int, int] | None:
    """Return the places of two packed inputs of unequal length; *shapes* have the batch first."""
    packed = [place for place, spec in enumerate(specs) if spec.packed]
    for place in packed[1:]:
        if shapes[place][1] != shapes[packed[0]][1]:
            return packed[0], place
    return None


def check_fills(pack: bool, kinds: Collection[str]) -> None:
    """Check how the server fills inputs, by *kinds*, of a model that is packed or not."""
    if not pack and "offsets" in kinds:
        raise InputError("pack", pack, "true beside `offsets`: only packed items have any")
    if pack and "mask" in kinds:
        raise InputError("pack", pack, "false beside `mask`: nothing is padded that it could tell")
    if pack and not kinds:
        raise InputError(
            "pack", pack, "`offsets: NAME` beside it, which tells a model where each item begins"
        )


def check_axes(axes: Sequence[tuple[str, int]]) -> None:
    """Check the open dimensions, of which one axis can be packed: the first dimension of items."""
    if not axes:
        raise InputError("pack", True, "an input with an open dimension (-1, or a range)")
    if len(axes) > 1 or axes[0][1] != 0:
        dimensions = " and ".join(f"dimension {place} of {name}" for name, place in axes)
        expected = f"one open dimension, the first of its inputs and with one range, not {dimensions}"
        raise InputError("pack", True, expected)


def check_offsets(spec: TensorSpec) -> None:
    if spec.datatype not in _OFFSETS:
        raise InputError("offsets", f"{spec.name} {spec.datatype}", " or ".join(_OFFSETS))
    if spec.shape:
        expected = "the shape []: one number for each item, and the total behind them"
        raise InputError("offsets", f"{spec.name} {list(spec.shape)}", expected)


def check_outputs(outputs: Iterable[TensorSpec]) -> None:
    """Check that the outputs of a packed model are open in their first dimension, if in any."""
    for place, spec in enumerate(outputs):
        if any(dimension > 0 for dimension in spec.open_dimensions):
            expected = "open in its first dimension only: then it comes packed, as the inputs do"
            raise InputError(f"outputs[{place}].shape", list(spec.shape), expected)
