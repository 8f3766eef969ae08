"""Distributions of lengths: draws are whole, at least one, and cut off at what a model takes."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.errors import InputError
from astrarium.core.lengths import (
    LENGTH_DISTRIBUTIONS,
    ConstantLength,
    LengthDistribution,
    LogNormalLength,
    SampledLength,
    UniformLength,
    WeightedLength,
    least_padded,
)
from astrarium.core.random_streams import stream

ALL: list[LengthDistribution] = [
    ConstantLength(7),
    UniformLength(2, 9),
    LogNormalLength(20.0, 1.2),
    WeightedLength({4: 1.0, 100: 3.0}),
    SampledLength((5, 5, 80)),
]
every = pytest.mark.parametrize("distribution", ALL, ids=lambda each: each.form)


def draws(distribution: LengthDistribution, longest: int = 512) -> np.ndarray:
    return distribution.sample(stream(7, "test"), 20_000, longest)


@every
def test_draws_are_whole_and_fit_the_model(distribution: LengthDistribution) -> None:
    lengths = draws(distribution, 64)
    assert lengths.dtype == np.int32
    assert lengths.min() >= 1
    assert lengths.max() <= 64


@every
def test_the_same_seed_draws_the_same(distribution: LengthDistribution) -> None:
    assert (draws(distribution) == draws(distribution)).all()


def test_each_draws_what_it_says() -> None:
    assert set(draws(ConstantLength(7))) == {7}
    assert set(draws(UniformLength(2, 9))) == set(range(2, 10))
    assert (draws(WeightedLength({4: 1.0, 100: 3.0})) == 100).mean() == pytest.approx(0.75, abs=0.02)
    assert (draws(SampledLength((5, 5, 80))) == 5).mean() == pytest.approx(2 / 3, abs=0.02)
    assert np.median(draws(LogNormalLength(20.0, 1.2))) == pytest.approx(20, abs=1)


def test_a_weight_of_nothing_is_never_drawn() -> None:
    assert set(draws(WeightedLength({4: 0.0, 9: 1.0}))) == {9}


def test_the_largest_is_known_where_it_is_stated() -> None:
    assert [one.largest for one in ALL] == [7, 9, 0, 100, 80]


def test_every_form_can_be_asked_for_by_its_name() -> None:
    assert {type(one) for one in ALL} == set(LENGTH_DISTRIBUTIONS.values())
    assert all(LENGTH_DISTRIBUTIONS[one.form] is type(one) for one in ALL)


@pytest.mark.parametrize(
    ("make", "right"),
    [
        (lambda: UniformLength(9, 2), "at most 2"),
        (lambda: WeightedLength({}), "at least one above 0"),
        (lambda: WeightedLength({4: 0.0}), "at least one above 0"),
        (lambda: SampledLength(()), "at least one length"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make: type, right: str) -> None:
    with pytest.raises(InputError, match=right):
        make()


def rounded(lengths: list[int], up_to: list[int]) -> int:
    return sum(next(one for one in up_to if one >= length) for length in lengths)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(1, 4))
def test_no_other_lengths_pad_less(lengths: list[int], count: int) -> None:
    found = least_padded(lengths, 40, count)
    others = (
        sorted({*some, 40}) for some in combinations(sorted(set(lengths)), min(count - 1, len(set(lengths))))
    )
    assert len(found) <= count
    assert found == sorted(set(found))
    assert found[-1] == 40
    assert rounded(lengths, found) == min(rounded(lengths, other) for other in others)


def test_few_lengths_are_those_that_occur() -> None:
    assert least_padded([137, 201, 137], 512, 3) == [137, 201, 512]
    assert least_padded([600, 9], 512, 2) == [9, 512]


def test_of_many_lengths_those_are_compared_that_gpus_like() -> None:
    lengths = list(range(1, 5000))
    found = least_padded(lengths, 5000, 12)
    assert len(found) == 12
    assert all(length % 8 == 0 for length in found if length > 64)
    assert rounded(lengths, found) < sum(lengths) / 0.92
