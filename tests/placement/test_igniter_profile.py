"""Profiles for iGniter are read from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astrarium.core.errors import InputError
from astrarium.core.plain_data import read_yaml
from astrarium.placement.igniter.profile import shipped_profile
from astrarium.serving.planning.colocation import Colocation, fitted, v100
from tests.support.placement.igniter_cases import (
    NAMES,
    model_of,
)


def read_igniter(path: Path) -> Colocation:
    return fitted(read_yaml(path), str(path))


def written(tmp_path: Path, **changes: Any) -> Path:
    raw = shipped_profile() | changes
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(raw))
    return path


def test_a_profile_of_ones_own_is_read(tmp_path: Path) -> None:
    assert read_igniter(written(tmp_path)) == v100()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shares": [10, 50]}, "batches: expected three batch sizes and three shares"),
        ({"batches": [1, 8, 16, 32]}, r"models\.alexnet\.latency: expected 4 rows .* of 3 numbers"),
        ({"gpu": {"frequency": 1530}}, r"gpu\.power_cap: expected a value"),
        ({"gpu": shipped_profile()["gpu"] | {"unit": 0}}, r"gpu\.unit: expected a number > 0"),
        ({"wattage": 1}, "wattage: expected one of source, batches"),
    ],
)
def test_a_profile_that_cannot_be_used_says_where(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(InputError, match=rf"profile\.json: {message}"):
        read_igniter(written(tmp_path, **changes))


def test_models_of_the_profile_have_names() -> None:
    assert sorted(v100().models) == NAMES
    assert model_of(0, "ssd", 50, 1).name == "ssd"
