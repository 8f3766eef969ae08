"""Items that are alike are copied between shared memory and arrays, all of a batch in one call.

Native code, if there is any, does it; the functions beside the calls say in Python what it does, and do it
where the extension was not built.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrarium.core.optional import extension
from astrarium.serving.live.layout import aligned
from astrarium.serving.live.messages import BatchMember, unpacked
from astrarium.serving.live.tensors import Array


def gather_items(view: memoryview, members: bytes, sizes: Sequence[int], arrays: Sequence[Array]) -> None:
    """Copy the items of a batch into an array for each input; *sizes* are the bytes of an item of each."""
    copy = gather_one_by_one if (native := extension("_tensors")) is None else native.gather
    copy(view, members, sizes, arrays)


def scatter_items(view: memoryview, members: bytes, sizes: Sequence[int], arrays: Sequence[Array]) -> None:
    """Copy the items of an array for each output into the reply buffers of a batch."""
    copy = scatter_one_by_one if (native := extension("_tensors")) is None else native.scatter
    copy(view, members, sizes, arrays)


def gather_one_by_one(
    view: memoryview, members: bytes, sizes: Sequence[int], arrays: Sequence[Array]
) -> None:
    places = [_item_places(view, *member, sizes) for member in enumerate(unpacked(members))]
    for item, starts in enumerate(places):
        for start, size, array in zip(starts, sizes, arrays, strict=True):
            _bytes_of(array)[item * size : (item + 1) * size] = view[start : start + size]


def scatter_one_by_one(
    view: memoryview, members: bytes, sizes: Sequence[int], arrays: Sequence[Array]
) -> None:
    replies = unpacked(members)
    check_reply_size(_needed(sizes), min(member.reply_bytes for member in replies))
    for place, member in enumerate(replies):
        _check_reply(view, place, member)
    for item, member in enumerate(replies):
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
        check_input(view, place, member, start, size)
        at += aligned(member.rows * size)
    return starts


def check_input(view: memoryview, place: int, member: BatchMember, at: int, size: int) -> None:
    if at < 0 or at + size > len(view):
        raise ValueError(
            f"member {place}: row {member.row} of the block at {member.block} "
            f"lies outside of the {len(view)} bytes of shared memory"
        )


def _check_reply(view: memoryview, place: int, member: BatchMember) -> None:
    if member.reply < 0 or member.reply + member.reply_bytes > len(view):
        raise ValueError(
            f"member {place}: the {member.reply_bytes} bytes for a reply at {member.reply} "
            f"lie outside of the {len(view)} bytes of shared memory"
        )


def check_reply_size(needed: int, kept: int) -> None:
    if needed > kept:
        raise ValueError(f"an answer needs more than the {kept} bytes kept for it")


def _needed(sizes: Sequence[int]) -> int:
    return sum(map(aligned, sizes[:-1])) + sizes[-1] if sizes else 0


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
