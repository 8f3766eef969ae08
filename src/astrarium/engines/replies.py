"""From the outputs of a batch to the reply rooms of its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from astrarium.engines.arena import aligned
from astrarium.engines.orders import Member, Shapes
from astrarium.engines.tensors import BYTES, Array, TensorSpec, datatype_of, to_bytes

Items = Array | Sequence[Array]


class _Reply(NamedTuple):
    """One item's answer: its shape with the batch of one, and its bytes."""

    shape: tuple[int, ...]
    data: bytes | memoryview


def write_replies(
    view: memoryview, specs: Sequence[TensorSpec], members: Sequence[Member], outputs: Mapping[str, Items]
) -> list[Shapes] | None:
    """The shapes that were written, by member; None where the specs say it all."""
    columns = [_column(spec, outputs, len(members)) for spec in specs]
    shapes = [
        _write(view, member, items) for member, items in zip(members, zip(*columns, strict=True), strict=True)
    ]
    return shapes if any(spec.item_bytes is None for spec in specs) else None


def _write(view: memoryview, member: Member, items: Sequence[_Reply]) -> Shapes:
    at, end = member.reply, member.reply + member.room
    for _, data in items:
        if at + len(data) > end:
            raise ValueError(f"an answer needs more than the {member.room} bytes kept for it")
        view[at : at + len(data)] = data
        at += aligned(len(data))
    return [(shape, len(data)) for shape, data in items]


def _column(spec: TensorSpec, outputs: Mapping[str, Items], size: int) -> list[_Reply]:
    """What the clients were promised, item by item, or an error that says what came instead."""
    if spec.name not in outputs:
        raise ValueError(f"the model gave no output {spec.name}; it gave {', '.join(outputs) or 'none'}")
    items = outputs[spec.name]
    if len(items) != size:
        raise ValueError(f"output {spec.name}: expected {size} items, one for each input, got {len(items)}")
    if isinstance(items, np.ndarray) and spec.datatype != BYTES:
        return _slices(spec, items)
    return [_item(spec, np.asarray(item)) for item in items]


def _slices(spec: TensorSpec, array: Array) -> list[_Reply]:
    """Stacked items are checked once and cut from the bytes of the whole."""
    _check(spec, array.shape[1:], datatype_of(array))
    data, shape = to_bytes(array), (1, *array.shape[1:])
    each = len(data) // len(array)
    return [_Reply(shape, data[i * each : (i + 1) * each]) for i in range(len(array))]


def _item(spec: TensorSpec, item: Array) -> _Reply:
    _check(spec, item.shape, datatype_of(item))
    return _Reply((1, *item.shape), to_bytes(item))


def _check(spec: TensorSpec, shape: tuple[int, ...], datatype: str) -> None:
    if not spec.admits(shape):
        raise ValueError(f"output {spec.name}: expected items of shape {spec.shape}, got {shape}")
    if datatype != spec.datatype:
        raise ValueError(f"output {spec.name}: expected {spec.datatype}, got {datatype}")
