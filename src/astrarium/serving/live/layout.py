"""The tensors of one request lie in its block of shared memory one after the other, each aligned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astrarium.serving.live.messages import Shapes
from astrarium.serving.live.tensors import Tensor, TensorSpec

ALIGNMENT = 64  # of every tensor inside a block: what vector instructions like


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


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
