"""The arena is shared memory for tensors: one anonymous file that the frontend divides and workers map.

Nothing has a name, so nothing is left behind after a crash; only the frontend allocates, so a worker that
dies takes no block with it. Blocks are powers of two and merge with their neighbour when both are free.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence

from astrarium.core.errors import InputError
from astrarium.serving.live.messages import Shapes
from astrarium.serving.live.tensors import Tensor, TensorSpec

SMALLEST = 256  # bytes of the smallest block
ALIGNMENT = 64  # of every tensor inside a block: what vector instructions like


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class SharedMemory:
    """Shared memory is the file mapped into this process."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd, self.size = fd, size
        self._map = mmap.mmap(fd, size)
        self.view = memoryview(self._map)

    @classmethod
    def create(cls, size: int) -> SharedMemory:
        fd = os.memfd_create("astrarium-tensors", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)  # pages come into being when they are first written
        return cls(fd, size)


class Arena:
    """An arena hands out blocks of a memory; `take` answers None when there is no room."""

    def __init__(self, size: int) -> None:
        if size < SMALLEST:
            raise InputError("memory", size, f"at least {SMALLEST} bytes")
        self._top = (size // SMALLEST).bit_length() - 1  # the order of the largest block
        self.size = SMALLEST << self._top
        self._free: list[dict[int, None]] = [{} for _ in range(self._top + 1)]  # sets that keep their order
        self._free[self._top][0] = None
        self._order_of: dict[int, int] = {}  # blocks that are taken
        self.used = 0

    def take(self, size: int) -> int | None:
        """Return the offset of a block of at least *size* bytes."""
        order = max(0, (max(size, 1) - 1).bit_length() - (SMALLEST.bit_length() - 1))
        found = next((have for have in range(order, self._top + 1) if self._free[have]), None)
        if found is None:
            return None
        offset, _ = self._free[found].popitem()  # the one given back last: its pages are in the caches
        for smaller in range(found - 1, order - 1, -1):
            self._free[smaller][offset + (SMALLEST << smaller)] = None  # the upper half is not needed
        self._order_of[offset] = order
        self.used += SMALLEST << order
        return offset

    def give_back(self, offset: int) -> None:
        order = self._order_of.pop(offset)
        self.used -= SMALLEST << order
        while order < self._top:
            neighbour = offset ^ (SMALLEST << order)
            if neighbour not in self._free[order]:
                break
            del self._free[order][neighbour]
            offset, order = min(offset, neighbour), order + 1
        self._free[order][offset] = None


# How one request's tensors lie in its block of shared memory: one after the other, each aligned.


def fixed_bytes(specs: Sequence[TensorSpec]) -> int | None:
    """Return the bytes of one item of all these tensors, or None where they vary."""
    sizes = [spec.item_bytes for spec in specs]
    return None if None in sizes else sum(aligned(size or 0) for size in sizes)


def whole_shapes(specs: Sequence[TensorSpec], rows: int) -> Shapes:
    """Return shapes and bytes of tensors whose specs leave nothing open."""
    return [((rows, *spec.shape), rows * (spec.item_bytes or 0)) for spec in specs]


def block_bytes(shapes: Shapes) -> int:
    return sum(aligned(size) for _, size in shapes)


def tensors_at(
    view: memoryview, offset: int, specs: Sequence[TensorSpec], shapes: Shapes
) -> Iterator[Tensor]:
    """Yield views on the tensors that begin at *offset*."""
    for spec, (shape, size) in zip(specs, shapes, strict=True):
        yield Tensor(spec.name, spec.datatype, shape, view[offset : offset + size])
        offset += aligned(size)
