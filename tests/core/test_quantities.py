"""Quantities: exact, with units, and never guessed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.quantities import (
    SECOND,
    read_bytes,
    read_duration,
    read_rate,
    write_bytes,
    write_duration,
    write_rate,
)

LONG = 100 * 24 * 3600 * SECOND


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1.053ms", 1_053_000),
        ("25 ms", 25_000_000),
        ("100us", 100_000),
        ("100µs", 100_000),
        ("7ns", 7),
        ("30s", 30 * SECOND),
        ("2min", 120 * SECOND),
        ("1h", 3600 * SECOND),
        ("1e-3s", 1_000_000),
        (0, 0),
        ("0", 0),
    ],
)
def test_durations_are_exact(text: object, nanoseconds: int) -> None:
    assert read_duration(text) == nanoseconds


@pytest.mark.parametrize(
    "text", [25, "25", "25 parsecs", "-1ms", "nanms", "ms", "", None, True, math.nan, [1]]
)
def test_a_duration_without_its_unit_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="a duration with its unit"):
        read_duration(text)


@pytest.mark.parametrize(
    ("text", "rate"), [("5000/s", 5000.0), ("90/min", 1.5), ("3.5k/s", 3500.0), ("0/s", 0.0), ("7200/h", 2.0)]
)
def test_rates(text: str, rate: float) -> None:
    assert read_rate(text) == rate


@pytest.mark.parametrize("text", ["5000", 5000, "-5/s", "nan/s", "5/day", "inf/s", math.nan, None])
def test_rates_that_are_none(text: object) -> None:
    with pytest.raises(ValueError, match="a rate such as 5000/s"):
        read_rate(text)


def test_sizes() -> None:
    assert read_bytes("16GiB") == 16 * 2**30
    assert read_bytes("16GB") == 16 * 10**9
    with pytest.raises(ValueError, match="a size with its unit"):
        read_bytes(16)


def test_what_is_below_zero_is_called_so() -> None:
    with pytest.raises(ValueError, match="not below 0"):
        read_rate("-5000/s")


@given(st.integers(0, LONG))
def test_a_written_duration_reads_back_to_the_nanosecond(time: int) -> None:
    assert read_duration(write_duration(time)) == time


@given(st.floats(0, 1e12))
def test_a_written_rate_reads_back_to_the_bit(rate: float) -> None:
    assert read_rate(write_rate(rate)) == rate


@given(st.integers(0, 2**45))
def test_a_written_size_reads_back(size: int) -> None:
    assert read_bytes(write_bytes(size)) == size


def test_short_forms() -> None:
    assert write_duration(1_053_000) == "1.053ms"
    assert write_rate(5000.0) == "5000/s"
    assert write_bytes(80 * 2**30) == "80GiB"
