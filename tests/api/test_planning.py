"""Goodput and plans from Python agree with what stands behind them, and show themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import astrarium
from astrarium.serving.goodput import search
from astrarium.serving.scenario import parse
from tests.support.paths import ROOT

SERVING: dict[str, Any] = {
    "cluster": {"gpus": 2, "memory": "8GiB"},
    "models": {"echo": {"profile": {"alpha": "1ms", "beta": "5ms"}, "slo": "40ms", "memory": "1GiB"}},
    "workload": {"arrivals": "poisson", "rate": "300/s", "duration": "2s"},
}


def test_a_goodput_is_found_shown_and_run(tmp_path: Path) -> None:
    result = astrarium.goodput(SERVING, "eager", seeds=1, tolerance=0.1)
    expected = search(parse(SERVING).with_policy("eager"), 1, 0.1)
    assert result.rate == expected.goodput
    assert result.per_seed == {0: expected.per_seed[0]}
    assert result.interval[0] <= result.rate <= result.capacity
    assert len(result.probes) == len(expected.probes)
    assert "eager" in str(result)
    assert result.run.policy == "eager"
    assert result.plot(tmp_path / "goodput.png").is_file()


def test_a_goodput_needs_models_and_a_registered_policy() -> None:
    with pytest.raises(astrarium.InputError, match="a scenario of requests to models"):
        astrarium.goodput(ROOT / "examples" / "jobs.yaml")

    class Mine:
        def __init__(self, setup: Any, parameters: Any) -> None: ...

        def decide(self, now: int, events: Any, state: Any) -> Any: ...

    with pytest.raises(astrarium.InputError, match="a registered policy"):
        astrarium.goodput(SERVING, Mine)


def test_a_plan_is_made_shown_saved_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    plan = astrarium.plan(SERVING, gpus=2, seeds=1, growth=False, against=["round-robin"])
    assert plan.gpus == 2
    assert plan.met
    assert plan.attainment is not None
    assert plan.attainment > 0.99
    assert set(plan.placement["model"]) == {"echo"}
    assert plan.to_dict()["gpus"] == 2
    assert "planner" in str(plan)
    assert "round-robin" in str(plan)
    assert (
        "models" in plan.save(tmp_path / "plan.yaml").read_text() or (tmp_path / "plan.yaml").stat().st_size
    )
    assert plan.plot(tmp_path / "plan.png").is_file()
    with pytest.raises(astrarium.InputError, match=r"ends in .*\.yaml"):
        plan.save(tmp_path / "plan.txt")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"target": 2.0}, "^target"),
        ({"gpus": 0}, "^gpus"),
        ({"policy": "plannr"}, "^policy"),
        ({"policy": 3}, "^policy"),
        ({"against": ["x"]}, "^against"),
    ],
)
def test_what_cannot_be_planned_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(astrarium.InputError, match=message):
        astrarium.plan(SERVING, **wrong)
