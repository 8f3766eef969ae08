"""Distributions and profiles: what they promise is what their draws do."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.distributions import (
    Constant,
    Distribution,
    Histogram,
    LogNormal,
    Mixture,
    Mode,
    Modes,
    Normal,
    Samples,
    mean_of_maximum,
)
from astrarium.core.errors import InputError
from astrarium.core.profiles import Application, Dynamic, Linear, Table
from astrarium.core.streams import stream
from astrarium.core.units import MILLISECOND as MS

ALL: list[Distribution] = [
    Constant(10 * MS),
    Normal(10 * MS, 2 * MS),
    LogNormal(10 * MS, 0.5),
    Modes((Mode(5 * MS, 1 * MS, 0.7), Mode(20 * MS, 3 * MS, 0.3))),
    Histogram((1 * MS, 2 * MS, 5 * MS, 9 * MS), (10.0, 0.0, 30.0)),
    Samples((1 * MS, 2 * MS, 2 * MS, 7 * MS)),
    Mixture((Constant(3 * MS), Normal(10 * MS, 1 * MS)), (1.0, 3.0)),
]
every = pytest.mark.parametrize("distribution", ALL, ids=lambda each: type(each).__name__)


def draws(distribution: Distribution, count: int = 40_000) -> np.ndarray:
    return distribution.sample(stream(7, "test"), count)


@every
def test_draws_follow_the_cdf(distribution: Distribution) -> None:
    times = draws(distribution)
    assert times.dtype == np.int64
    assert times.min() >= 1
    for chance in (0.1, 0.37, 0.5, 0.9, 0.99):
        at = distribution.quantile(chance)
        assert (times <= at).mean() == pytest.approx(distribution.cdf(at), abs=0.01)


@every
@given(chance=st.floats(0.0001, 0.9999))
def test_the_quantile_is_the_first_time_that_reaches_the_chance(
    distribution: Distribution, chance: float
) -> None:
    at = distribution.quantile(chance)
    assert distribution.cdf(at) >= chance
    assert at == 1 or distribution.cdf(at - 1) < chance


@every
@pytest.mark.parametrize("count", [1, 4])
def test_the_maximum_of_several_draws(distribution: Distribution, count: int) -> None:
    largest = draws(distribution).reshape(-1, count).max(axis=1)
    assert mean_of_maximum(distribution.grid(), count) == pytest.approx(largest.mean(), rel=0.02)
    at = distribution.quantile_of_maximum(count, 0.9)
    assert (largest <= at).mean() >= 0.9 - 0.02
    assert (largest < at).mean() <= 0.9 + 0.02


def test_known_quantiles() -> None:
    assert Normal(10 * MS, 2 * MS).quantile(0.99) == pytest.approx(14.6527 * MS, rel=1e-5)
    assert LogNormal(10 * MS, 0.5).quantile(0.5) == pytest.approx(10 * MS, abs=1)
    assert Histogram((0, 10 * MS), (3.0,)).quantile(0.25) == 2_500_000


def test_draws_repeat_and_start_alike() -> None:
    long, short = draws(LogNormal(10 * MS, 0.5), 100), draws(LogNormal(10 * MS, 0.5), 40)
    assert (long[:40] == short).all()


def test_a_linear_profile() -> None:
    assert list(islice(Linear(2 * MS, 5 * MS).batch_times(), 3)) == [7 * MS, 9 * MS, 11 * MS]


def test_a_table_is_straight_between_its_points_and_ends_with_them() -> None:
    assert list(Table({1: 4 * MS, 3: 6 * MS, 4: 10 * MS}).batch_times()) == [4 * MS, 5 * MS, 6 * MS, 10 * MS]


@pytest.mark.parametrize("points", [{}, {2: 4 * MS}, {1: 4 * MS, 2: 3 * MS}, {1: 0}, {2: 5 * MS, 1: 4 * MS}])
def test_tables_that_are_none(points: dict[int, int]) -> None:
    with pytest.raises(InputError):
        Table(points)


def test_a_batch_takes_as_long_as_its_longest_request() -> None:
    profile = Dynamic({"only": Application(Constant(10 * MS))}, c0=2 * MS, c1=0.5)
    assert list(islice(profile.batch_times(), 3)) == [7 * MS, 12 * MS, 17 * MS]


def test_the_mean_request_knows_nothing_of_the_longest() -> None:
    applications = {"short": Application(Constant(10 * MS)), "long": Application(Constant(30 * MS))}
    profile = Dynamic(applications, c0=2 * MS, c1=0.5, estimate="mean_request")
    times = list(islice(profile.batch_times(), 3))
    assert times == pytest.approx([12 * MS, 22 * MS, 32 * MS], rel=1e-3)


@pytest.mark.parametrize("estimate", ["p99", "p50", "mean"])
def test_dynamic_estimates_match_simulated_batches(estimate: str) -> None:
    applications = {
        "short": Application(Normal(5 * MS, 1 * MS), 0.75),
        "long": Application(LogNormal(12 * MS, 0.3), 0.25),
    }
    profile = Dynamic(applications, estimate=estimate)
    longest = draws(profile.mixture(), 90_000).reshape(-1, 3).max(axis=1) * 3
    measure = {"p99": lambda x: np.quantile(x, 0.99), "p50": np.median, "mean": np.mean}[estimate]
    assert list(islice(profile.batch_times(), 3))[2] == pytest.approx(measure(longest), rel=0.02)
