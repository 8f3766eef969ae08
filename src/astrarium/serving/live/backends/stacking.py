"""Stacking makes one array of items of unequal shape, and splits it again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from astrarium.serving.live.tensors import Array

Shape = tuple[int, ...]


def stack(items: Sequence[Array], shape: Shape | None = None, padding: Any = None) -> Array:
    """Return one array with the items along a new first dimension.

    Items that are not of this *shape* (without one: the longest in every dimension) are padded at the end,
    with *padding*, or else with zeros or empty bytes.
    """
    shapes = {item.shape for item in items}
    if len({len(own) for own in shapes}) > 1:
        raise ValueError(f"items of unequal rank cannot be stacked: {sorted(shapes)}")
    whole = longest(shapes) if shape is None else shape
    if shapes == {whole}:
        return items[0][None] if len(items) == 1 else np.stack(items)
    return _padded(items, whole, padding)


def longest(shapes: Iterable[Shape]) -> Shape:
    """Return the smallest shape that holds all of these."""
    return tuple(map(max, zip(*shapes, strict=True)))


def split(array: Array, declared: Shape, own: Sequence[Shape], padded: Shape) -> list[Array] | None:
    """Return the items of an output, cut back where it follows a padded input; None where it does not.

    An output follows an input in dimensions that are declared open (-1) and as long as the input's, which was
    *padded* to so much. *own* holds the shapes of the input's items before that.
    """
    places = zip(declared, array.shape[1:], padded, strict=False)
    follows = [wanted == -1 and size == whole for wanted, size, whole in places]
    if not any(follows):
        return None
    return [item[_cut(shape, follows)] for item, shape in zip(array, own, strict=True)]


def _padded(items: Sequence[Array], shape: Shape, padding: Any) -> Array:
    empty = b"" if items[0].dtype.kind == "O" else np.zeros((), items[0].dtype)
    whole = np.full((len(items), *shape), empty if padding is None else padding, items[0].dtype)
    for place, item in enumerate(items):
        whole[place][tuple(slice(size) for size in item.shape)] = item
    return whole


def _cut(own: Shape, follows: Sequence[bool]) -> tuple[slice, ...]:
    return tuple(slice(size) if cut else slice(None) for size, cut in zip(own, follows, strict=False))
