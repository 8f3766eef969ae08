"""What Orloj knows of a batch's time: the longest of several draws, learnt, remembered and forgotten."""

from __future__ import annotations

from random import Random

import pytest

from astrarium.core.quantities import MILLISECOND as MS
from astrarium.core.quantities import SECOND
from astrarium.serving.contract import DynamicSpec, ModelSpec, latency_table
from astrarium.serving.policies._times import FEWEST, BatchTime, LearntTimes, certain, grid, power

TABLE = latency_table([30 * MS, 40 * MS, 50 * MS, 60 * MS, 70 * MS, 80 * MS, 90 * MS, 100 * MS])


def model(*history: list[int], c0: int = 2 * MS, c1: float = 0.3) -> ModelSpec:
    known = tuple(tuple(sorted(times)) for times in history)
    return ModelSpec(0, "m", 200 * MS, TABLE, DynamicSpec(c0, c1, known))


def learnt(spec: ModelSpec, bins: int = 64, window: int = 10 * SECOND, refresh: int = SECOND) -> LearntTimes:
    return LearntTimes(spec, bins, window, refresh)


def share_under(time: BatchTime, moment: float) -> float:
    """The chance that a batch ends by a moment."""
    bins = zip(time.edges, time.edges[1:], time.chances, strict=False)
    return sum(chance * min(1.0, max(0.0, (moment - low) / (high - low))) for low, high, chance in bins)


def drawn(seed: int, mean: float, spread: float, count: int = 2000) -> list[int]:
    chance = Random(seed)
    return [max(1, round(chance.gauss(mean, spread) * MS)) for _ in range(count)]


SHORT = drawn(1, 10, 2)
LONG = drawn(2, 40, 6)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("application", [None, 0, 1])
def test_a_batch_takes_what_its_longest_member_takes(size: int, application: int | None) -> None:
    """Against draws: everybody from the mixture, or one of an application among them."""
    times = learnt(model(SHORT, LONG))
    for number in range(400):
        times.arrived(0, int(number % 4 == 0))  # three short ones for each long one
    assert times.refreshed(SECOND) is False  # `refresh` counts from the first time that it is asked
    assert times.refreshed(2 * SECOND)
    distribution = times.batch(size, application)
    chance = Random(7)
    batches = []
    for _ in range(20_000):
        kinds = [int(chance.random() < 0.25) for _ in range(size)]
        kinds[0] = kinds[0] if application is None else application
        batches.append(2 * MS + 0.3 * size * max(chance.choice((SHORT, LONG)[kind]) for kind in kinds))
    assert distribution.mean == pytest.approx(sum(batches) / len(batches), rel=0.02)
    for percent in (0.1, 0.5, 0.9):
        moment = sorted(batches)[int(percent * len(batches))]
        assert share_under(distribution, moment) == pytest.approx(percent, abs=0.03)


def test_chances_are_a_product_of_cdfs() -> None:
    """Two kinds with the same mean, always 5, or as often 1 as 9: the longer of two leans right."""
    steady = [5 * MS] * 20
    wild = [MS] * 10 + [9 * MS] * 10
    times = learnt(model(steady, wild, c0=0, c1=0.5), bins=4)  # bins of 2 ms from 1 to 9
    assert times.batch(2).edges == (MS, 3 * MS, 5 * MS, 7 * MS, 9 * MS)
    assert times.batch(1).chances == (0.25, 0.0, 0.5, 0.25)
    assert times.batch(2, 0).chances == (0.0, 0.0, 0.75, 0.25)
    assert times.batch(2, 1).chances == (0.125, 0.0, 0.25, 0.625)
    assert times.batch(2).chances == (0.0625, 0.0, 0.5, 0.4375)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_chances_add_up_and_larger_batches_take_longer(size: int) -> None:
    times = learnt(model(SHORT, LONG))
    for application in (None, 0, 1):
        distribution = times.batch(size, application)
        assert sum(distribution.chances) == pytest.approx(1)
        assert min(distribution.chances) >= 0
        assert list(distribution.edges) == sorted(set(distribution.edges))
        assert distribution.mean > times.batch(max(1, size // 2), application).mean or size == 1


def test_times_that_never_differ() -> None:
    distribution = learnt(model([10 * MS] * 50)).batch(4)
    assert distribution.chances == (1.0,)
    assert distribution.edges[0] == 14 * MS
    assert distribution.mean - 14 * MS < 1000


def test_a_grid_has_no_bin_narrower_than_a_microsecond() -> None:
    assert grid(10, 10, 8) == [10, 1010]
    assert grid(0, 3500, 8) == [0, 1166, 2333, 3500]
    assert grid(0, 8000, 8) == [0, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000]


def test_scales_that_crush_the_grid_keep_edges_apart() -> None:
    edges = learnt(model(SHORT, c0=0, c1=1e-9)).batch(1).edges
    assert list(edges) == sorted(set(edges))


@pytest.mark.parametrize("exponent", [0, 1, 2, 7, 64, 511])
def test_powers_by_squaring(exponent: int) -> None:
    assert power(0.97, exponent) == pytest.approx(0.97**exponent)


def test_a_static_model_takes_what_its_table_says() -> None:
    times = learnt(ModelSpec(0, "m", 200 * MS, TABLE))
    times.arrived(5, 0)
    assert not times.refreshed(100 * SECOND)
    assert times.batch(3) == certain(50 * MS)
    assert times.batch(3).mean == 50 * MS


def test_a_cold_start_believes_the_table_until_enough_was_measured() -> None:
    times = learnt(model([], []))
    for number in range(FEWEST - 1):
        times.measured(number, 0, 10 * MS)
        assert not times.refreshed(number)
        assert times.batch(2) == certain(40 * MS)
    times.measured(FEWEST, 1, 20 * MS)
    assert times.refreshed(FEWEST)  # at once: anything is better than nothing
    assert times.batch(1).edges[-1] == 8 * MS
    assert times.batch(1, 1) == times.batch(1)  # one sample of it says little


def test_an_application_without_samples_is_taken_for_the_others() -> None:
    times = learnt(model(SHORT, []))
    assert times.batch(4, 1) == times.batch(4) == times.batch(4, 0)


def heard(times: LearntTimes, start: int, end: int, time: int, every: int = 50 * MS) -> None:
    for now in range(start, end, every):
        times.measured(now, 0, time)
        times.refreshed(now)


def test_estimates_follow_a_drift_once_the_window_has_passed() -> None:
    times = learnt(model([10 * MS] * 1000, c0=0, c1=1.0))
    assert times.batch(1).mean == pytest.approx(10 * MS, abs=1000)
    heard(times, 0, 5 * SECOND, 30 * MS)
    assert 10 * MS < times.batch(1).mean < 15 * MS  # a hundred against a thousand
    heard(times, 5 * SECOND, 12 * SECOND, 30 * MS)
    assert times.batch(1).mean == pytest.approx(30 * MS, abs=1000)
    heard(times, 12 * SECOND, 25 * SECOND, 5 * MS)
    assert times.batch(1).mean == pytest.approx(5 * MS, abs=1000)


def test_the_last_knowledge_is_never_forgotten() -> None:
    times = learnt(model([10 * MS] * 1000, c0=0, c1=1.0))
    times.arrived(SECOND, 0)
    times.refreshed(SECOND)
    times.arrived(500 * SECOND, 0)
    assert times.refreshed(500 * SECOND)
    assert times.batch(1).mean == pytest.approx(10 * MS, abs=1000)
    heard(times, 600 * SECOND, 602 * SECOND, 20 * MS)
    assert times.batch(1).mean == pytest.approx(20 * MS, abs=1000)
    times.measured(900 * SECOND, 0, 20 * MS)  # old ones give way one by one
    assert times.refreshed(900 * SECOND)
    assert times.batch(1).mean == pytest.approx(20 * MS, abs=1000)


def test_distributions_are_made_anew_at_most_once_in_a_while() -> None:
    times = learnt(model([10 * MS] * 100, c0=0, c1=1.0))
    distributions = []
    for now in range(0, 5 * SECOND, 100 * MS):
        times.measured(now, 0, 50 * MS)
        if times.refreshed(now):
            distributions.append(now)
    assert distributions == [SECOND, 2 * SECOND, 3 * SECOND, 4 * SECOND]


def test_without_news_nothing_is_made_anew() -> None:
    times = learnt(model([10 * MS] * 100))
    times.arrived(0, 0)
    times.refreshed(0)
    assert times.refreshed(2 * SECOND)
    assert not times.refreshed(50 * SECOND)


def test_the_mixture_follows_the_traffic_of_the_last_two_windows() -> None:
    times = learnt(model([10 * MS] * 99, [20 * MS] * 99, c0=0, c1=1.0))

    def share_of_long(start: int, end: int, application: int) -> float:
        for now in range(start, end, 10 * MS):
            times.arrived(now, application)
            times.refreshed(now)
        return 1 - share_under(times.batch(1), 15 * MS)

    assert 1 - share_under(times.batch(1), 15 * MS) == pytest.approx(0.5)
    assert share_of_long(0, 9 * SECOND, 0) < 0.01
    assert share_of_long(9 * SECOND, 18 * SECOND, 1) == pytest.approx(0.45, abs=0.05)
    assert share_of_long(18 * SECOND, 31 * SECOND, 1) > 0.99
