"""The outputs of a batch are written to the reply buffers of its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from astrarium.serving.live import tensors
from astrarium.serving.live.layout import aligned
from astrarium.serving.live.messages import MEMBER_BYTES, BatchMember, Shapes, unpacked
from astrarium.serving.live.tensors import Array, TensorSpec
from astrarium.serving.live.worker.items import check_reply_size, scatter_items

Items = Array | Sequence[Array]

Reply = tuple[tuple[int, ...], bytes | memoryview]  # of one item: its shape with the batch of one, its bytes


def write_replies(
    view: memoryview, specs: Sequence[TensorSpec], members: bytes, outputs: Mapping[str, Items]
) -> list[Shapes] | None:
    """Write the members' replies; return their shapes, or None where the specs say them all."""
    size = len(members) // MEMBER_BYTES
    promised = [_promised(spec, outputs, size) for spec in specs]
    stacked = [array for array in promised if isinstance(array, np.ndarray) and array.dtype.kind not in "OSU"]
    if len(stacked) == len(specs):
        shapes = [_write_alike(view, specs, members, stacked)] * size
    else:
        pairs = zip(specs, promised, strict=True)
        columns = [[_item(spec, np.asarray(item)) for item in items] for spec, items in pairs]
        written = zip(unpacked(members), zip(*columns, strict=True), strict=True)
        shapes = [_write(view, member, item) for member, item in written]
    return shapes if any(spec.item_bytes is None for spec in specs) else None


def _promised(spec: TensorSpec, outputs: Mapping[str, Items], size: int) -> Items:
    """Return an output that the clients were promised, or raise an error that says what came instead."""
    if spec.name not in outputs:
        raise ValueError(f"the model gave no output {spec.name}; it gave {', '.join(outputs) or 'none'}")
    items = outputs[spec.name]
    if len(items) != size:
        raise ValueError(f"output {spec.name}: expected {size} items, one for each input, got {len(items)}")
    return items


def _write_alike(
    view: memoryview, specs: Sequence[TensorSpec], members: bytes, arrays: Sequence[Array]
) -> Shapes:
    """Write stacked items, which all have the same shapes; return these."""
    shapes = []
    for spec, array in zip(specs, arrays, strict=True):
        _check(spec, array.shape[1:], tensors.datatype_of(array))
        shapes.append(((1, *array.shape[1:]), array.nbytes // len(array)))
    scatter_items(view, members, [size for _, size in shapes], list(map(np.ascontiguousarray, arrays)))
    return shapes


def _write(view: memoryview, member: BatchMember, items: Sequence[Reply]) -> Shapes:
    at = 0
    for _, data in items:
        check_reply_size(at + len(data), member.reply_bytes)
        view[member.reply + at : member.reply + at + len(data)] = data
        at += aligned(len(data))
    return [(shape, len(data)) for shape, data in items]


def _item(spec: TensorSpec, item: Array) -> Reply:
    _check(spec, item.shape, tensors.datatype_of(item))
    return (1, *item.shape), tensors.to_bytes(item)


def _check(spec: TensorSpec, shape: tuple[int, ...], datatype: str) -> None:
    if shape != spec.shape and not spec.admits(shape):
        raise ValueError(f"output {spec.name}: expected items of shape {spec.shape}, got {shape}")
    if datatype != spec.datatype:
        raise ValueError(f"output {spec.name}: expected {spec.datatype}, got {datatype}")
