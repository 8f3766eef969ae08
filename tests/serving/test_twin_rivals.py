"""The native twins of Symphony's rivals decide as their references whatever their parameters say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.serving.level import run
from astrarium.serving.record import ServingRecord
from astrarium.serving.scenario import Scenario, parse
from tests.serving.test_twin import assert_same

CHOICES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "clipper": st.fixed_dictionaries(
        {
            "increase": st.sampled_from([0.3, 1.0, 2.5]),
            "decrease": st.sampled_from([0.1, 0.9]),
            "objective": st.sampled_from([0.2, 0.5, 1.0]),
            "latency": st.sampled_from(["execution", "total"]),
        }
    ),
    "clockwork": st.fixed_dictionaries(
        {
            "ahead": st.sampled_from(["0ms", "1ms", "10ms", "40ms"]),
            "buffer": st.sampled_from(["0ms", "5ms"]),
            "sizes": st.sampled_from(["all", "powers_of_two"]),
            "window": st.sampled_from(["forever", "0ms", "10ms"]),
        }
    ),
    "nexus": st.fixed_dictionaries(
        {
            "epoch": st.sampled_from(["7ms", "50ms", "10s"]),
            "reserve": st.sampled_from(["0ms", "2ms"]),
            "frontends": st.sampled_from([1, 3, 8]),
            "spread": st.booleans(),
        }
    ),
    "shepherd": st.fixed_dictionaries(
        {
            "preemption": st.sampled_from([1.1, 1.5, 3.0]),
            "preempt": st.booleans(),
            "purge": st.sampled_from(["head", "tail"]),
        }
    ),
    "turbo": st.fixed_dictionaries(
        {"trigger": st.sampled_from(["hungry", "lazy"]), "timeout": st.sampled_from(["5ms", "30%"])}
    ),
}

cases = st.fixed_dictionaries(
    {
        "gpus": st.integers(1, 12),
        "fast": st.integers(1, 9),
        "rate": st.integers(50, 6000),
        "shape": st.sampled_from([0.05, 0.3, 1.0]),
        "control": st.sampled_from(["0ms", "1ms"]),
        "data": st.sampled_from(["0ms", "50us"]),
        "response": st.sampled_from(["0ms", "2ms"]),
        "cost": st.sampled_from(["0ms", "1ms", "9ms"]),
        "estimate": st.sampled_from(["p50", "p99", "mean_request"]),
        "seed": st.integers(0, 1000),
    }
)


def scenario(policy: dict[str, Any], case: dict[str, Any]) -> Scenario:
    """Three kinds of model; the dynamic one overruns its estimate now and then, or (p50) often."""
    fast = {"profile": {"alpha": "0.3ms", "beta": "4ms"}, "slo": "20ms", "copies": case["fast"]}
    slow = {"profile": {"alpha": "5ms", "beta": "2ms"}, "slo": "60ms"}
    times = {"lognormal": {"median": "3ms", "sigma": 0.5}}
    dynamic = {"applications": {"only": {"time": times}}, "c1": 0.4, "estimate": case["estimate"]}
    return parse(
        {
            "cluster": {"gpus": case["gpus"]},
            "models": {
                "slow": slow,
                "fast": fast,
                "dynamic": {"profile": {"dynamic": dynamic}, "slo": "50ms"},
            },
            "policy": policy,
            "workload": {
                "arrivals": "gamma",
                "shape": case["shape"],
                "rate": f"{case['rate']}/s",
                "duration": "250ms",
            },
            "network": {name: case[name] for name in ("control", "data", "response")},
            "preemption": {"cost": case["cost"]},
            "seed": case["seed"],
        }
    )


def both(scenario: Scenario) -> ServingRecord:
    reference = run(scenario, "python")
    twin = run(scenario, "native")
    assert_same(reference, twin)
    return reference


@pytest.mark.thorough
@pytest.mark.parametrize("policy", sorted(CHOICES))
@given(data=st.data(), case=cases)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_twin_agrees_with_any_parameters(policy: str, data: st.DataObject, case: dict[str, Any]) -> None:
    chosen = data.draw(CHOICES[policy])
    both(scenario({"name": policy, **chosen}, case))


BUSY = {
    "gpus": 4,
    "fast": 3,
    "rate": 3000,
    "shape": 0.3,
    "control": "0ms",
    "data": "0ms",
    "response": "0ms",
    "cost": "1ms",
    "estimate": "p50",
    "seed": 1,
}


@pytest.mark.parametrize("policy", sorted(CHOICES))
def test_a_busy_run_has_everything_to_disagree_about(policy: str) -> None:
    """Parity on runs in which nothing is dropped, late or preempted would say little."""
    record = both(scenario({"name": policy}, BUSY))
    outcomes = set(record.requests.outcome.tolist())
    fates = set(record.batches.fate.tolist())
    assert outcomes == {1, 2, 3}
    assert fates == ({1, 2} if policy == "shepherd" else {1})
    assert len(set(record.batches.size.tolist())) > 3


@pytest.mark.parametrize("policy", sorted(CHOICES))
def test_the_twin_agrees_on_arrivals_at_one_instant(policy: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"{10 * (i // 40)},{'ab'[i % 3 % 2]}" for i in range(400)]
    trace.write_text("\n".join(["time_ms,model", *rows]) + "\n")
    model = {"profile": {"alpha": "1ms", "beta": "4ms"}, "slo": "30ms"}
    both(
        parse(
            {
                "cluster": {"gpus": 3},
                "models": {"b": model, "a": model},
                "policy": {"name": policy},
                "workload": {"arrivals": "trace", "file": str(trace)},
            }
        )
    )
