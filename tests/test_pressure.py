"""How scarce GPUs are, and what a line makes of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.units import MILLISECOND as MS
from astrarium.core.units import SECOND
from astrarium.serving.policies import _pressure as pressure
from astrarium.serving.policies._pressure import CALM, Climate, Demand, climate, patience, ramp, share, stance

SCARCE = Climate(1.0, 0.0, 0.2)  # and too noisy to bet on
SWAMPED = Climate(1.0, 1.0, 0.2)

parts = st.floats(0, 1)
gains = st.floats(0, 4)
noises = st.floats(0, 0.5)
climates = st.builds(Climate, parts, parts, noises)


def demand(
    rate: float = 1000, dispersion: float = 1.0, target: int = 10, time: float = 20, slo: float = 100
) -> Demand:
    """Requests per second of a model with batches of 20 ms, 5 of them whatever their size."""
    return Demand(rate / SECOND, dispersion, target, round(time * MS), 5 * MS, round(slo * MS))


def gaining(gain: float, dispersion: float = 1.0) -> Demand:
    """Requests at the rate that gives this gain."""
    usual = demand(dispersion=dispersion)
    return usual._replace(rate=gain * (usual.target + 1) / usual.fixed)


def waits(gain: float, weather: Climate) -> float:
    return patience(gaining(gain), weather)


# the parts


@pytest.mark.parametrize(("value", "expected"), [(-1, 0), (2, 0), (3, 0.25), (4, 0.5), (6, 1), (99, 1)])
def test_a_ramp_is_straight_between_its_ends(value: float, expected: float) -> None:
    assert ramp(value, 2, 6) == expected


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (1e-9, 1)])
def test_a_ramp_without_width_is_a_step(value: float, expected: float) -> None:
    assert ramp(value, 0, 0) == expected


def test_the_gain_is_what_one_more_request_saves_over_what_it_takes_to_come() -> None:
    """At 1000/s one comes every millisecond; eleven share a launch of 5 ms."""
    assert demand().gain == pytest.approx(5 / 11)
    assert demand(rate=3000).gain == pytest.approx(15 / 11)
    assert demand().each == 2 * MS


# the climate


@pytest.mark.parametrize(("gpus", "scarcity"), [(4, 0.0), (3, 0.5), (2, 1.0)])
def test_demand_with_two_standard_deviations_is_held_against_the_gpus(gpus: int, scarcity: float) -> None:
    """1000/s of 2 ms each keep 2 GPUs busy; 100 +- 10 of them in 100 ms are 2 +- 0.2: with its reserve,
    2.4 GPUs, which is 0.6, 0.8 and 1.2 of those there are."""
    found = climate([demand()], gpus, 0.0)
    assert found.noise == pytest.approx(0.2 / gpus)
    assert found.scarcity == pytest.approx(scarcity)
    assert found.overload == 0


def test_independent_lines_add_their_means_and_their_variances() -> None:
    four = climate([demand()] * 4, 8, 0.0)
    assert four.noise == pytest.approx(0.4 / 8)  # not 0.8
    assert four.scarcity == 1  # (8 + 2 * 0.4) / 8
    bursty = climate([demand(dispersion=9.0)], 4, 0.0)
    assert bursty.noise == pytest.approx(0.6 / 4)
    assert bursty.scarcity == pytest.approx(0.5)  # (2 + 1.2) / 4


@pytest.mark.parametrize(("lost", "overload"), [(0.0, 0), (0.02, 0), (0.035, 0.5), (0.05, 1), (0.4, 1)])
def test_overload_is_told_by_what_is_lost(lost: float, overload: float) -> None:
    assert climate([demand()], 100, lost).overload == pytest.approx(overload)


def test_nothing_asked_of_nothing_is_calm() -> None:
    assert climate([], 4, 0.0) == CALM
    assert climate([demand(rate=0)], 0, 0.0) == CALM


loads = st.builds(
    demand, st.floats(0, 5000), st.floats(0, 20), st.integers(1, 50), st.floats(1, 200), st.floats(5, 1000)
)


@given(several=st.lists(loads, max_size=5), one=loads, gpus=st.integers(1, 64), lost=parts)
def test_more_demand_is_scarcer_and_more_gpus_are_not(
    several: list[Demand], one: Demand, gpus: int, lost: float
) -> None:
    before, after = climate(several, gpus, lost), climate([*several, one], gpus, lost)
    assert before.scarcity <= after.scarcity
    assert before.noise <= after.noise
    relieved = climate([*several, one], gpus + 1, lost)
    assert relieved.scarcity <= after.scarcity
    assert relieved.noise <= after.noise


# patience


NOISY = Climate(0.0, 0.0, 0.5)


def test_while_gpus_are_plenty_waiting_is_free() -> None:
    for gain in (0.0, 0.3, 0.6):
        assert waits(gain, CALM) == pytest.approx(0.8)
        assert waits(gain, NOISY) == pytest.approx(0.8)


@pytest.mark.parametrize(("gain", "expected"), [(0.6, 0.8), (0.8, 0.9), (1.0, 1.0), (9.0, 1.0)])
def test_what_pays_is_waited_for_to_the_end_while_it_is_quiet(gain: float, expected: float) -> None:
    for weather in (CALM, Climate(1.0, 0.0, 0.03)):
        assert waits(gain, weather) == pytest.approx(expected)


@pytest.mark.parametrize(("gain", "expected"), [(1.5, 0.8), (2.0, 0.9), (2.5, 1.0), (9.0, 1.0)])
def test_what_surely_pays_is_waited_for_to_the_end_whatever_the_noise(gain: float, expected: float) -> None:
    for weather in (NOISY, SCARCE):
        assert waits(gain, weather) == pytest.approx(expected)


@pytest.mark.parametrize(("gain", "expected"), [(0.9, 0.0), (1.15, 0.4), (1.4, 0.8)])
def test_a_risky_bet_is_taken_for_a_gain_well_above_the_noise(gain: float, expected: float) -> None:
    """4.5 to 7 times a noise of 0.2."""
    assert waits(gain, SCARCE) == pytest.approx(expected)


@pytest.mark.parametrize(("noise", "expected"), [(0.03, 0.8), (0.04, 0.4), (0.05, 0.0)])
def test_a_quiet_cluster_bets_whatever_the_gain(noise: float, expected: float) -> None:
    assert waits(0.0, Climate(1.0, 0.0, noise)) == pytest.approx(expected)


@pytest.mark.parametrize(("gain", "expected"), [(0.4, 0.0), (0.5, 0.42), (0.6, 0.88), (0.9, 1.0)])
def test_in_overload_the_gain_alone_decides(gain: float, expected: float) -> None:
    assert waits(gain, SWAMPED) == pytest.approx(expected)
    assert waits(gain, SWAMPED._replace(noise=0.0)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("dispersion", "expected"), [(1, 0.0), (545, 0.0), (633, 0.4), (721, 0.8), (999, 0.8)]
)
def test_a_burst_is_waited_for_where_the_rest_of_it_comes_soon_enough(
    dispersion: float, expected: float
) -> None:
    """With each request come so many others within the 80 ms that a batch has; eleven share 5 ms. A gain of
    0.4 by the mean rate is 3.5 in the burst if 3.1 * 11 * 80 / 5 = 545.6 others come, 4.5 with 721.6."""
    bursty = gaining(0.4, float(dispersion))
    assert bursty.burst_gain == pytest.approx(0.4 + (dispersion - 1) * 5 / 80 / 11)
    assert patience(bursty, SCARCE) == pytest.approx(expected, abs=0.01)


def test_a_burst_lasts_a_while() -> None:
    """Even where a batch takes all of the objective."""
    assert demand(dispersion=2.0, time=100, slo=100).burst_gain == demand(dispersion=2.0, time=95).burst_gain
    assert demand(dispersion=0.5).burst_gain == demand().gain


@given(gain=gains, more=gains, weather=climates, dispersion=st.floats(0, 1000))
def test_patience_is_a_share_that_grows_with_the_gain(
    gain: float, more: float, weather: Climate, dispersion: float
) -> None:
    less, most = (patience(gaining(value, dispersion), weather) for value in (gain, gain + more))
    assert 0 <= less <= most + 1e-12
    assert most <= 1


@given(gain=gains, weather=climates, more=parts)
def test_scarcity_and_noise_never_add_patience(gain: float, weather: Climate, more: float) -> None:
    usual = waits(gain, weather)
    scarcer = weather._replace(scarcity=min(1.0, weather.scarcity + more))
    assert waits(gain, scarcer) <= usual + 1e-12
    assert waits(gain, weather._replace(noise=weather.noise + more)) <= usual + 1e-12


# the rest of the stance


@pytest.mark.parametrize(
    ("target", "part", "expected"),
    [(1, 0.7, 1), (2, 0.7, 2), (4, 0.7, 4), (5, 0.7, 4), (12, 0.7, 9), (6, 0.85, 6), (7, 0.85, 6)],
)
def test_a_small_target_is_kept_nearly_whole(target: int, part: float, expected: int) -> None:
    assert share(target, part, 0.0) == expected
    assert share(target, part, 1.0) == target


@given(target=st.integers(1, 200), part=parts, insist=parts, more=parts)
def test_a_share_lies_between_the_part_and_the_whole(
    target: int, part: float, insist: float, more: float
) -> None:
    found = share(target, part, insist)
    assert 1 <= found <= target
    assert found >= part * target - 0.5
    assert found <= share(target + 1, part, insist)
    assert found <= share(target, part, min(1.0, insist + more))


def test_wasted_time_has_a_price_where_gpus_are_scarce() -> None:
    weak, strong = demand(rate=1000), demand(rate=2500)  # gains of 0.45 and 1.14
    assert stance(strong, CALM).price == 0
    assert stance(weak, SCARCE).price == pytest.approx(pressure.CHEAP)
    assert stance(strong, SCARCE).price == pytest.approx(pressure.DEAR)
    assert stance(strong, Climate(0.5, 0.0, 0.2)).price == pytest.approx(pressure.DEAR / 2)


def test_overload_insists_on_the_target() -> None:
    many = demand(target=20)
    calm, swamped = stance(many, CALM), stance(many, SWAMPED)
    assert (calm.hold, calm.enough) == (15, 17)
    assert (swamped.hold, swamped.enough) == (20, 20)


@pytest.mark.parametrize(("noise", "enough"), [(0.03, 20), (0.05, 17)])
def test_what_pays_is_worth_the_whole_target_while_it_is_quiet(noise: float, enough: int) -> None:
    paying = demand(rate=5000, target=20)
    assert paying.gain == pytest.approx(25 / 21)
    assert stance(paying, Climate(1.0, 0.0, noise)).enough == enough


@given(one=loads, weather=climates)
def test_what_is_held_for_is_no_more_than_what_is_enough(one: Demand, weather: Climate) -> None:
    found = stance(one, weather)
    assert 1 <= found.hold <= found.enough <= one.target
    assert found.price >= 0
