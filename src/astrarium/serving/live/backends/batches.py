"""Batches are made of items: stacked, or one after another for a model that takes them packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from astrarium.serving.live import fills, packing
from astrarium.serving.live.backends.contract import Batch
from astrarium.serving.live.backends.stacking import stack
from astrarium.serving.live.tensors import Array, TensorSpec


def alike(
    specs: Sequence[TensorSpec], stacked: Mapping[str, Array], applications: Sequence[int] = ()
) -> Batch:
    """Return a batch of items of one shape, which are stacked already."""
    size = len(next(iter(stacked.values())))
    lengths = [int(stacked[spec.name].shape[1]) for spec in specs if spec.packed][:1] * size
    return Batch(size, fills.complete(specs, stacked), applications, lengths=lengths)


def packed(
    specs: Sequence[TensorSpec], items: Mapping[str, Sequence[Array]], applications: Sequence[int] = ()
) -> Batch:
    """Return a batch of items of any length, for a model whose open inputs are packed."""
    own = {name: [item.shape for item in column] for name, column in items.items()}
    join: dict[str, Callable[[Sequence[Array]], Array]] = {
        spec.name: packing.joined if spec.packed else stack for spec in specs
    }
    inputs = fills.filled(specs, {name: join[name](column) for name, column in items.items()}, own)
    first = next(spec.name for spec in specs if spec.packed)
    lengths = [shape[0] for shape in own[first]]
    return Batch(len(lengths), inputs, applications, lengths=lengths)
