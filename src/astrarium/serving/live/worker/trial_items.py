"""The items of a trial are made up: of several lengths, and of numbers near 0 and far from it.

Numbers near 0 look like padding to a model that takes pixels of 0 to 255: such inputs get numbers from
anywhere in their range, too, and from the end that is farthest from padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from astrarium.serving.live import fills
from astrarium.serving.live.backends import examples
from astrarium.serving.live.ranges import RANGES, is_real
from astrarium.serving.live.tensors import Array, TensorSpec

Item = Mapping[str, Array]
# How much longer than the shortest: small ones, since this is part of every load. Where nothing says that a
# model takes longer ones, they must not reach the end of a table of positions: on a GPU that would break it.
_STEPS = 0, 2, 7, 64
_HARMLESS = 8
_LONGEST = 4096
_MOST_ELEMENTS = 1 << 20  # of the longest item: as many as an image of 3 x 512 x 512 has
_MOST_ANSWERED = 1 << 23  # elements of its answer: 256 tokens with a number for each of 30,000 words
# Numbers farther away than this may be sums that overflow, and are hardly what clients send.
_FAR = 65536.0
_SMALL_TYPES = "UINT8", "INT8"


class Numbers(NamedTuple):
    """Numbers are what a trial makes up for its inputs: up to *near* to 0 where they have fractions.

    *wide* ones may be more than a model bears; where they are *long*, one item is as long as may be.
    """

    specs: Sequence[TensorSpec]
    near: float = examples.NEAR
    wide: bool = False
    long: bool = False


def numbers(specs: Sequence[TensorSpec], careful: bool) -> Iterator[Numbers]:
    """Yield the inputs with numbers of several sizes; a *careful* trial has none that might break a GPU."""
    yield Numbers(specs, long=True)
    for low, high in ((-3, -1), (1, 3)):  # zeros behind such numbers are the largest, or the smallest
        yield Numbers([_limited(spec, low, high, careful) for spec in specs])
    whole = [_whole(spec, careful) for spec in specs]
    if any(map(_is_wider, whole, specs)):
        yield Numbers(whole, _FAR, wide=True, long=True)
    if any(spec.values is not None for spec in whole):
        yield Numbers([_far(spec) for spec in whole], _FAR, wide=True)


def items(
    chosen: Numbers,
    axes: Sequence[Sequence[fills.Axis]],
    longest: Sequence[int] | None,
    chance: np.random.Generator,
) -> Iterator[Item]:
    """Yield made-up items of different lengths, from short to long along the first axis.

    Where they are long, one of the *longest* lengths along all axes is behind them.
    """
    sent = fills.sent(chosen.specs)
    known = {spec.name: spec for spec in sent}
    lengths = [_lengths(known[axis[0][0]], axis[0][1]) for axis in axes]
    for place in range(max(map(len, lengths))):
        # On further axes others are the longest.
        own = [one[(place + number) % len(one)] for number, one in enumerate(lengths)]
        yield {spec.name: one(spec, chance, chosen.near) for spec in fills.sized(sent, own)}
    if chosen.long and longest is not None:
        yield {spec.name: one(spec, chance, chosen.near) for spec in fills.sized(sent, longest)}


def like(item: Item, chosen: Numbers, chance: np.random.Generator) -> Item:
    """Return other numbers of the same lengths."""
    sent = fills.sent(chosen.specs)
    sized = [replace(spec, shape=item[spec.name].shape) for spec in sent]
    return {spec.name: one(spec, chance, chosen.near) for spec in sized}


def one(spec: TensorSpec, chance: np.random.Generator, near: float) -> Array:
    """Return a made-up input of one item."""
    return examples.tensor(spec, 1, chance, near)[0, ...]


def _limited(spec: TensorSpec, low: int, high: int, careful: bool) -> TensorSpec:
    """Return an input that takes numbers from *low* to *high*, where it takes any of them.

    A *careful* trial has no whole numbers but 0 and 1 where nothing says that the input takes others.
    """
    if spec.datatype not in RANGES:
        return spec
    least, most = spec.values or RANGES[spec.datatype]
    if careful and spec.values is None and not is_real(spec.datatype):
        least, most = 0, 1
    values = max(low, least), min(high, most)
    return replace(spec, values=values) if values[0] <= values[1] else spec


def _whole(spec: TensorSpec, careful: bool) -> TensorSpec:
    """Return an input with the range that it states, or with that of its type where this is 8 bits."""
    if spec.values is not None or spec.datatype not in _SMALL_TYPES:
        return spec
    return spec if careful and not _is_image(spec) else replace(spec, values=RANGES[spec.datatype])


def _is_image(spec: TensorSpec) -> bool:
    """Whether an item looks like pixels of several channels: hardly anybody indexes an embedding with it."""
    return len(spec.shape) > 2 and max(spec.shape) > 1


def _is_wider(whole: TensorSpec, spec: TensorSpec) -> bool:
    """Whether the range has numbers that nobody makes up near 0."""
    if whole.values is None or not is_real(whole.datatype):
        return whole != spec
    return examples.reach(whole, _FAR) != examples.reach(whole, examples.NEAR)


def _far(spec: TensorSpec) -> TensorSpec:
    """Return an input that takes the quarter of its range that is farthest from padding."""
    if spec.values is None:
        return spec
    low, high = examples.reach(spec, _FAR) if is_real(spec.datatype) else spec.values
    quarter = (high - low) / 4 if is_real(spec.datatype) else (int(high) - int(low)) // 4
    padding = min(max(0, low), high)
    return replace(
        spec, values=(high - quarter, high) if high - padding >= padding - low else (low, low + quarter)
    )


def _lengths(spec: TensorSpec, dimension: int) -> list[int]:
    low, high = spec.sizes_of(dimension) or (1, _HARMLESS)
    return sorted({min(low + step, high) for step in _STEPS})


def longest_lengths(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], buckets: Sequence[Sequence[int]]
) -> list[int] | None:
    """Return the lengths of the longest item that is tried, or None where the others are as long."""
    sent = fills.sent(inputs)
    known = {spec.name: spec for spec in sent}
    axes = [(known[axis[0][0]], axis[0][1]) for axis in fills.axes_of(sent)]
    others = [max(_lengths(*axis)) for axis in axes]
    ends = [_end(*axis, buckets[number] if buckets else ()) for number, axis in enumerate(axes)]
    lengths = [max(other, min(end, _LONGEST)) for other, end in zip(others, ends, strict=True)]
    while lengths != others and _are_many(sent, outputs, lengths):
        lengths = [max(other, length // 2) for other, length in zip(others, lengths, strict=True)]
    return lengths if lengths != others else None


def _end(spec: TensorSpec, dimension: int, buckets: Sequence[int]) -> int:
    """Return the longest that an item may be, as its range says, or else the lengths it is padded to."""
    return (spec.sizes_of(dimension) or (1, buckets[-1] if buckets else 1))[1]


def _are_many(sent: Sequence[TensorSpec], outputs: Sequence[TensorSpec], lengths: Sequence[int]) -> bool:
    """Whether an item of these lengths has too many elements, or its answer."""
    taken = sum(prod(spec.shape) for spec in fills.sized(sent, lengths))
    answered = sum(prod(_answered(spec, max(lengths))) for spec in outputs)
    return taken > _MOST_ELEMENTS or answered > _MOST_ANSWERED


def _answered(spec: TensorSpec, length: int) -> list[int]:
    return [length if size < 0 else size for size in spec.shape]
