"""What is believed of iterations, from those that were seen."""

from __future__ import annotations

from fractions import Fraction
from math import isfinite
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.tuning.live.estimates import PRIOR, Estimates
from astrarium.tuning.runtime import Runtime, most_packed, most_spread, packed_times

WIDTHS = [(1, 1), (1, 2), (1, 4), (2, 1), (4, 1)]  # GPUs, and trials on the GPU
FREE = Runtime()


def took(truth: Runtime, gpus: int, sharers: int) -> int:
    return round(truth.at(Fraction(gpus, sharers)))


@settings(max_examples=60, deadline=None)
@given(
    times=st.lists(st.floats(0.01, 100), min_size=4, max_size=8),
    packing=st.floats(1.0, 1.6),
    scaling=st.floats(1.0, 1.3),
    noise=st.floats(0.0, 0.03),
    seed=st.integers(0, 1000),
)
def test_it_recovers_the_truth_from_noisy_samples(
    times: list[float], packing: float, scaling: float, noise: float, seed: int
) -> None:
    truths = [Runtime(round(time * SECOND), packing, scaling) for time in times]
    chance = Random(seed)
    estimates = Estimates()
    for number, truth in enumerate(truths):
        for gpus, sharers in chance.sample(WIDTHS, 4):
            estimates.seen(number, gpus, sharers, 5 * took(truth, gpus, sharers), first=True)
            for _ in range(9):
                seen = took(truth, gpus, sharers) * chance.uniform(1 - noise, 1 + noise)
                estimates.seen(number, gpus, sharers, round(seen))
            estimates.seen(number, gpus, sharers, 40 * took(truth, gpus, sharers))  # a hiccup
    for number, runtime in estimates.all().items():
        assert runtime.packing == pytest.approx(packing, rel=0.05)
        assert runtime.scaling == pytest.approx(scaling, rel=0.05)
        assert runtime.iteration == pytest.approx(truths[number].iteration, rel=0.12)


@pytest.mark.parametrize("usual", [0, 3])
@pytest.mark.parametrize("seed", range(5))
def test_neighbours_of_all_kinds_blur_packing_and_not_the_candidates_own_time(usual: int, seed: int) -> None:
    """Some slow others by 5 %, some by 60 %. Also where each run had one iteration only."""
    chance = Random(seed)
    estimates = Estimates()
    times = [round(chance.uniform(0.5, 2) * SECOND) for _ in range(24)]
    slows = [chance.choice((1.05, 1.6)) for _ in times]
    met: list[float] = []
    for number, time in enumerate(times):
        three = [slows[other] for other in chance.sample([n for n in range(24) if n != number], 3)]
        met.append((three[0] * three[1] * three[2]) ** (1 / 3))
        for sharers, factor in ((4, met[-1] ** 3), (1, 1.0)):
            for count in range(1 + usual):
                estimates.seen(number, 1, sharers, round(time * factor), first=count == 0)
    for number, runtime in estimates.all().items():
        assert runtime.iteration == pytest.approx(times[number], rel=0.01)
        assert runtime.packing == pytest.approx(sum(met) / len(met), rel=0.1)


@settings(max_examples=150, deadline=None)
@given(
    samples=st.lists(
        st.tuples(
            st.integers(0, 5),
            st.integers(-1, 64),
            st.floats(allow_nan=True, allow_infinity=True),
            st.integers(-(10**30), 10**30),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_it_never_believes_nonsense(samples: list[tuple[int, int, float, int, bool]]) -> None:
    estimates = Estimates()
    for sample in samples:
        estimates.seen(*sample)
        for runtime in estimates.news().values():
            assert runtime.iteration >= 1
            assert runtime.packing >= 1
            assert runtime.scaling >= 1
            assert all(isfinite(value) for value in packed_times(runtime, 8))
            assert most_packed(packed_times(runtime, 8)) >= 1
            assert most_spread(runtime, 8) >= 1
    assert estimates.all().keys() == {sample[0] for sample in samples}


def test_until_something_was_seen_packing_and_spreading_are_worth_trying() -> None:
    assert most_packed(packed_times(PRIOR, 8)) >= 3
    assert most_spread(PRIOR, 8) >= 4
    estimates = Estimates()
    estimates.seen(0, 1, 1, SECOND)
    assert estimates.all() == {0: PRIOR}
    careful = Estimates(Runtime(packing=1.2, scaling=1.1))
    careful.seen(0, 2, 1, SECOND)
    assert careful.all()[0].iteration == pytest.approx(2 * SECOND / 1.1, rel=1e-6)


def test_one_candidate_at_two_widths_tells_of_all() -> None:
    estimates = Estimates()
    for _ in range(5):
        estimates.seen(0, 1, 1, SECOND)
        estimates.seen(0, 1, 2, round(1.4 * SECOND))
        estimates.seen(1, 1, 2, round(2.8 * SECOND))
    runtimes = estimates.all()
    assert runtimes[1].packing == runtimes[0].packing == pytest.approx(1.4, rel=0.01)
    assert runtimes[1].iteration == pytest.approx(2 * SECOND, rel=0.01)


def test_candidates_are_compared_half_heartedly() -> None:
    """Four at each width: half of what they differ by is believed."""
    estimates = Estimates(FREE)
    for number in range(8):
        for _ in range(5):
            estimates.seen(number, 1, 1 + number % 2, SECOND if number % 2 == 0 else 2 * SECOND)
    assert estimates.all()[0].packing == pytest.approx(2**0.5, rel=0.01)


def test_the_first_iteration_counts_where_there_is_no_other() -> None:
    """As much shorter as those of others have turned out to be."""
    estimates = Estimates()
    estimates.seen(0, 1, 1, 3 * SECOND, first=True)
    estimates.seen(1, 1, 1, 6 * SECOND, first=True)
    assert estimates.all()[0].iteration == 3 * SECOND
    estimates.seen(0, 1, 1, SECOND)
    runtimes = estimates.all()
    assert runtimes[0].iteration == SECOND
    assert runtimes[1].iteration == pytest.approx(2 * SECOND, rel=1e-6)


def test_news_are_told_once_and_again_when_they_have_changed() -> None:
    estimates = Estimates(FREE, profile=2)
    estimates.seen(0, 1, 1, SECOND)
    assert not estimates.news()
    estimates.seen(0, 1, 1, SECOND)
    assert estimates.news() == {0: Runtime(SECOND)}
    estimates.seen(0, 1, 1, SECOND + 50 * MILLISECOND)
    assert not estimates.news()
    for _ in range(9):
        estimates.seen(0, 1, 1, 2 * SECOND)
    assert estimates.news() == {0: Runtime(2 * SECOND)}
