"""Made-up inputs are within the limits that inputs have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.errors import InputError
from astrarium.serving.live import limits, messages
from astrarium.serving.live.backends import examples, own_requests
from astrarium.serving.live.ranges import RANGES, is_real
from astrarium.serving.live.tensors import TensorSpec, to_bytes


@st.composite
def limited(draw: st.DrawFn) -> TensorSpec:
    kind = draw(st.sampled_from(list(RANGES)))
    low, high = RANGES[kind]
    number = st.floats(low, high) if is_real(kind) else st.integers(int(low), int(high))
    values = tuple(sorted((draw(number), draw(number))))
    return TensorSpec("A", kind, (-1, 3), (values[0], values[1]))


@given(limited(), st.integers(0, 5))
def test_made_up_inputs_are_within_their_limits(spec: TensorSpec, seed: int) -> None:
    batch = examples.tensor(spec, 4, np.random.default_rng(seed))
    assert batch.shape == (4, 1, 3)
    assert limits.violation(spec, batch.shape, to_bytes(batch)) is None


def test_made_up_tokens_are_of_the_whole_range_and_numbers_near_zero() -> None:
    chance = np.random.default_rng(0)
    tokens = examples.tensor(TensorSpec("A", "INT64", (1000,), (0, 30521)), 1, chance)
    assert len(np.unique(tokens)) > 900
    wide = examples.tensor(TensorSpec("A", "FP32", (1000,), (-3e38, 3e38)), 1, chance)
    assert np.abs(wide).max() <= 3
    assert examples.tensor(TensorSpec("A", "FP32", (9,), (100, 200)), 1, chance).max() <= 103


def test_inputs_of_somebodys_own_that_break_the_limits_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", A=np.array([[1, 2], [3, 99]]))
    spec = TensorSpec("A", "INT64", (2,), (0, 50))
    with pytest.raises(InputError, match=r"input A\[1, 1\]: expected values from 0 to 50 \(got 99\)"):
        own_requests.read(tmp_path / "own.npz", [spec])


def test_limits_travel_with_the_news_of_a_model() -> None:
    specs = (TensorSpec("A", "UINT64", (2,), (0, 2**64 - 1)), TensorSpec("B", "FP16", (), None, True))
    assert specs[0].item_bytes == 16, "what was found out about a spec does not travel"
    news = messages.ModelLoaded(3, specs, specs[1:], (1, 2), ("a note",), ("a warning",))
    assert messages.decode_news(messages.encode(news)) == news
