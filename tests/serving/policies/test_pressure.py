"""What GPU time is worth, and what a queue makes of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.quantities import FOREVER, SECOND, Time
from astrarium.core.quantities import MILLISECOND as MS
from astrarium.serving.policies.astrarium import pressure
from astrarium.serving.policies.astrarium.pressure import (
    CALM,
    Climate,
    Demand,
    climate,
    fits,
    load,
    ramp,
    share,
    stance,
    worthwhile,
)

PRICELESS = Climate(math.inf, 0.0, 0.02)  # no price makes demand fit
SWAMPED = Climate(math.inf, 1.0, 0.02)

parts = st.floats(0, 1)
prices = st.one_of(st.just(0.0), st.floats(0, 1000), st.just(math.inf))
climates = st.builds(Climate, prices, parts, st.floats(0, 0.5))


def demand(
    rate: float = 1000, dispersion: float = 1.0, target: int = 10, time: float = 20, slo: float = 100
) -> Demand:
    """Requests per second of a model with batches of 20 ms, 5 of them whatever their size."""
    return Demand(rate / SECOND, dispersion, target, round(time * MS), 5 * MS, round(slo * MS))


loads = st.builds(
    demand, st.floats(0, 5000), st.floats(0, 20), st.integers(1, 50), st.floats(5, 200), st.floats(5, 1000)
)


def waits(one: Demand, weather: Climate) -> Time:
    return stance(one, weather).wait


@pytest.mark.parametrize(("value", "expected"), [(-1, 0), (2, 0), (3, 0.25), (4, 0.5), (6, 1), (99, 1)])
def test_a_ramp_is_straight_between_its_ends(value: float, expected: float) -> None:
    assert ramp(value, 2, 6) == expected


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (1e-9, 1)])
def test_a_ramp_without_width_is_a_step(value: float, expected: float) -> None:
    assert ramp(value, 0, 0) == expected


@pytest.mark.parametrize(("price", "size", "each"), [(0, 1, 6.5), (3.2, 4, 2.75), (20, 10, 2), (1e9, 10, 2)])
def test_batches_grow_with_the_root_of_the_price(price: float, size: float, each: float) -> None:
    """At 1000/s, 5 requests come while a launch is paid; a request takes 1.5 ms, and its share of the 5."""
    assert demand().size(price) == pytest.approx(size)
    assert demand().request_time(price) == pytest.approx(each * MS)
    assert demand().highest_price == pytest.approx(20)


def test_the_economic_size_is_the_cheapest() -> None:
    """A batch that waits (b - 1) / r: what that costs, and its share of a launch at a price of 3."""
    one = demand()
    price = 3.0

    def cost(size: float) -> float:
        return (size - 1) / one.rate + price * one.fixed / size

    best = one.size(price)
    assert cost(best) < min(cost(best - 0.1), cost(best + 0.1))


def test_company_comes_at_the_rate_and_with_bursts() -> None:
    """In a burst of 21, of the 20 others half come later, within 100 ms."""
    assert demand().wait_for(4.0) == 3 * MS
    assert demand(dispersion=0.2).company == demand().rate
    assert demand(dispersion=21).company == pytest.approx(1100 / SECOND)
    assert demand(rate=0).wait_for(1.0) == 0
    assert demand(rate=1e-9).wait_for(1e9) == FOREVER


def test_demand_has_a_mean_and_a_deviation() -> None:
    """1000/s of 2 ms each keep 2 GPUs busy; 100 +- 10 of them in 100 ms are 2 +- 0.2."""
    assert load([demand()], 20.0) == pytest.approx((2.0, 0.2))
    assert load([demand()] * 4, 20.0) == pytest.approx((8.0, 0.4))  # not 0.8
    assert load([demand(dispersion=9.0)], 20.0) == pytest.approx((2.0, 0.6))


@pytest.mark.parametrize(("gpus", "price"), [(8, 0.0), (4, True), (3, True), (2, math.inf)])
def test_the_price_is_the_lowest_at_which_demand_with_its_reserve_fits(gpus: int, price: float) -> None:
    """In batches of one, 6.5 GPUs and two times 0.65 for the reserve; of ten, 2 and two times 0.2."""
    weather = climate([demand()], gpus, 0.0)
    assert weather.noise == pytest.approx(0.2 / gpus)
    if price is not True:
        assert weather.price == price
        return
    assert 0 < weather.price < 20
    assert fits([demand()], weather.price, gpus)
    assert not fits([demand()], weather.price * 0.999, gpus)


@pytest.mark.parametrize(("lost", "overload"), [(0.0, 0), (0.02, 0), (0.035, 0.5), (0.05, 1), (0.4, 1)])
def test_overload_is_told_by_what_is_lost(lost: float, overload: float) -> None:
    assert climate([demand()], 100, lost).overload == pytest.approx(overload)


def test_nothing_asked_of_nothing_is_calm() -> None:
    assert climate([], 4, 0.0) == CALM
    assert climate([demand(rate=0)], 0, 0.0) == CALM


@given(several=st.lists(loads, max_size=5), one=loads, gpus=st.integers(1, 64), lost=parts)
def test_more_demand_is_dearer_and_more_gpus_are_not(
    several: list[Demand], one: Demand, gpus: int, lost: float
) -> None:
    before = climate(several, gpus, lost)
    after = climate([*several, one], gpus, lost)
    relieved = climate([*several, one], gpus + 1, lost)
    slack = 1e-5 * (1.0 + max((asked_for.highest_price for asked_for in [*several, one]), default=0.0))
    assert before.price <= after.price + slack
    assert relieved.price <= after.price + slack
    assert before.noise <= after.noise + 1e-12
    assert relieved.noise <= after.noise


@pytest.mark.parametrize(("price", "scarcity"), [(0.0, 0.0), (1.0, 0.5), (3.0, 0.75), (math.inf, 1.0)])
def test_scarcity_is_the_price_as_a_share(price: float, scarcity: float) -> None:
    assert Climate(price, 0.0, 0.1).scarcity == scarcity


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.5])
@pytest.mark.parametrize("rate", [0, 1, 1000])
def test_while_gpus_are_plenty_nobody_waits(noise: float, rate: float) -> None:
    assert waits(demand(rate), Climate(0.0, 0.0, noise)) == 0


@pytest.mark.parametrize("price", [0.0, 3.2])
def test_preferring_few_gpus_everybody_waits_while_demand_fits(price: float) -> None:
    assert stance(demand(), Climate(price, 0.0, 0.1), few_gpus=True).wait == FOREVER
    assert stance(demand(), PRICELESS, few_gpus=True) == stance(demand(), PRICELESS)


@pytest.mark.parametrize(("price", "noise", "size"), [(3.2, 0.02, 4), (3.2, 0.25, 5 / 1.75), (3.2, 0.9, 1)])
def test_a_line_waits_for_its_economic_size_and_no_longer_than_is_worth_the_risk(
    price: float, noise: float, size: float
) -> None:
    """The risk is seven times the noise; five launches' worth of requests come while one is paid."""
    assert waits(demand(), Climate(price, 0.0, noise)) == pytest.approx((size - 1) * MS)


@pytest.mark.parametrize(("noise", "size"), [(0.02, 5 / 0.14), (0.1, 5 / 0.7), (0.8, 1)])
def test_where_nothing_fits_waiting_ends_when_its_gain_has_fallen_to_its_risk(
    noise: float, size: float
) -> None:
    assert waits(demand(), PRICELESS._replace(noise=noise)) == pytest.approx((size - 1) * MS)


def test_in_overload_the_gain_alone_decides() -> None:
    assert waits(demand(), SWAMPED) == waits(demand(), SWAMPED._replace(noise=0.5))
    assert waits(demand(), SWAMPED) == pytest.approx((5 / pressure.SAVES - 1) * MS)


@given(one=loads, more=st.floats(0, 5000), weather=climates)
def test_more_company_is_never_worth_less(one: Demand, more: float, weather: Climate) -> None:
    faster = one._replace(rate=one.rate + more / SECOND)
    assert worthwhile(one, weather) <= worthwhile(faster, weather)


@given(one=loads, weather=climates, more=parts)
def test_a_price_never_takes_and_noise_never_adds_waiting(one: Demand, weather: Climate, more: float) -> None:
    usual = waits(one, weather)
    assert waits(one, weather._replace(price=weather.price + more)) >= usual
    assert waits(one, weather._replace(noise=weather.noise + more)) <= usual


@pytest.mark.parametrize(
    ("target", "part", "expected"),
    [(1, 0.7, 1), (2, 0.7, 2), (4, 0.7, 4), (5, 0.7, 4), (12, 0.7, 9), (6, 0.85, 6), (7, 0.85, 6)],
)
def test_a_small_target_is_kept_nearly_whole(target: int, part: float, expected: int) -> None:
    assert share(target, part, 1.0) == expected
    assert share(target, part, 0.0) == target


@given(target=st.integers(1, 200), part=parts, doubt=parts, less=parts)
def test_a_share_lies_between_the_part_and_the_whole(
    target: int, part: float, doubt: float, less: float
) -> None:
    part_of = share(target, part, doubt)
    assert 1 <= part_of <= target
    assert part_of >= part * target - 0.5
    assert part_of <= share(target + 1, part, doubt)
    assert part_of <= share(target, part, max(0.0, doubt - less))


@pytest.mark.parametrize(
    ("noise", "patience", "hold", "enough"), [(0.1, 0.8, 15, 17), (0.01, 0.832, 16, 18), (0.0, 1.0, 20, 20)]
)
def test_doubt_leaves_time_to_find_a_gpu_and_asks_for_less_than_the_target(
    noise: float, patience: float, hold: int, enough: int
) -> None:
    """A target of 20; 71 would be worth waiting for with a noise of 0.01."""
    attitude = stance(demand(target=20), Climate(math.inf, 0.0, noise))
    assert attitude.patience == pytest.approx(patience, abs=0.001)
    assert (attitude.hold, attitude.enough) == (hold, enough)


def test_nothing_known_is_doubtful_and_overload_is_not() -> None:
    assert stance(demand(rate=0, target=20), CALM)[1:4] == (0.8, 15, 17)
    assert stance(demand(target=20), SWAMPED)[1:4] == (1.0, 20, 20)


def test_wasted_time_has_a_price_where_gpu_time_has() -> None:
    assert stance(demand(), CALM).price == 0
    assert stance(demand(), Climate(1.0, 0.0, 0.2)).price == pressure.WASTE / 2
    assert stance(demand(), PRICELESS).price == pressure.WASTE


@given(one=loads, weather=climates)
def test_what_is_held_for_is_no_more_than_what_is_enough(one: Demand, weather: Climate) -> None:
    attitude = stance(one, weather)
    assert 1 <= attitude.hold <= attitude.enough <= one.target
    assert attitude.price >= 0
    assert 1 - pressure.REST <= attitude.patience <= 1
    assert 0 <= attitude.wait <= FOREVER
