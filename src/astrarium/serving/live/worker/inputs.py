"""The inputs of a batch are gathered from shared memory, as views where possible.

A view cannot be written: a batch that was stopped, or lost with its worker, is run again with the same block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from astrarium.serving.live import tensors
from astrarium.serving.live.backends.contract import Batch
from astrarium.serving.live.layout import aligned, whole_shapes
from astrarium.serving.live.messages import MEMBER_BYTES, BatchMember, Shapes, unpacked
from astrarium.serving.live.tensors import BYTES, DATATYPES, Array, Tensor, TensorSpec
from astrarium.serving.live.worker.items import check_input, gather_items


@dataclass(frozen=True)
class UnequalItems:
    """The items of a batch whose shapes differ: for each input an array for each item."""

    size: int
    arrays: Mapping[str, Sequence[Array]]
    applications: Sequence[int] = ()


def gathered(
    view: memoryview,
    specs: Sequence[TensorSpec],
    members: bytes,
    shapes: Sequence[Shapes | None] | None = None,
    staging: Mapping[str, Array] = MappingProxyType({}),
) -> Batch | UnequalItems:
    """Return an array for each input, with the items of *members*; one of *staging* where they fit.

    *shapes* are those of each member's inputs, as in the order. Where they differ, the items are left as they
    are: what becomes of them is up to the model (`padding.py`).
    """
    size = len(members) // MEMBER_BYTES
    applications = np.frombuffer(members, "<i8")[5::6].tolist()
    common = _common_shapes(specs, shapes)
    if common is not None and (staging or not _is_one_call(members)):
        return Batch(size, _joined_items(view, specs, members, common, staging), applications)
    named = _pieces(view, specs, unpacked(members), shapes or [None] * size)
    if all(map(_alike, named.values())):
        return Batch(size, {name: _joined(pieces) for name, pieces in named.items()}, applications)
    items = {name: [item for piece in pieces for item in rows_of(piece)] for name, pieces in named.items()}
    return UnequalItems(size, items, applications)


def rows_of(array: Array) -> list[Array]:
    """Return the items of a stacked array, each as an array."""
    return [array[row, ...] for row in range(len(array))]


def _common_shapes(specs: Sequence[TensorSpec], shapes: Sequence[Shapes | None] | None) -> Shapes | None:
    """Return shape and bytes of an item of each input; None where items differ, or are texts."""
    if shapes is None or shapes[0] is None:
        return None if shapes and any(shapes) else [(spec.shape, spec.item_bytes or 0) for spec in specs]
    if any(spec.datatype == BYTES for spec in specs) or any(other != shapes[0] for other in shapes):
        return None
    return [(shape[1:], size // shape[0]) for shape, size in shapes[0]]


def _is_one_call(members: bytes) -> bool:
    """Whether all members may be rows of one call, which can be read where it lies."""
    size = len(members) // MEMBER_BYTES
    return size == 1 or int.from_bytes(members[8:16], "little") >= size


def _joined_items(
    view: memoryview,
    specs: Sequence[TensorSpec],
    members: bytes,
    shapes: Shapes,
    staging: Mapping[str, Array],
) -> dict[str, Array]:
    inputs = {}
    size = len(members) // MEMBER_BYTES
    for spec, (shape, item_bytes) in zip(specs, shapes, strict=True):
        array = staging.get(spec.name)
        if array is None or array.nbytes != size * item_bytes:
            array = np.empty((size, *shape), DATATYPES[spec.datatype])
        inputs[spec.name] = array
    gather_items(view, members, [item_bytes for _, item_bytes in shapes], list(inputs.values()))
    return inputs


def _pieces(
    view: memoryview,
    specs: Sequence[TensorSpec],
    members: Sequence[BatchMember],
    shapes: Sequence[Shapes | None],
) -> dict[str, list[Array]]:
    pieces: dict[str, list[Array]] = {spec.name: [] for spec in specs}
    for place, length in _stretches(members):
        first = members[place]
        at = first.block
        for spec, (shape, size) in zip(specs, shapes[place] or whole_shapes(specs, first.rows), strict=True):
            check_input(view, place, first, at, size)
            rows = _array(view, spec, at, shape, size)
            pieces[spec.name].append(rows if first.rows == 1 else rows[first.row : first.row + length])
            at += aligned(size)
    return pieces


def _array(view: memoryview, spec: TensorSpec, at: int, shape: tuple[int, ...], size: int) -> Array:
    if spec.datatype == BYTES:
        return tensors.to_array(Tensor(spec.name, BYTES, shape, view[at : at + size]))
    return np.ndarray(shape, DATATYPES[spec.datatype], view.toreadonly(), at)


def _stretches(members: Sequence[BatchMember]) -> Iterator[tuple[int, int]]:
    """Yield stretches of neighbouring rows of one block, to be taken at once: first member, and length."""
    first = 0
    for place, (member, last) in enumerate(zip(members[1:], members, strict=False), 1):
        if member.block != last.block or member.row != last.row + 1:
            yield first, place - first
            first = place
    yield first, len(members) - first


def _alike(pieces: list[Array]) -> bool:
    item = pieces[0].shape[1:]
    return all(piece.shape[1:] == item for piece in pieces)


def _joined(pieces: list[Array]) -> Array:
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
