"""Examples are made-up inputs, for warming up and for measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from astrarium.serving.live import fills, limits, packing
from astrarium.serving.live.backends import batches
from astrarium.serving.live.backends.contract import Batch, Exemplary, LoadedModel
from astrarium.serving.live.ranges import is_real
from astrarium.serving.live.tensors import BF16, BYTES, DATATYPES, Array, TensorSpec, to_bfloat16

NEAR = 3.0  # where nearly all normal numbers are
_WORDS = (b"the quick brown fox", b"jumps over", b"the lazy dog")


def sizes(largest: int, graphs: Sequence[int] = ()) -> list[int]:
    """Return the sizes 1, 2, 3, 4, 6, 8, 12, ...: close enough for straight lines between them.

    *graphs* are the sizes of CUDA graphs: a batch takes as long as the largest one that fits in its graph,
    and one more as long as the next graph.
    """
    powers = [1 << power for power in range(largest.bit_length())]
    between = [power * 3 // 2 for power in powers]
    candidates = {*powers, *between, *graphs, *(graph + 1 for graph in graphs), largest}
    return sorted(size for size in candidates if size <= largest)


def inputs_of(model: LoadedModel) -> tuple[TensorSpec, ...]:
    """Return a loaded model's inputs as they should be made up."""
    return model.example_inputs if isinstance(model, Exemplary) else model.inputs


def batch(specs: Sequence[TensorSpec], size: int, generator: np.random.Generator) -> Batch:
    """Return a made-up batch; what the server fills is as it would be."""
    return batches.alike(specs, {spec.name: tensor(spec, size, generator) for spec in fills.sent(specs)})


def packed(specs: Sequence[TensorSpec], size: int, total: int, generator: np.random.Generator) -> Batch:
    """Return a made-up packed batch of so many items that are so long in *total*, as unequal as may be."""
    sizes = next(spec.sizes_of(0) for spec in specs if spec.packed) or (1, _LONGEST)
    lengths = _unequal(packing.even_lengths(max(total, size * sizes[0]), size), sizes)
    items = {spec.name: _packed_items(spec, lengths, generator) for spec in fills.sent(specs)}
    return batches.packed(specs, items)


def _packed_items(spec: TensorSpec, lengths: Sequence[int], generator: np.random.Generator) -> list[Array]:
    """Return made-up items: what is drawn for the longest goes on again and again."""
    if not spec.packed:
        return list(np.resize(tensor(spec, 1, generator), (len(lengths), *spec.shape)))
    fixed = spec.shape[1:]
    drawn = tensor(replace(spec, shape=(max(lengths), *fixed)), 1, generator)
    return packing.split(np.resize(drawn, (sum(lengths), *fixed)), lengths)


def _unequal(lengths: Sequence[int], sizes: tuple[int, int]) -> list[int]:
    """Return lengths of the same sum, of which every other one has what it can have of the one before."""
    unequal = list(lengths)
    for place in range(1, len(unequal), 2):
        more = min(unequal[place - 1] - sizes[0], sizes[1] - unequal[place])
        unequal[place - 1] -= more
        unequal[place] += more
    return unequal


Choose = Callable[[int, int], int]  # a length, from the lowest and the highest that there may be
_LONGEST = 1 << 30  # where no range says what the highest is


def nearest(length: int) -> Choose:
    return lambda low, high: min(max(low, length), high)


def with_lengths(specs: Sequence[TensorSpec], choose: Choose) -> list[TensorSpec]:
    """Return the inputs with a fixed length for every open dimension."""
    return [spec if spec.fill else replace(spec, shape=shape_of(spec, choose)) for spec in specs]


def shape_of(spec: TensorSpec, choose: Choose) -> tuple[int, ...]:
    """Return the shape of an item with a length for every open dimension."""
    ranges = [spec.sizes_of(place) or (1, _LONGEST) for place in range(len(spec.shape))]
    return tuple(
        choose(*range_) if size < 0 else size for size, range_ in zip(spec.shape, ranges, strict=True)
    )


def tensor(spec: TensorSpec, size: int, generator: np.random.Generator, near: float = NEAR) -> Array:
    """Return a made-up tensor: normal numbers for floating types, 0 and 1 for whole ones, words for BYTES.

    0 and 1 are valid wherever they stand for a class or a token; an input that says its `values` gets any of
    them, a floating one those that are *near* to 0. An open dimension has one element, or as few as its range
    allows.
    """
    shape = size, *shape_of(spec, min)
    if spec.values is not None:
        return _within(spec, shape, generator, near)
    if spec.datatype == BYTES:
        words = np.array(_WORDS, np.object_)
        return words[generator.integers(len(_WORDS), size=shape)]
    if spec.datatype == BF16:
        return to_bfloat16(generator.standard_normal(shape))
    kind = DATATYPES[spec.datatype]
    if kind.kind == "f":
        return generator.standard_normal(shape).astype(kind)
    return generator.integers(2, size=shape).astype(kind)


def reach(spec: TensorSpec, near: float) -> tuple[float, float]:
    """Return the lowest and the highest number of an input *near* to 0, or to what comes next to 0."""
    low, high = map(float, limits.bounds(spec))
    nearest_to_zero = min(max(0.0, low), high)
    return max(low, nearest_to_zero - near), min(high, nearest_to_zero + near)


def _within(spec: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator, near: float) -> Array:
    """Return numbers of the whole range of a whole type, and of a floating one those that are near to 0."""
    low, high = limits.bounds(spec)
    if not is_real(spec.datatype):
        return generator.integers(low, high, shape, DATATYPES[spec.datatype], endpoint=True)
    values = np.clip(generator.uniform(*reach(spec, near), shape).astype(low.dtype), low, high)
    return to_bfloat16(values) if spec.datatype == BF16 else values
