"""From the outputs of a batch to the reply rooms of its members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from astrarium.engines.arena import aligned
from astrarium.engines.orders import Member, Shapes
from astrarium.engines.tensors import Array, TensorSpec, datatype_of, to_bytes

Items = Array | Sequence[Array]


def write_replies(
    view: memoryview, specs: Sequence[TensorSpec], members: Sequence[Member], outputs: Mapping[str, Items]
) -> list[Shapes] | None:
    """The shapes that were written, by member; None where the specs say it all."""
    columns = [_column(spec, outputs, len(members)) for spec in specs]
    shapes = [_write(view, member, [column[i] for column in columns]) for i, member in enumerate(members)]
    return shapes if any(spec.item_bytes is None for spec in specs) else None


def _write(view: memoryview, member: Member, items: Sequence[Array]) -> Shapes:
    at, end = member.reply, member.reply + member.room
    shapes: Shapes = []
    for item in items:
        data = to_bytes(item)
        if at + len(data) > end:
            raise ValueError(f"an answer needs more than the {member.room} bytes kept for it")
        view[at : at + len(data)] = data
        at += aligned(len(data))
        shapes.append(((1, *item.shape), len(data)))
    return shapes


def _column(spec: TensorSpec, outputs: Mapping[str, Items], size: int) -> list[Array]:
    """What the clients were promised, item by item, or an error that says what came instead."""
    if spec.name not in outputs:
        raise ValueError(f"the model gave no output {spec.name}; it gave {', '.join(outputs) or 'none'}")
    items = list(outputs[spec.name])
    if len(items) != size:
        raise ValueError(f"output {spec.name}: expected {size} items, one for each input, got {len(items)}")
    for item in items:
        _check_item(spec, np.asarray(item))
    return [np.asarray(item) for item in items]


def _check_item(spec: TensorSpec, item: Array) -> None:
    if not spec.admits(item.shape):
        raise ValueError(f"output {spec.name}: expected items of shape {spec.shape}, got {item.shape}")
    if datatype_of(item) != spec.datatype:
        raise ValueError(f"output {spec.name}: expected {spec.datatype}, got {datatype_of(item)}")
