"""The native twins of policies that know lengths decide as their references."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.serving.policies.astrarium import Astrarium
from astrarium.serving.scenario import Scenario, parse
from tests.serving.test_twin_astrarium import counted_forms
from tests.serving.test_twin_rivals import both

BUCKETS = (16, 64, 256, 512)
worlds = st.fixed_dictionaries(
    {
        "gpus": st.integers(1, 6),
        "load": st.sampled_from([0.3, 0.8, 1.0, 1.5]),  # of what the GPUs do with texts of 64 tokens
        "shape": st.sampled_from([0.1, 1.0, 20.0]),
        "slo": st.sampled_from([4, 12, 50]),
        "flat": st.sampled_from([16, 512, 4096]),
        "together": st.sampled_from(["padded", "padded", "bucket", "length"]),
        "lines": st.sampled_from(["grouped", "grouped", "application", "model"]),
        "lookahead": st.sampled_from([True, True, False]),
        "control": st.sampled_from(["0ms", "0.3ms"]),
        "seed": st.integers(0, 1000),
    }
)
triggers = st.fixed_dictionaries(
    {"trigger": st.sampled_from(["hungry", "lazy"]), "timeout": st.sampled_from(["1ms", "20%"])}
)
BUSY: dict[str, Any] = {
    "gpus": 2,
    "load": 1.0,
    "shape": 0.3,
    "slo": 12,
    "flat": 512,
    "together": "padded",
    "lines": "grouped",
    "lookahead": True,
    "control": "0ms",
    "seed": 1,
}


def ours(world: dict[str, Any]) -> dict[str, Any]:
    return {"name": "astrarium", "lines": world["lines"], "lookahead": world["lookahead"]}


def scenario(policy: dict[str, Any], world: dict[str, Any], duration: float = 0.8) -> Scenario:
    """Two models, one of which has lengths; batches cost a launch, and tokens beyond so many."""
    surface = {
        length: {size: f"{1 + max(0, size * length - world['flat']) / 2000:.3f}ms" for size in (1, 4, 16)}
        for length in BUCKETS
    }
    rate = world["gpus"] * world["load"] * 16 / (1 + max(0, 16 * 64 - world["flat"]) / 2000) * 400
    texts = {
        "slo": f"{world['slo']}ms",
        "max_batch": 16,
        "profile": {"rounded": True, "together": world["together"], "lengths": surface},
    }
    return parse(
        {
            "seed": world["seed"],
            "cluster": {"gpus": world["gpus"]},
            "network": {"control": world["control"]},
            "models": {"texts": texts, "other": {"slo": "20ms", "profile": {"alpha": "1ms", "beta": "2ms"}}},
            "workload": {
                "arrivals": "gamma",
                "shape": world["shape"],
                "rate": f"{rate:.0f}/s",
                "duration": f"{duration}s",
                "lengths": {"weights": {12: 5, 16: 2, 60: 3, 200: 2, 500: 1}},
            },
            "policy": policy,
        }
    )


@pytest.mark.thorough
@given(world=worlds)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_ours_agrees_in_any_world(world: dict[str, Any]) -> None:
    both(scenario(ours(world), world, duration=0.4))


@pytest.mark.thorough
@given(trigger=triggers, world=worlds)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_turbo_agrees_in_any_world(trigger: dict[str, Any], world: dict[str, Any]) -> None:
    both(scenario({"name": "turbo", **trigger}, world, duration=0.4))


CHANGES: list[dict[str, Any]] = [
    {},
    {"lookahead": False},
    {"lines": "model"},
    {"lines": "application"},
    {"together": "bucket"},
    {"together": "length"},
    {"slo": 4, "flat": 4096},
    {"control": "0.3ms"},
]


@pytest.mark.parametrize("changes", CHANGES)
def test_a_busy_run_has_everything_to_decide(changes: dict[str, Any]) -> None:
    world = {**BUSY, **changes}
    record = both(scenario(ours(world), world))
    assert {1, 3} <= set(record.requests.outcome.tolist())
    assert len(set(record.batches.size.tolist())) > 3


@pytest.mark.parametrize("trigger", ["hungry", "lazy"])
@pytest.mark.parametrize("together", ["padded", "bucket", "length"])
def test_a_busy_run_of_turbo_has_everything_to_cut(trigger: str, together: str) -> None:
    record = both(scenario({"name": "turbo", "trigger": trigger}, {**BUSY, "together": together}))
    assert {1, 2, 3} <= set(record.requests.outcome.tolist())
    assert len(set(record.batches.size.tolist())) > 3


def test_queues_are_formed_anew_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Astrarium.Parameters().lines == "grouped"
    formed = counted_forms(monkeypatch)
    both(scenario(ours(BUSY), {**BUSY, "flat": 4096}))
    assert len(formed) > 1
