"""Distributions and profiles: what they promise is what their draws do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

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
from astrarium.core.profiles import Application, Dynamic, Estimate, Linear, Table
from astrarium.core.quantities import MILLISECOND as MS
from astrarium.core.quantities import Duration
from astrarium.core.random_streams import stream


def ms(count: int) -> Duration:
    return Duration(count * MS)


ALL: list[Distribution] = [
    Constant(ms(10)),
    Normal(ms(10), ms(2)),
    LogNormal(ms(10), 0.5),
    Modes((Mode(ms(5), ms(1), 0.7), Mode(ms(20), ms(3), 0.3))),
    Histogram((ms(1), ms(2), ms(5), ms(9)), (10.0, 0.0, 30.0)),
    Samples((ms(1), ms(2), ms(2), ms(7))),
    Mixture((Constant(ms(3)), Normal(ms(10), ms(1))), (1.0, 3.0)),
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
    assert Normal(ms(10), ms(2)).quantile(0.99) == pytest.approx(14.6527 * MS, rel=1e-5)
    assert LogNormal(ms(10), 0.5).quantile(0.5) == pytest.approx(10 * MS, abs=1)
    assert Histogram((ms(0), ms(10)), (3.0,)).quantile(0.25) == 2_500_000


def test_draws_repeat_and_start_alike() -> None:
    long = draws(LogNormal(ms(10), 0.5), 100)
    short = draws(LogNormal(ms(10), 0.5), 40)
    assert (long[:40] == short).all()


def test_a_linear_profile() -> None:
    assert list(islice(Linear(ms(2), ms(5)).batch_times(), 3)) == [ms(7), ms(9), ms(11)]


def test_a_table_is_straight_between_its_points_and_ends_with_them() -> None:
    assert list(Table({1: ms(4), 3: ms(6), 4: ms(10)}).batch_times()) == [ms(4), ms(5), ms(6), ms(10)]


@pytest.mark.parametrize("points", [{}, {2: ms(4)}, {1: ms(4), 2: ms(3)}, {1: ms(0)}, {2: ms(5), 1: ms(4)}])
def test_tables_that_are_none(points: dict[int, Duration]) -> None:
    with pytest.raises(InputError):
        Table(points)


def test_a_batch_takes_as_long_as_its_longest_request() -> None:
    profile = Dynamic({"only": Application(Constant(ms(10)))}, c0=ms(2), c1=0.5)
    assert list(islice(profile.batch_times(), 3)) == [7 * MS, 12 * MS, 17 * MS]


def test_the_mean_request_knows_nothing_of_the_longest() -> None:
    applications = {"short": Application(Constant(ms(10))), "long": Application(Constant(ms(30)))}
    profile = Dynamic(applications, c0=ms(2), c1=0.5, estimate="mean_request")
    times = list(islice(profile.batch_times(), 3))
    assert times == pytest.approx([12 * MS, 22 * MS, 32 * MS], rel=1e-3)


@pytest.mark.parametrize("estimate", ["p99", "p50", "mean"])
def test_dynamic_estimates_match_simulated_batches(estimate: Estimate) -> None:
    applications = {
        "short": Application(Normal(ms(5), ms(1)), 0.75),
        "long": Application(LogNormal(ms(12), 0.3), 0.25),
    }
    profile = Dynamic(applications, estimate=estimate)
    longest = draws(profile.mixture(), 90_000).reshape(-1, 3).max(axis=1) * 3
    measures: dict[str, Callable[[np.ndarray], Any]] = {
        "p99": lambda x: np.quantile(x, 0.99),
        "p50": np.median,
        "mean": np.mean,
    }
    assert list(islice(profile.batch_times(), 3))[2] == pytest.approx(measures[estimate](longest), rel=0.02)
