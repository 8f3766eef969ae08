"""A view of a memory pool is read from a snapshot of PyTorch's allocator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class PoolBlock(NamedTuple):
    address: int
    size: int
    where: str = ""


class PoolView(NamedTuple):
    """A view of a pool shows what it has of the device, and the blocks that are in use."""

    reserved: int
    blocks: list[PoolBlock]


def viewed(segments: Iterable[Mapping[str, Any]]) -> PoolView:
    """Read a view from a snapshot of PyTorch's allocator."""
    segments = list(segments)
    used = [
        PoolBlock(block["address"], block["size"], _where(block.get("frames", ())))
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    return PoolView(sum(segment["total_size"] for segment in segments), used)


def _where(frames: Iterable[Mapping[str, Any]]) -> str:
    """Return the innermost line of Python that is not PyTorch's own."""
    for frame in frames:
        if frame["filename"].endswith(".py") and "/torch/" not in frame["filename"]:
            return f"{frame['filename']}:{frame['line']}"
    return ""
