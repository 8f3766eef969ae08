"""Errors name the place, the value and the remedy."""

from __future__ import annotations

import pytest

from astrarium.core.errors import AstrariumError, BrokenBooks, InputError, InvalidAction, one_of, read_from


def test_an_input_error_names_place_value_and_remedy() -> None:
    with pytest.raises(InputError) as caught, read_from("other.yaml"), read_from("quick.yaml"):
        raise InputError("rate", "-3/s", "a rate such as 5000/s").at("workload")
    assert str(caught.value) == "quick.yaml: workload.rate: expected a rate such as 5000/s (got '-3/s')"
    with pytest.raises(InputError, match=r"^-o: expected KEY=VALUE"), read_from("quick.yaml"):
        raise InputError("-o", "rate", "KEY=VALUE")


def test_a_long_value_is_shown_in_part() -> None:
    assert len(str(InputError("x", "y" * 5000, "less"))) < 150


def test_every_error_is_one_of_the_family() -> None:
    assert all(issubclass(kind, AstrariumError) for kind in (InputError, InvalidAction, BrokenBooks))


def test_one_of_suggests_the_nearest_name() -> None:
    assert one_of(["deferred", "eager"], "defered") == "one of deferred, eager; did you mean 'deferred'?"
    assert one_of(["deferred", "eager"], "zzz") == "one of deferred, eager"
