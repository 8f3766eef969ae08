"""How one request's tensors lie in its block of shared memory: one after the other, each aligned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astrarium.engines.arena import aligned
from astrarium.engines.orders import Shapes
from astrarium.engines.tensors import Tensor, TensorSpec


def fixed_bytes(specs: Sequence[TensorSpec]) -> int | None:
    """What one item of all these tensors takes, or None where it varies."""
    sizes = [spec.item_bytes for spec in specs]
    return None if None in sizes else sum(aligned(size or 0) for size in sizes)


def whole_shapes(specs: Sequence[TensorSpec], rows: int) -> Shapes:
    """Shapes and bytes of tensors whose specs leave nothing open."""
    return [((rows, *spec.shape), rows * (spec.item_bytes or 0)) for spec in specs]


def block_bytes(shapes: Shapes) -> int:
    return sum(aligned(size) for _, size in shapes)


def tensors_at(
    view: memoryview, offset: int, specs: Sequence[TensorSpec], shapes: Shapes
) -> Iterator[Tensor]:
    """Views on the tensors that begin at *offset*."""
    for spec, (shape, size) in zip(specs, shapes, strict=True):
        yield Tensor(spec.name, spec.datatype, shape, view[offset : offset + size])
        offset += aligned(size)
