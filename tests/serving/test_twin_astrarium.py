"""The native twin of our own policy decides as its reference, learning included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.serving.level import run
from astrarium.serving.policies.astrarium import Astrarium
from astrarium.serving.policies.astrarium.groups import Groups
from astrarium.serving.scenario import Scenario, load, parse
from tests.serving.test_twin_orloj import BUSY as ORLOJ_BUSY
from tests.serving.test_twin_orloj import scenario as orloj_scenario
from tests.serving.test_twin_orloj import worlds as dynamic_worlds
from tests.serving.test_twin_rivals import both
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"

parameters = st.fixed_dictionaries(
    {
        "prefer": st.sampled_from(["latency", "latency", "few-gpus"]),
        "patience": st.sampled_from([None, None, 0.0, 0.3, 1.0]),
        "lookahead": st.sampled_from([True, True, False]),
    }
)
worlds = st.fixed_dictionaries(
    {
        "gpus": st.integers(1, 12),
        "fast": st.integers(1, 8),
        "load": st.sampled_from([0.2, 0.7, 1.0, 1.4, 3.0]),  # of what the GPUs do in batches of eight
        "shape": st.sampled_from([0.05, 0.3, 1.0, 20.0]),
        "slo": st.sampled_from([12, 25, 100]),
        "single": st.booleans(),
        "control": st.sampled_from(["0ms", "0.3ms", "2ms"]),
        "data": st.sampled_from(["0ms", "50us"]),
        "response": st.sampled_from(["0ms", "2ms"]),
        "seed": st.integers(0, 1000),
    }
)
BUSY: dict[str, Any] = {
    "gpus": 4,
    "fast": 3,
    "load": 1.1,
    "shape": 0.3,
    "slo": 25,
    "single": False,
    "control": "0ms",
    "data": "0ms",
    "response": "0ms",
    "seed": 1,
}


def scenario(policy: dict[str, Any], world: dict[str, Any], duration: float = 0.6) -> Scenario:
    """About 0.6 s, so that rates are measured and stances change; one model may take no batches at all."""
    rate = world["load"] * world["gpus"] * 8 / (8 * 0.3 + 4) * 1000
    seconds = min(duration, 3000 / rate)
    return parse(
        {
            "cluster": {"gpus": world["gpus"]},
            "models": {
                "fast": {
                    "profile": {"alpha": "0.3ms", "beta": "4ms"},
                    "slo": f"{world['slo']}ms",
                    "copies": world["fast"],
                },
                "slow": {
                    "profile": {"alpha": "5ms", "beta": "2ms"},
                    "slo": "60ms",
                    "max_batch": 1 if world["single"] else 16,
                },
            },
            "policy": {"name": "astrarium", **policy},
            "workload": {
                "arrivals": "gamma",
                "shape": world["shape"],
                "rate": f"{rate}/s",
                "duration": f"{seconds}s",
            },
            "network": {name: world[name] for name in ("control", "data", "response")},
            "seed": world["seed"],
        }
    )


@given(policy=parameters, world=worlds)
@settings(max_examples=50)
def test_the_twin_agrees_in_any_world(policy: dict[str, Any], world: dict[str, Any]) -> None:
    both(scenario(policy, world))


@pytest.mark.parametrize("policy", [{}, {"prefer": "few-gpus"}, {"lookahead": False}, {"patience": 0.5}])
def test_a_busy_run_has_everything_to_disagree_about(policy: dict[str, Any]) -> None:
    """Parity on runs in which nobody is given up and no stance changes would say little."""
    record = both(scenario(policy, BUSY))
    reasons = {record.reasons[code] for code in record.requests.reason.tolist()}
    assert "sacrificed" in reasons
    assert policy.get("lookahead", True) <= ("expired" in reasons)  # else they are given up before
    assert len(set(record.batches.size.tolist())) > 5
    other = run(scenario({"patience": 1.0}, BUSY), "native")
    assert not np.array_equal(record.requests.done, other.requests.done)


@pytest.mark.parametrize("rate", [4000, 5400, 7500])
def test_the_twin_agrees_at_light_heavy_and_too_much_load(rate: float) -> None:
    """For longer than the window over which rates are measured would take to fill."""
    model = {"profile": {"alpha": "1.053ms", "beta": "5.072ms"}, "slo": "25ms", "max_batch": 18}
    both(
        parse(
            {
                "cluster": {"gpus": 8},
                "models": {"resnet50": model},
                "policy": {"name": "astrarium"},
                "workload": {"arrivals": "poisson", "rate": f"{rate}/s", "duration": "0.7s"},
            }
        )
    )


def test_the_twin_agrees_when_the_window_of_rates_has_passed() -> None:
    """More than five seconds, with a rate that changes on the way."""
    model = {"profile": {"alpha": "2ms", "beta": "8ms"}, "slo": "60ms"}
    changes = [{"at": "3s", "rate": "900/s"}, {"at": "5s", "rate": "20/s"}]
    workload = {"arrivals": "gamma", "shape": 0.5, "rate": "150/s", "duration": "9s", "changes": changes}
    both(
        parse(
            {
                "cluster": {"gpus": 2},
                "models": {"a": model, "b": {**model, "slo": "200ms"}},
                "policy": {"name": "astrarium"},
                "workload": workload,
            }
        )
    )


def test_the_twin_agrees_on_arrivals_at_one_instant(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"{10 * (i // 40)},{'ab'[i % 3 % 2]}" for i in range(400)]
    trace.write_text("\n".join(["time_ms,model", *rows]) + "\n")
    model = {"profile": {"alpha": "1ms", "beta": "4ms"}, "slo": "30ms"}
    raw = {
        "cluster": {"gpus": 3},
        "models": {"b": model, "a": model},
        "policy": {"name": "astrarium"},
        "workload": {"arrivals": "trace", "file": str(trace)},
    }
    assert len(set(both(parse(raw)).batches.size.tolist())) > 2


lessons = st.fixed_dictionaries(
    {
        "lines": st.sampled_from(["grouped", "grouped", "application", "model"]),
        "memory": st.sampled_from(["20ms", "150ms", "10s"]),
        "lookahead": st.sampled_from([True, True, False]),
        "patience": st.sampled_from([None, None, 0.3]),
    }
)


DYNAMIC = {**ORLOJ_BUSY, "rate": 2000}


def dynamic_scenario(policy: dict[str, Any], world: dict[str, Any]) -> Scenario:
    """Orloj's worlds, with models whose requests take unequal times and one whose requests do not."""
    return orloj_scenario({}, world).with_policy("astrarium", **policy)


@given(policy=lessons, world=dynamic_worlds)
@settings(max_examples=40)
def test_the_twin_agrees_where_requests_take_unequal_times(
    policy: dict[str, Any], world: dict[str, Any]
) -> None:
    both(dynamic_scenario(policy, world))


@pytest.mark.parametrize("lines", ["grouped", "application", "model"])
def test_a_busy_dynamic_run_has_everything_to_learn(lines: str) -> None:
    record = both(dynamic_scenario({"lines": lines, "memory": "100ms"}, DYNAMIC))
    assert {1, 3} <= set(record.requests.outcome.tolist())
    assert len(set(record.batches.size.tolist())) > 3
    untaught = both(dynamic_scenario({"lines": lines, "memory": "100ms"}, {**DYNAMIC, "share": 0.0}))
    assert not np.array_equal(record.requests.done, untaught.requests.done)


def test_lines_are_formed_anew_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    formed = counted_forms(monkeypatch)
    both(dynamic_scenario({"memory": "100ms"}, {**DYNAMIC, "slo": "400ms"}))
    assert len(formed) > 1


def counted_forms(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The models whose queues are formed, from now on."""
    formed: list[int] = []
    form = Astrarium._form

    def counted(self: Astrarium, model: int, groups: Groups) -> Sequence[int]:
        formed.append(model)
        return form(self, model, groups)

    monkeypatch.setattr(Astrarium, "_form", counted)
    return formed


def test_the_example_of_dynamic_models_runs_on_the_twin() -> None:
    served = load(EXAMPLES / "dynamic.yaml").with_policy("astrarium")
    assert run(served).engine == "native"
