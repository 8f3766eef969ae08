"""Examples are made-up inputs, for warming up and for measuring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrarium.serving.live.backends.contract import Batch
from astrarium.serving.live.tensors import BF16, BYTES, DATATYPES, Array, TensorSpec, to_bfloat16

_WORDS = (b"the quick brown fox", b"jumps over", b"the lazy dog")


def sizes(largest: int, rooms: Sequence[int] = ()) -> list[int]:
    """Return the sizes 1, 2, 3, 4, 6, 8, 12, ...: close enough for straight lines between them.

    A batch takes as long as the largest one that fits in its *room*: one more takes as long as the next room.
    """
    powers = [1 << power for power in range(largest.bit_length())]
    found = {*powers, *(power * 3 // 2 for power in powers), *rooms, *(room + 1 for room in rooms), largest}
    return sorted(size for size in found if size <= largest)


def batch(specs: Sequence[TensorSpec], size: int, generator: np.random.Generator) -> Batch:
    return Batch(size, {spec.name: tensor(spec, size, generator) for spec in specs})


def tensor(spec: TensorSpec, size: int, generator: np.random.Generator) -> Array:
    """Return a made-up tensor: normal numbers for floating types, 0 and 1 for whole ones, words for BYTES.

    0 and 1 are valid wherever they stand for a class or a token. An open dimension has one element.
    """
    shape = (size, *(1 if length < 0 else length for length in spec.shape))
    if spec.datatype == BYTES:
        words = np.array(_WORDS, np.object_)
        return words[generator.integers(len(_WORDS), size=shape)]
    if spec.datatype == BF16:
        return to_bfloat16(generator.standard_normal(shape))
    kind = DATATYPES[spec.datatype]
    if kind.kind == "f":
        return generator.standard_normal(shape).astype(kind)
    return generator.integers(2, size=shape).astype(kind)
