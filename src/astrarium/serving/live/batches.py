"""Batches are gathered from shared memory, as views where possible, and their replies written there.

Where items are alike, native code (if there is any) copies all of a batch in one call; the functions beside
the calls say in Python what it does, and do it where the extension was not built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from astrarium.core.optional import extension
from astrarium.serving.live import tensors
from astrarium.serving.live.arena import aligned, whole_shapes
from astrarium.serving.live.backends.answers import stack
from astrarium.serving.live.backends.contract import Batch
from astrarium.serving.live.messages import MEMBER_BYTES, BatchMember, Shapes, unpacked
from astrarium.serving.live.tensors import BYTES, DATATYPES, Array, Tensor, TensorSpec

# Items that are alike, copied between shared memory and arrays.


def gather_items(view: memoryview, members: bytes, sizes: Sequence[int], arrays: Sequence[Array]) -> None:
    """Copy the items of a batch into an array for each input; *sizes* are the bytes of an item of each."""
    copy = gather_one_by_one if (native := extension("_express")) is None else native.gather
    copy(view, members, sizes, arrays)


def scatter_items(view: memoryview, members: bytes, sizes: Sequence[int], arrays: Sequence[Array]) -> None:
    """Copy the items of an array for each output into the reply rooms of a batch."""
    copy = scatter_one_by_one if (native := extension("_express")) is None else native.scatter
    copy(view, members, sizes, arrays)


def gather_one_by_one(
    view: memoryview, members: bytes, sizes: Sequence[int], arrays: Sequence[Array]
) -> None:
    places = [_item_places(view, *given, sizes) for given in enumerate(unpacked(members))]
    for item, starts in enumerate(places):
        for start, size, array in zip(starts, sizes, arrays, strict=True):
            _bytes_of(array)[item * size : (item + 1) * size] = view[start : start + size]


def scatter_one_by_one(
    view: memoryview, members: bytes, sizes: Sequence[int], arrays: Sequence[Array]
) -> None:
    rooms = unpacked(members)
    _check_room(_needed(sizes), min(member.room for member in rooms))
    for place, member in enumerate(rooms):
        _check_reply(view, place, member)
    for item, member in enumerate(rooms):
        at = member.reply
        for size, array in zip(sizes, arrays, strict=True):
            view[at : at + size] = _bytes_of(array)[item * size : (item + 1) * size]
            at += aligned(size)


def _item_places(view: memoryview, place: int, member: BatchMember, sizes: Sequence[int]) -> list[int]:
    """Return where the item's tensors lie in its block, or raise an error that names the member."""
    if not 0 <= member.row < member.rows:
        raise ValueError(f"member {place}: there is no row {member.row} in a block of {member.rows}")
    starts = []
    at = member.block
    for size in sizes:
        starts.append(start := at + member.row * size)
        _check_input(view, place, member, start, size)
        at += aligned(member.rows * size)
    return starts


def _check_input(view: memoryview, place: int, member: BatchMember, at: int, size: int) -> None:
    if at < 0 or at + size > len(view):
        raise ValueError(
            f"member {place}: row {member.row} of the block at {member.block} "
            f"lies outside of the {len(view)} bytes of shared memory"
        )


def _check_reply(view: memoryview, place: int, member: BatchMember) -> None:
    if member.reply < 0 or member.reply + member.room > len(view):
        raise ValueError(
            f"member {place}: the {member.room} bytes for a reply at {member.reply} "
            f"lie outside of the {len(view)} bytes of shared memory"
        )


def _check_room(needed: int, room: int) -> None:
    if needed > room:
        raise ValueError(f"an answer needs more than the {room} bytes kept for it")


def _needed(sizes: Sequence[int]) -> int:
    return sum(map(aligned, sizes[:-1])) + sizes[-1] if sizes else 0


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


# From the outputs of a batch to the reply rooms of its members.


Items = Array | Sequence[Array]

Reply = tuple[tuple[int, ...], bytes | memoryview]  # of one item: its shape with the batch of one, its bytes


def write_replies(
    view: memoryview, specs: Sequence[TensorSpec], members: bytes, outputs: Mapping[str, Items]
) -> list[Shapes] | None:
    """Write the members' replies; return their shapes, or None where the specs say them all."""
    size = len(members) // MEMBER_BYTES
    found = [_promised(spec, outputs, size) for spec in specs]
    stacked = [array for array in found if isinstance(array, np.ndarray) and array.dtype.kind not in "OSU"]
    if len(stacked) == len(specs):
        shapes = [_write_alike(view, specs, members, stacked)] * size
    else:
        pairs = zip(specs, found, strict=True)
        columns = [[_item(spec, np.asarray(item)) for item in items] for spec, items in pairs]
        rooms = zip(unpacked(members), zip(*columns, strict=True), strict=True)
        shapes = [_write(view, member, item) for member, item in rooms]
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
        _check_room(at + len(data), member.room)
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


# From shared memory to the inputs of a batch.


def gathered(
    view: memoryview,
    specs: Sequence[TensorSpec],
    members: bytes,
    shapes: Sequence[Shapes | None] | None = None,
    staging: Mapping[str, Array] = MappingProxyType({}),
) -> Batch:
    """Return an array for each input, with the items of *members*; one of *staging* where they fit.

    *shapes* are those of each member's inputs, as in the order.
    """
    size = len(members) // MEMBER_BYTES
    applications = np.frombuffer(members, "<i8")[5::6].tolist()
    common = _common_shapes(specs, shapes)
    if common is not None and (staging or not _is_one_call(members)):
        return Batch(size, _joined_items(view, specs, members, common, staging), applications)
    named = _pieces(view, specs, unpacked(members), shapes or [None] * size)
    unequal = {name: pieces for name, pieces in named.items() if not _alike(pieces)}
    own = {name: [each.shape[1:] for each in pieces for _ in each] for name, pieces in unequal.items()}
    inputs = {name: _joined(piece, name in own) for name, piece in named.items()}
    return Batch(size, inputs, applications, own)


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
    for spec, (shape, each) in zip(specs, shapes, strict=True):
        array = staging.get(spec.name)
        if array is None or array.nbytes != size * each:
            array = np.empty((size, *shape), DATATYPES[spec.datatype])
        inputs[spec.name] = array
    gather_items(view, members, [each for _, each in shapes], list(inputs.values()))
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
            _check_input(view, place, first, at, size)
            rows = _array(view, spec, at, shape, size)
            pieces[spec.name].append(rows if first.rows == 1 else rows[first.row : first.row + length])
            at += aligned(size)
    return pieces


def _array(view: memoryview, spec: TensorSpec, at: int, shape: tuple[int, ...], size: int) -> Array:
    if spec.datatype == BYTES:
        return tensors.to_array(Tensor(spec.name, BYTES, shape, view[at : at + size]))
    return np.ndarray(shape, DATATYPES[spec.datatype], view, at)


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


def _joined(pieces: list[Array], unequal: bool) -> Array:
    if unequal:
        return stack([item for piece in pieces for item in piece])
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
