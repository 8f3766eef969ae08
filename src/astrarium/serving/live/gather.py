"""From blocks of shared memory to the stacked inputs of a batch: a view where one will do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from astrarium.serving.live.arena import aligned, whole_shapes
from astrarium.serving.live.backends.contract import Batch
from astrarium.serving.live.backends.stacking import stack
from astrarium.serving.live.messages import Member
from astrarium.serving.live.tensors import BYTES, DATATYPES, Array, Tensor, TensorSpec, to_array


def gathered(
    view: memoryview,
    specs: Sequence[TensorSpec],
    members: Sequence[Member],
    staging: Mapping[str, Array] = MappingProxyType({}),
) -> Batch:
    """One array for each input, the items in the order of *members*; in those of *staging* where they fit."""
    applications = [member.application for member in members]
    if _are_alike(specs, members):
        return Batch(len(members), _of_one_shape(view, specs, members, staging), applications)
    named = _pieces(view, specs, members)
    own = {name: _item_shapes(piece) for name, piece in named.items() if not _alike(piece)}
    inputs = {name: _joined(piece, name in own) for name, piece in named.items()}
    return Batch(len(members), inputs, applications, own)


def _are_alike(specs: Sequence[TensorSpec], members: Sequence[Member]) -> bool:
    """The common case: requests of one item each, all of one shape."""
    shapes = members[0].shapes
    alike = all(member.rows == 1 and member.shapes == shapes for member in members)
    return alike and not any(spec.datatype == BYTES for spec in specs)


def _of_one_shape(
    view: memoryview, specs: Sequence[TensorSpec], members: Sequence[Member], staging: Mapping[str, Array]
) -> dict[str, Array]:
    """Bytes are joined before they become an array: for small items an array of each costs far more."""
    blocks = [member.block for member in members]
    inputs, at = {}, 0
    for spec, (shape, size) in zip(specs, members[0].shapes or whole_shapes(specs, 1), strict=True):
        kind, staged = DATATYPES[spec.datatype], staging.get(spec.name)
        if staged is not None and staged.nbytes == len(blocks) * size:
            _copy(view, [block + at for block in blocks], size, staged)
            inputs[spec.name] = staged
        elif len(blocks) == 1:
            inputs[spec.name] = np.ndarray(shape, kind, view, blocks[0] + at)
        else:
            whole = bytearray().join([view[block + at : block + at + size] for block in blocks])
            inputs[spec.name] = np.ndarray((len(blocks), *shape[1:]), kind, whole)
        at += aligned(size)
    return inputs


def _copy(view: memoryview, places: Sequence[int], size: int, to: Array) -> None:
    data = to.reshape(-1).view(np.uint8).data
    for item, place in enumerate(places):
        data[item * size : (item + 1) * size] = view[place : place + size]


def _pieces(
    view: memoryview, specs: Sequence[TensorSpec], members: Sequence[Member]
) -> dict[str, list[Array]]:
    pieces: dict[str, list[Array]] = {spec.name: [] for spec in specs}
    for first, last in _stretches(members):
        at = first.block
        shapes = first.shapes or whole_shapes(specs, first.rows)
        for spec, (shape, size) in zip(specs, shapes, strict=True):
            rows = _array(view, spec, at, shape, size)
            pieces[spec.name].append(rows if first.rows == 1 else rows[first.row : last.row + 1])
            at += aligned(size)
    return pieces


def _array(view: memoryview, spec: TensorSpec, at: int, shape: tuple[int, ...], size: int) -> Array:
    if spec.datatype == BYTES:
        return to_array(Tensor(spec.name, BYTES, shape, view[at : at + size]))
    return np.ndarray(shape, DATATYPES[spec.datatype], view, at)


def _stretches(members: Sequence[Member]) -> Iterator[tuple[Member, Member]]:
    """Neighbouring rows of one block are taken at once."""
    first = last = members[0]
    for member in members[1:]:
        if member.block == last.block and member.row == last.row + 1:
            last = member
        else:
            yield first, last
            first = last = member
    yield first, last


def _alike(pieces: list[Array]) -> bool:
    item = pieces[0].shape[1:]
    return all(piece.shape[1:] == item for piece in pieces)


def _item_shapes(pieces: list[Array]) -> list[tuple[int, ...]]:
    return [piece.shape[1:] for piece in pieces for _ in piece]


def _joined(pieces: list[Array], unequal: bool) -> Array:
    if unequal:
        return stack([item for piece in pieces for item in piece])
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
