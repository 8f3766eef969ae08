"""The tournament against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.quantities import FOREVER
from astrarium.serving.policies._min_tree import MinTree

VALUES = st.one_of(st.integers(-20, 20), st.just(FOREVER))


def naive_first_at_most(values: list[int], bound: int) -> int:
    return next((slot for slot, value in enumerate(values) if value <= bound), -1)


def naive_argmin(values: list[int]) -> int:
    return -1 if min(values) >= FOREVER else values.index(min(values))


@settings(derandomize=True, deadline=None, database=None)
@given(slots=st.integers(1, 19), data=st.data())
def test_it_answers_like_a_list(slots: int, data: st.DataObject) -> None:
    start = data.draw(VALUES)
    tree = MinTree(slots, start)
    values = [start] * slots
    for slot, value in data.draw(st.lists(st.tuples(st.integers(0, slots - 1), VALUES), max_size=40)):
        tree.set(slot, value)
        values[slot] = value
        bound = data.draw(st.integers(-25, 25))
        assert tree.least == min(values)
        assert tree.argmin() == naive_argmin(values)
        assert tree.first_at_most(bound) == naive_first_at_most(values, bound)
        assert [tree[number] for number in range(slots)] == values


def test_ties_go_to_the_smallest_slot() -> None:
    tree = MinTree(5)
    for slot in (4, 2, 3):
        tree.set(slot, 7)
    assert (tree.argmin(), tree.first_at_most(7), tree.first_at_most(6)) == (2, 2, -1)


@pytest.mark.parametrize("slots", [1, 2, 3, 64, 65])
def test_an_empty_tree_has_no_least_slot(slots: int) -> None:
    assert (MinTree(slots).argmin(), MinTree(slots).least) == (-1, FOREVER)
    assert MinTree(slots, 0).first_at_most(0) == 0


def test_slots_beyond_the_last_are_never_found() -> None:
    tree = MinTree(3, 5)
    for slot in range(3):
        tree.set(slot, FOREVER)
    assert tree.first_at_most(FOREVER - 1) == -1
