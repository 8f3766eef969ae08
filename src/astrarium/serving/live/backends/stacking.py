"""Stacking makes one array of items of unequal shape, and splits it again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrarium.serving.live.tensors import Array

Shape = tuple[int, ...]


def stack(items: Sequence[Array]) -> Array:
    """Return one array with the items along a new first dimension.

    Items that differ in length (along dimensions that a model declares as -1) are padded at the end with
    zeros, or with empty bytes, to the longest.
    """
    shapes = {item.shape for item in items}
    if len(shapes) == 1:
        return np.stack(items)
    if len({len(shape) for shape in shapes}) > 1:
        raise ValueError(f"items of unequal rank cannot be stacked: {sorted(shapes)}")
    return _padded(items, _longest(list(shapes)))


def split(array: Array, declared: Shape, own: Sequence[Shape]) -> list[Array] | None:
    """Return the items of an output, cut back where it follows a padded input; None where it does not.

    An output follows an input in dimensions that are declared open (-1) and as long as its longest item.
    *own* holds the shapes of the input's items before `stack`.
    """
    longest = _longest(own)
    places = zip(declared, array.shape[1:], longest, strict=False)
    follows = [wanted == -1 and size == padded for wanted, size, padded in places]
    if not any(follows):
        return None
    return [item[_cut(shape, follows)] for item, shape in zip(array, own, strict=True)]


def _longest(shapes: Sequence[Shape]) -> Shape:
    return tuple(map(max, zip(*shapes, strict=True)))


def _padded(items: Sequence[Array], longest: Shape) -> Array:
    empty = b"" if items[0].dtype.kind == "O" else 0
    whole = np.full((len(items), *longest), empty, items[0].dtype)
    for place, item in enumerate(items):
        whole[place][tuple(slice(size) for size in item.shape)] = item
    return whole


def _cut(own: Shape, follows: Sequence[bool]) -> tuple[slice, ...]:
    return tuple(slice(size) if cut else slice(None) for size, cut in zip(own, follows, strict=False))
