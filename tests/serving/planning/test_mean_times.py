"""Plans of models whose requests have lengths count with the mean over the workload."""

from __future__ import annotations

from typing import Any

import pytest

from astrarium.core.quantities import MILLISECOND
from astrarium.serving.planning.mean_times import mean_times
from astrarium.serving.scenario import build, parse

TABLES = {16: {1: "1ms", 4: "1ms"}, 64: {1: "2ms", 2: "6ms"}}


def times(weights: dict[int, float], slo: str = "100ms") -> tuple[int, ...]:
    raw: dict[str, Any] = {
        "cluster": {"gpus": 1},
        "models": {"texts": {"slo": slo, "profile": {"lengths": TABLES, "rounded": True}}},
        "workload": {
            "arrivals": "poisson",
            "rate": "2000/s",
            "duration": "5s",
            "lengths": {"weights": weights},
        },
    }
    scenario = parse(raw)
    return mean_times(scenario, build.setup(scenario).models[0])


def ms(*values: float) -> Any:
    return pytest.approx([value * MILLISECOND for value in values], rel=0.06)


def test_one_length_is_its_own_table() -> None:
    assert times({16: 1}) == ms(0, 1, 1, 1, 1)


def test_lengths_count_as_often_as_they_come() -> None:
    assert times({16: 3, 64: 1}) == ms(0, 1.25, 2.25, 3, 3.75)


def test_what_takes_longer_than_the_objective_is_no_batch() -> None:
    assert times({16: 1, 64: 1}, slo="6ms") == ms(0, 1.5, 3.5, 5)
