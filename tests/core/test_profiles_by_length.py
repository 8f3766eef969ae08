"""Profiles by length: what a batch takes whose longest request has some length."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.errors import InputError
from astrarium.core.profiles import ByLength, Kinds, Linear, profile_by_length
from astrarium.core.quantities import Duration
from tests.serving.scenario.texts import profile
from tests.support.rival_runs import ms

ROWS = {16: {1: 1.0, 4: 2.0}, 32: {1: 2.0, 4: 4.0}}


def test_a_rounded_profile_runs_at_measured_lengths_only() -> None:
    rounded = profile(ROWS, rounded=True)
    assert [rounded.rounded_up(length) for length in (1, 16, 17, 32, 99)] == [16, 16, 32, 32, 32]
    assert rounded.times(17) == rounded.times(32)
    assert rounded.times(3) == rounded.times(16)
    assert list(rounded.buckets()) == [16, 32]


def test_between_measured_lengths_lie_straight_lines() -> None:
    straight = profile(ROWS)
    assert straight.times(24)[0] == ms(1.5)
    assert straight.times(24)[3] == ms(3)
    assert straight.rounded_up(17) == 17


def test_below_the_shortest_measured_length_it_is_that_of_the_shortest() -> None:
    assert profile(ROWS).times(1) == profile(ROWS).times(16)


def test_policies_are_told_the_longest_unless_they_ask() -> None:
    assert next(iter(profile(ROWS).batch_times())) == ms(2)
    assert profile(ROWS).longest == 32


def test_policies_plan_with_small_steps_between_measured_lengths() -> None:
    buckets = profile({10: {1: 1.0}, 1000: {1: 10.0}}).buckets()
    lengths = list(buckets)
    assert lengths[0] == 10
    assert lengths[-1] == 1000
    assert lengths == sorted(lengths)
    assert 30 <= len(lengths) <= 34
    times = [times[0] for times in buckets.values()]
    assert max(after - before for before, after in pairwise(times)) < ms(0.4)


def test_lengths_that_lie_close_have_no_steps_between() -> None:
    assert list(profile({1: {1: 1.0}, 2: {1: 1.0}, 3: {1: 2.0}}).buckets()) == [1, 2, 3]


@given(length=st.integers(1, 32))
def test_a_bucket_is_never_planned_shorter_than_its_requests_take(length: int) -> None:
    for rounded in (True, False):
        known = profile(ROWS, rounded)
        bucket = next(longest for longest in known.buckets() if longest >= length)
        assert known.buckets()[bucket] >= known.times(length)


@pytest.mark.parametrize(
    ("lengths", "field", "right"),
    [
        ({}, "lengths", "lengths of at least 1 that rise"),
        ({0: {1: 1}}, "lengths", "lengths of at least 1 that rise"),
        ({32: {1: 1}, 16: {1: 1}}, "lengths", "lengths of at least 1 that rise"),
        ({16: {2: 1}}, "lengths.16", "batch sizes that rise from 1"),
        ({16: {1: 2, 2: 1}}, "lengths.16", "times above 0 that never fall"),
        ({16: {1: 2}, 32: {1: 1}}, "lengths.32.1", "at least 2ms, as for the length 16"),
        ({16: {1: 1, 4: 9}, 32: {1: 1, 4: 2}}, "lengths.32.2", "as for the length 16"),
        ({16: {1: 1}, 32: {1: 1, 2: 3}}, "lengths.32.2", "batches of at most 1, as for the length 16"),
    ],
)
def test_an_error_names_what_is_wrong(lengths: dict[int, dict[int, int]], field: str, right: str) -> None:
    rows = {
        length: {size: Duration(ms(time)) for size, time in row.items()} for length, row in lengths.items()
    }
    with pytest.raises(InputError) as caught:
        ByLength(rows)
    assert caught.value.field == field
    assert right in caught.value.expected


@pytest.mark.parametrize("shares", [{16: 0.2, 64: 0.8}, {16: 0.0}, {32: -1.0}])
def test_shares_are_weights_of_its_lengths(shares: dict[int, float]) -> None:
    lengths = profile(ROWS).lengths
    assert ByLength(lengths, shares={16: 0.25}).shares == {16: 0.25}
    with pytest.raises(InputError, match="shares: expected weights of some of the lengths") as caught:
        ByLength(lengths, shares=shares)
    assert caught.value.field == "shares"


def test_longer_requests_may_run_in_smaller_batches_only() -> None:
    known = profile({16: {1: 1.0, 8: 2.0}, 32: {1: 1.0, 2: 2.0}})
    assert len(known.times(24)) == 2
    assert len(known.times(16)) == 8


def test_the_lengths_of_a_model_are_found_whatever_its_gpus() -> None:
    by_length = profile(ROWS)
    assert profile_by_length(by_length) is by_length
    assert profile_by_length(Kinds({"A": by_length, "B": by_length})) is by_length
    assert profile_by_length(Linear(Duration(1), Duration(1))) is None
