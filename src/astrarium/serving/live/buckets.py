"""Buckets are the lengths that batches are padded to; a profile says them, also one of another range.

No input is longer than the end of its range, so nothing is padded beyond that: a model may have no position
for it. Nothing is shorter than the beginning either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from astrarium.core.size_grid import SizeGrid
from astrarium.serving.live import fills
from astrarium.serving.live.backends.contract import ModelFiles
from astrarium.serving.live.ranges import Sizes
from astrarium.serving.live.tensors import TensorSpec


def buckets_of(files: ModelFiles, inputs: Sequence[TensorSpec]) -> Mapping[int, int]:
    """Return the buckets of a model with one axis, and the largest batch of each."""
    sizes = files.bucket_sizes or [files.max_batch] * len(files.buckets)
    largest = dict(zip(files.buckets, sizes, strict=True))
    (range_,) = _ranges(inputs)
    return {bucket: largest[length] for bucket, length in _within(files.buckets, range_).items()}


def shares_of(files: ModelFiles, inputs: Sequence[TensorSpec]) -> Mapping[int, float]:
    """Return how often requests are rounded up to each of these buckets; nothing where nobody knows."""
    if not files.bucket_shares:
        return {}
    shares = dict(zip(files.buckets, files.bucket_shares, strict=True))
    (range_,) = _ranges(inputs)
    return {bucket: shares[length] for bucket, length in _within(shares, range_).items()}


def buckets_by_axis(files: ModelFiles, inputs: Sequence[TensorSpec]) -> tuple[tuple[int, ...], ...]:
    """Return the buckets along each axis of a model that has sizes."""
    axes = zip(SizeGrid(files.sizes).axes, _ranges(inputs), strict=True)
    return tuple(tuple(_within(buckets, range_)) for buckets, range_ in axes)


def _within(lengths: Iterable[int], range_: Sizes | None) -> dict[int, int]:
    """Return rising lengths with an end within the range, and of each the length that it stands for."""
    kept: dict[int, int] = {}
    for length in lengths:
        if range_ is None or length >= range_[0]:
            kept.setdefault(length if range_ is None else min(length, range_[1]), length)
    return kept


def _ranges(inputs: Sequence[TensorSpec]) -> list[Sizes | None]:
    known = {spec.name: spec for spec in inputs}
    return [known[name].sizes_of(place) for (name, place), *_ in fills.axes_of(inputs)]
