"""Batches are made of items: stacked, or one after another for a model that takes them packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from astrarium.serving.live import fills, limits, packing
from astrarium.serving.live.backends.contract import Batch
from astrarium.serving.live.backends.stacking import stack
from astrarium.serving.live.tensors import DATATYPES, Array, TensorSpec


def alike(
    specs: Sequence[TensorSpec], stacked: Mapping[str, Array], applications: Sequence[int] = ()
) -> Batch:
    """Return a batch of items of one shape, which are stacked already."""
    size = len(next(iter(stacked.values())))
    lengths = [int(stacked[spec.name].shape[1]) for spec in specs if spec.packed][:1] * size
    return Batch(size, fills.complete(specs, stacked), applications, lengths=lengths)


def length_of(specs: Sequence[TensorSpec], batch: Batch) -> int:
    """Return how long the items of a batch are, in total where they are packed; 0 where nobody can say."""
    return sum(batch.lengths) or fills.length_of(specs, batch.inputs)


def packed(
    specs: Sequence[TensorSpec],
    items: Mapping[str, Sequence[Array]],
    applications: Sequence[int] = (),
    rest: Sequence[int] = (),
) -> Batch:
    """Return a batch of items of any length, for a model whose open inputs are packed.

    The *rest* are the lengths of items behind them, which are nobody's.
    """
    whole = {spec.name: [*items[spec.name], *behind(spec, rest)] for spec in fills.sent(specs)}
    own = {name: [item.shape for item in column] for name, column in whole.items()}
    join: dict[str, Callable[[Sequence[Array]], Array]] = {
        spec.name: packing.joined if spec.packed else stack for spec in specs
    }
    inputs = fills.filled(specs, {name: join[name](column) for name, column in whole.items()}, own)
    first = next(spec.name for spec in specs if spec.packed)
    lengths = [len(item) for item in items[first]]
    return Batch(len(lengths), inputs, applications, lengths=lengths, rest=rest)


def behind(spec: TensorSpec, lengths: Sequence[int]) -> list[Array]:
    """Return an input of items of these lengths that are nobody's: what others would be padded with."""
    element = limits.padding_element(spec) if lengths else None
    shapes = [(length, *spec.shape[1:]) if spec.packed else spec.shape for length in lengths]
    return [np.full(shape, element, DATATYPES[spec.datatype]) for shape in shapes]
