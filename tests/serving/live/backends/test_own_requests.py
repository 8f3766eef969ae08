"""Requests of somebody's own: rows that are padded to the longest, and how long each really is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astrarium.core.errors import InputError
from astrarium.serving.live.backends.own_requests import OwnRequests, read
from astrarium.serving.live.tensors import TensorSpec

TOKENS = TensorSpec("TOKENS", "INT64", (-1,), (1, 99), ranges=((1, 8),))
TYPES = TensorSpec("TYPES", "INT8", (-1,), ranges=((1, 8),))
IMAGE = TensorSpec("IMAGE", "FP32", (1, -1, -1), ranges=(None, (1, 4), (1, 8)))


@pytest.fixture
def requests(tmp_path: Path) -> Any:
    def made(*specs: TensorSpec, **arrays: Any) -> OwnRequests:
        np.savez(tmp_path / "mine.npz", **arrays)
        return read(tmp_path / "mine.npz", specs)

    return made


def test_rows_repeat_themselves_where_they_were_padded(requests: Any) -> None:
    texts = [[5, 6, 0, 0], [7, 0, 0, 0], [1, 2, 3, 4]]
    types = [[0, 1, 9, 9], [2, 9, 9, 9], [3, 3, 3, 3]]
    own = requests(TOKENS, TYPES, TOKENS=texts, TYPES=types, lengths=[2, 1, 4])
    assert own.between([0], [3])["TOKENS"].tolist() == [[5, 6, 5], [7, 7, 7]]
    assert own.between([0], [3])["TYPES"].tolist() == [[0, 1, 0], [2, 2, 2]]
    assert own.between([3], [4])["TOKENS"].tolist() == [[1, 2, 3, 4]]


def test_where_nobody_has_a_length_others_are_repeated_or_cut(requests: Any) -> None:
    own = requests(TOKENS, TOKENS=[[5, 6, 7, 0], [1, 2, 3, 4]], lengths=[3, 4])
    assert own.between([4], [8])["TOKENS"].tolist() == [[5, 6, 7, 5, 6, 7, 5, 6], [1, 2, 3, 4] * 2]
    assert own.between([0], [2])["TOKENS"].tolist() == [[5, 6], [1, 2]]


def test_images_have_two_lengths(requests: Any) -> None:
    images = np.arange(2 * 2 * 3).reshape(2, 1, 2, 3)
    own = requests(IMAGE, IMAGE=images, lengths=[[1, 2], [2, 3]])
    assert own.between([0, 0], [1, 3])["IMAGE"].tolist() == [[[[0, 1, 0]]]]
    assert own.between([1, 2], [2, 3])["IMAGE"].tolist() == [[[[6, 7, 8], [9, 10, 11]]]]


WRONG: list[tuple[TensorSpec, dict[str, Any], str]] = [
    (TOKENS, {"TOKENS": [[1, 2]]}, "with the arrays TOKENS, lengths: rows are padded to the longest, and "),
    (
        TOKENS,
        {"TOKENS": [[1, 2]], "lengths": [3]},
        r"lengths\[0\]: expected from 1 to 2, as TOKENS",
    ),
    (TOKENS, {"TOKENS": [[1] * 9] * 2, "lengths": [8, 9]}, r"lengths\[1\]: expected from 1 to 8"),
    (TOKENS, {"TOKENS": [[1, 2]], "lengths": [0]}, r"lengths\[0\]: expected from 1 to 2"),
    (TOKENS, {"TOKENS": [[1, 2]], "lengths": [1.0]}, r"lengths: expected whole numbers of the shape \[1\]"),
    (TOKENS, {"TOKENS": [[1, 2]], "lengths": [1, 1]}, "as many rows of every input"),
    (TOKENS, {"TOKENS": [[[1, 2]]], "lengths": [1]}, r"TOKENS: expected INT64 with rows of the shape \[-1\]"),
    (TOKENS, {"TOKENS": [[1, 0]], "lengths": [2]}, r"TOKENS\[0, 1\]: expected values from 1 to 99"),
    (IMAGE, {"IMAGE": np.ones((1, 1, 2, 2)), "lengths": [2]}, r"shape \[1, 2\], a column for each axis"),
    (
        IMAGE,
        {"IMAGE": np.ones((1, 1, 2, 9)), "lengths": [[2, 9]]},
        r"lengths\[0\]\[1\]: expected from 1 to 8",
    ),
]


@pytest.mark.parametrize(("spec", "arrays", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_what_does_not_fit_is_refused(
    requests: Any, spec: TensorSpec, arrays: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        requests(spec, **arrays)


def test_what_lies_behind_a_row_need_not_be_valid(requests: Any) -> None:
    own = requests(TOKENS, TOKENS=[[7, 0, 0]], lengths=[1])
    assert own.arrays["TOKENS"].tolist() == [[7, 7, 7]]
