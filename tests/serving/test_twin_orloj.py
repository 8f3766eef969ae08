"""The native twin of Orloj learns, scores and decides as its reference, batch by batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.serving.policies.orloj.batch_queues import BatchQueues
from astrarium.serving.scenario import Scenario, parse
from tests.serving.test_twin_rivals import both
from tests.support.decision_times import timed_columns

parameters = st.fixed_dictionaries(
    {
        "b": st.sampled_from([1e-6, 1e-4, 0.1, 10.0]),  # the last one rebases every 25 ms
        "batch_sizes": st.sampled_from([[], [1], [1, 3, 7], [1, 2, 4, 1000]]),
        "bins": st.sampled_from([1, 3, 32, 500]),
        "window": st.sampled_from(["20ms", "150ms", "60s"]),
        "refresh": st.sampled_from(["0ms", "30ms", "1s"]),
        "members": st.sampled_from(["mixture", "own"]),
        "order": st.sampled_from(["earliest", "latest"]),
    }
)
worlds = st.fixed_dictionaries(
    {
        "gpus": st.integers(1, 5),
        "rate": st.integers(50, 2500),
        "shape": st.sampled_from([0.05, 0.3, 1.0]),
        "slo": st.sampled_from(["25ms", "60ms", "400ms"]),
        "c0": st.sampled_from(["0ms", "2ms"]),
        "c1": st.sampled_from([0.15, 0.5, 1.0]),
        "drift": st.booleans(),
        "control": st.sampled_from(["0ms", "1ms"]),
        "data": st.sampled_from(["0ms", "50us"]),
        "response": st.sampled_from(["0ms", "2ms"]),
        "share": st.sampled_from([0.0, 0.2, 1.0]),
        "delay": st.sampled_from(["0ms", "20ms"]),
        "history": st.sampled_from([0, 7, 100]),
        "seed": st.integers(0, 1000),
    }
)
BUSY: dict[str, Any] = {
    "gpus": 2,
    "rate": 700,
    "shape": 0.3,
    "slo": "120ms",
    "c0": "1ms",
    "c1": 0.3,
    "drift": True,
    "control": "0ms",
    "data": "0ms",
    "response": "0ms",
    "share": 0.3,
    "delay": "10ms",
    "history": 0,
    "seed": 1,
}


def applications(drift: bool) -> dict[str, Any]:
    """Short requests (that may grow long), long ones, either, and those that always take the same time."""
    changes = [{"at": "120ms", "time": {"normal": {"mean": "9ms", "std": "2ms"}}}] if drift else []
    modes = [
        {"weight": 0.75, "mean": "2ms", "std": "0.2ms"},
        {"weight": 0.25, "mean": "12ms", "std": "1ms"},
    ]
    return {
        "short": {"share": 0.4, "time": {"lognormal": {"median": "2ms", "sigma": 0.3}}, "changes": changes},
        "long": {"share": 0.2, "time": {"normal": {"mean": "10ms", "std": "3ms"}}},
        "either": {"share": 0.3, "time": {"modes": modes}},
        "same": {"share": 0.1, "time": {"histogram": {"edges": ["4ms", "4.0001ms"], "counts": [1]}}},
    }


def scenario(policy: dict[str, Any], world: dict[str, Any]) -> Scenario:
    dynamic = {"applications": applications(world["drift"]), "c0": world["c0"], "c1": world["c1"]}
    return parse(
        {
            "cluster": {"gpus": world["gpus"]},
            "models": {
                "static": {"profile": {"alpha": "0.5ms", "beta": "3ms"}, "slo": "30ms"},
                "dynamic": {"profile": {"dynamic": dynamic}, "slo": world["slo"]},
            },
            "policy": {"name": "orloj", **policy},
            "workload": {
                "arrivals": "gamma",
                "shape": world["shape"],
                "rate": {"static": f"{world['rate'] / 4}/s", "dynamic": f"{world['rate'] * 3 / 4}/s"},
                "duration": "300ms",
            },
            "network": {name: world[name] for name in ("control", "data", "response")},
            "profiling": {name: world[name] for name in ("share", "delay", "history")},
            "seed": world["seed"],
        }
    )


@pytest.mark.thorough
@given(policy=parameters, world=worlds)
@settings(max_examples=100)
def test_the_twin_agrees_in_any_world(policy: dict[str, Any], world: dict[str, Any]) -> None:
    both(scenario(policy, world))


@pytest.mark.parametrize("members", ["mixture", "own"])
@pytest.mark.parametrize("order", ["earliest", "latest"])
def test_a_busy_run_has_everything_to_disagree_about(members: str, order: str) -> None:
    """Parity on runs in which nothing is dropped, late or learnt would say little."""
    policy = {"members": members, "order": order, "refresh": "20ms", "window": "100ms"}
    record = both(scenario(policy, BUSY))
    assert set(record.requests.outcome.tolist()) == {1, 2, 3}
    assert len(set(record.batches.size.tolist())) > 3
    untaught = both(scenario(policy, {**BUSY, "share": 0.0}))
    assert not np.array_equal(record.requests.outcome, untaught.requests.outcome)


def test_the_base_of_time_moves_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """b t must not grow beyond what exp can take, however long requests wait."""
    forgotten = []
    forget = BatchQueues.forget
    monkeypatch.setattr(BatchQueues, "forget", lambda queues: forgotten.append(1) or forget(queues))  # type: ignore[func-returns-value]
    policy = {"b": 10.0, "refresh": "1h"}
    both(scenario(policy, {**BUSY, "slo": "400ms", "history": 50}))
    assert len(forgotten) > 2 * 5  # at the start, and with each move, in both models


def test_the_twin_agrees_on_arrivals_at_one_instant(tmp_path: Path) -> None:
    """With many equal deadlines, and so many equal points."""
    trace = tmp_path / "trace.csv"
    rows = [f"{10 * (i // 40)},{'ab'[i % 3 % 2]}" for i in range(400)]
    trace.write_text("\n".join(["time_ms,model", *rows]) + "\n")
    dynamic = {"applications": applications(drift=False), "c1": 0.2}
    case = parse(
        {
            "cluster": {"gpus": 3},
            "models": {
                "b": {"profile": {"dynamic": dynamic}, "slo": "60ms"},
                "a": {"profile": {"alpha": "1ms", "beta": "4ms"}, "slo": "30ms"},
            },
            "policy": {"name": "orloj", "refresh": "5ms"},
            "workload": {"arrivals": "trace", "file": str(trace)},
            "profiling": {"delay": "3ms", "history": 20},
        }
    )
    assert len(set(both(case).batches.size.tolist())) > 2


def test_decisions_can_be_timed() -> None:
    """Each instant at which something was dispatched is there once, with what deciding took."""
    columns = timed_columns(scenario({}, BUSY))
    np.testing.assert_array_equal(columns["decision_at"], np.unique(columns["batch_dispatched"]))
    assert (columns["decision_ns"] > 0).all()
