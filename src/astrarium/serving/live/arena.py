"""The arena is shared memory for tensors: one anonymous file that the frontend divides and workers map.

Nothing has a name, so nothing is left behind after a crash; only the frontend allocates, natively
(native/exchange/arena.h), so a worker that dies takes no block with it.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterator, Sequence

from astrarium.serving.live.messages import Shapes
from astrarium.serving.live.tensors import Tensor, TensorSpec

ALIGNMENT = 64  # of every tensor inside a block: what vector instructions like


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class SharedMemory:
    """Shared memory is the file mapped into this process."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._map = mmap.mmap(fd, size)
        self.view = memoryview(self._map)

    @classmethod
    def create(cls, size: int) -> SharedMemory:
        fd = os.memfd_create("astrarium-tensors", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)  # pages come into being when they are first written
        memory = cls(fd, size)
        weakref.finalize(memory, os.close, fd)  # who has mapped it keeps it; the number is for others
        return memory


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
