"""Distributions of lengths: draws are whole, at least one, and cut off at what a model takes."""

from __future__ import annotations

import numpy as np
import pytest

from astrarium.core.errors import InputError
from astrarium.core.lengths import (
    LENGTH_DISTRIBUTIONS,
    ConstantLength,
    LengthDistribution,
    LogNormalLength,
    SampledLength,
    UniformLength,
    WeightedLength,
)
from astrarium.core.streams import stream

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
