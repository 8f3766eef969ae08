"""Batches are padded to the buckets of a profile, as far as the range of the input goes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from astrarium.core.errors import InputError
from astrarium.serving.live.backends.contract import ModelFiles
from astrarium.serving.live.buckets import buckets_by_axis, buckets_of
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker.models import _buckets

MODEL: Any = SimpleNamespace()
TOKENS = TensorSpec("TOKENS", "INT64", (-1,), ranges=((10, 500),))
IMAGE = TensorSpec("IMAGE", "FP32", (3, -1, -1), ranges=(None, (64, 500), (100, 300)))


def files(**given: Any) -> ModelFiles:
    return ModelFiles("m", "onnx", max_batch=8, **given)


@pytest.mark.parametrize(
    ("given", "within"),
    [
        ((16, 64, 96, 512), {16: 8, 64: 8, 96: 8, 500: 8}),
        ((4, 16, 600, 700), {16: 8, 500: 8}),
        ((10, 500), {10: 8, 500: 8}),
        ((4, 8), {}),
    ],
)
def test_a_bucket_beyond_the_range_is_its_end_and_none_is_below_it(
    given: tuple[int, ...], within: dict[int, int]
) -> None:
    made = files(buckets=given)
    assert buckets_of(made, [TOKENS]) == within
    assert _buckets(MODEL, made, [TOKENS]) == ((tuple(within),) if within else ())


def test_without_a_range_buckets_are_as_they_were_measured() -> None:
    made = files(buckets=(16, 512), bucket_sizes=(8, 2))
    assert buckets_of(made, [TensorSpec("TOKENS", "INT64", (-1,))]) == {16: 8, 512: 2}


def test_each_axis_has_its_own_range() -> None:
    sizes = tuple((high, wide) for high in (32, 64, 256, 512) for wide in (64, 128, 512))
    assert buckets_by_axis(files(sizes=sizes), [IMAGE]) == ((64, 256, 500), (128, 300))
    assert _buckets(MODEL, files(sizes=sizes), [IMAGE]) == ((64, 256, 500), (128, 300))


def test_lengths_are_refused_where_items_have_several() -> None:
    with pytest.raises(InputError, match="sizes such as 64x64, along dimension 1 of IMAGE and dimension 2"):
        _buckets(MODEL, files(buckets=(16, 64)), [IMAGE])
