"""Items of unequal lengths are stacked into a batch, and its outputs cut back to them."""

from __future__ import annotations

import numpy as np
import pytest

from astrarium.serving.live.backends.stacking import split, stack


def test_items_are_padded_to_the_longest() -> None:
    whole = stack([np.ones((1, 3)), np.full((2, 2), 7.0)])
    assert whole.tolist() == [[[1, 1, 1], [0, 0, 0]], [[7, 7, 0], [7, 7, 0]]]


def test_texts_are_padded_with_empty_ones() -> None:
    whole = stack([np.array([b"a"], object), np.array([b"b", b"c"], object)])
    assert whole.tolist() == [[b"a", b""], [b"b", b"c"]]


def test_items_are_padded_to_a_shape_with_an_element() -> None:
    whole = stack([np.array([3, 4]), np.array([5])], (3,), 9)
    assert whole.tolist() == [[3, 4, 9], [5, 9, 9]]


def test_items_of_one_shape_are_stacked_as_they_are() -> None:
    assert stack([np.zeros(3, np.int8), np.ones(3, np.int8)]).dtype == np.int8


def test_items_of_unequal_rank_are_refused() -> None:
    with pytest.raises(ValueError, match="unequal rank"):
        stack([np.zeros(3), np.zeros((3, 1))])


def test_an_output_that_follows_its_input_is_cut_back() -> None:
    items = split(np.arange(24).reshape(2, 4, 3), (-1, 3), [(2,), (4,)], (4,))
    assert items is not None
    assert [item.shape for item in items] == [(2, 3), (4, 3)]


def test_an_output_is_cut_that_follows_an_input_padded_beyond_its_longest_item() -> None:
    items = split(np.arange(16).reshape(2, 8), (-1,), [(2,), (4,)], (8,))
    assert items is not None
    assert [item.tolist() for item in items] == [[0, 1], [8, 9, 10, 11]]


@pytest.mark.parametrize("declared", [(4,), (-1,)])
def test_an_output_of_another_length_is_left_alone(declared: tuple[int, ...]) -> None:
    size = 4 if declared == (4,) else 7
    assert split(np.zeros((2, size)), declared, [(2,), (4,)], (4,)) is None
