"""The native twin decides exactly as the Python reference: request by request, batch by batch."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.errors import InputError
from astrarium.core.level import Watching
from astrarium.serving.level import run
from astrarium.serving.policies import serving_policies
from astrarium.serving.record import ServingRecord
from astrarium.serving.scenario import Scenario, build, load, parse
from astrarium.serving.twin import simulation
from astrarium.serving.twin.native import has_twin
from tests.support.paths import ROOT

EXAMPLES = sorted(
    path
    for path in (ROOT / "examples").glob("*.yaml")
    if path.stem != "jobs" and path.stem != "plan"  # its models run only where a plan puts them
)
TWINS = [name for name, policy in serving_policies if getattr(policy, "native", "")]
FAST = {"profile": {"alpha": "0.3ms", "beta": "4ms"}, "slo": "20ms"}
SLOW = {"profile": {"alpha": "5ms", "beta": "2ms"}, "slo": "60ms"}


def assert_same(reference: ServingRecord, twin: ServingRecord) -> None:
    assert (reference.engine, twin.engine) == ("python", "native")
    for field in fields(reference.batches):
        ours = getattr(reference.batches, field.name)
        theirs = getattr(twin.batches, field.name)
        np.testing.assert_array_equal(ours, theirs, err_msg=f"batches.{field.name}")
    for field in fields(reference.requests):
        ours = getattr(reference.requests, field.name)
        theirs = getattr(twin.requests, field.name)
        if field.name == "reason":  # the codes are each engine's own
            ours = np.array(reference.reasons)[ours]
            theirs = np.array(twin.reasons)[theirs]
        np.testing.assert_array_equal(ours, theirs, err_msg=f"requests.{field.name}")


def shortened(scenario: Scenario) -> Scenario:
    """At most a few thousand requests of it."""
    if scenario.workload.arrivals == "trace":
        return scenario
    raw = {"seconds": min(scenario.duration / 1e9, 3000 / scenario.total_rate)}
    import msgspec

    from astrarium.core.quantities import Duration

    workload = msgspec.structs.replace(
        scenario.workload, duration=Duration(int(raw["seconds"] * 1e9)), warmup=Duration(0), changes=()
    )
    return msgspec.structs.replace(scenario, workload=workload)


def test_there_are_twins() -> None:
    assert {"deferred", "eager", "timeout"} <= set(TWINS)


@pytest.mark.parametrize("policy", TWINS)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_twin_agrees_on_every_example(path: Path, policy: str) -> None:
    scenario = shortened(load(path)).with_policy(policy)
    if not has_twin(build.policy(scenario, build.setup(scenario))):
        assert (policy, scenario.dynamic) == ("astrarium", True)
        pytest.skip("its twin knows static models only")
    assert_same(run(scenario, "python"), run(scenario, "native"))


@pytest.mark.parametrize("policy", ["deferred", "eager", "timeout"])
def test_the_twin_agrees_with_fcfs(policy: str) -> None:
    scenario = shortened(load(EXAMPLES[0])).with_policy(policy, gather="fcfs")
    assert_same(run(scenario, "python"), run(scenario, "native"))


cases = st.fixed_dictionaries(
    {
        "gpus": st.integers(1, 5),
        "fast": st.integers(1, 3),
        "slow": st.integers(1, 2),
        "rate": st.integers(50, 4000),
        "shape": st.sampled_from([0.1, 0.5, 1.0]),
        "control": st.sampled_from(["0ms", "0.1ms", "1ms"]),
        "data": st.sampled_from(["0ms", "50us"]),
        "response": st.sampled_from(["0ms", "2ms"]),
        "cost": st.sampled_from(["0ms", "1ms"]),
        "seed": st.integers(0, 1000),
    }
)


@pytest.mark.parametrize("policy", TWINS)
@given(case=cases)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_the_twin_agrees_on_random_scenarios(policy: str, case: dict[str, Any]) -> None:
    scenario = parse(
        {
            "cluster": {"gpus": case["gpus"]},
            "models": {"fast": {**FAST, "copies": case["fast"]}, "slow": {**SLOW, "copies": case["slow"]}},
            "policy": {"name": policy},
            "workload": {
                "arrivals": "gamma",
                "shape": case["shape"],
                "rate": f"{case['rate']}/s",
                "duration": "300ms",
            },
            "network": {name: case[name] for name in ("control", "data", "response")},
            "preemption": {"cost": case["cost"]},
            "seed": case["seed"],
        }
    )
    assert_same(run(scenario, "python"), run(scenario, "native"))


def test_a_lost_run_stops_early_but_not_before_it_is_lost() -> None:
    scenario = shortened(load(EXAMPLES[0]).with_policy("deferred")).with_rate(9000)
    setup = build.setup(scenario)
    policy = build.policy(scenario, setup)
    arrivals = build.arrivals(scenario)
    exact = simulation.worst_bad(scenario, setup, policy, arrivals, allowed=1.0)
    for allowed in (0.0, exact / 2, exact):
        bad = simulation.worst_bad(scenario, setup, policy, arrivals, allowed)
        assert (bad > allowed) == (exact > allowed)
        assert bad <= exact


def test_progress_moves_forward_and_may_stop_the_run() -> None:
    scenario = load(EXAMPLES[0]).with_policy("deferred")
    instants: list[int] = []
    run(scenario, "native", progress=instants.append)
    assert instants
    assert instants == sorted(instants)
    assert 0 < instants[0] <= instants[-1] <= scenario.duration

    def stop(now: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(scenario, "native", progress=stop)


def test_columns_that_do_not_fit_are_refused() -> None:
    import astrarium._simulator as _simulator

    times = np.arange(3, dtype=np.int64)
    setup = _simulator.Setup([_simulator.Model(100, [0, 10, 1 << 60])], 1, _simulator.Network(0, 0, 0), 0)
    truth = _simulator.Truth([0], [[[0, 10, 1 << 60]]], [0], [0], [0.0])
    parameters = _simulator.Parameters("eager", {"fcfs": 0}, {}, {})

    def simulate(models: list[int], deadlines: int = 3, limits: tuple[int, ...] = ()) -> None:
        model = np.array(models, np.int32)
        deadline = times[:deadlines] + 100
        _simulator.simulate_serving(setup, truth, parameters, times, deadline, model, times, 0, limits)

    simulate([0, 0, 0])
    with pytest.raises(ValueError, match="same length"):
        simulate([0, 0, 0], deadlines=2)
    with pytest.raises(ValueError, match="request 1: model 1: must be from 0 to 0"):
        simulate([0, 1, 0])
    with pytest.raises(ValueError, match="bad_limits"):
        simulate([0, 0, 0], limits=(1, 2))
    parameters = _simulator.Parameters("timeout", {"fcfs": 0}, {}, {"timeouts": []})
    with pytest.raises(ValueError, match="timeouts must have one number for each model"):
        simulate([0, 0, 0])
    truth = _simulator.Truth([], [[[0, 10, 1 << 60]]], [0], [0], [0.0])
    with pytest.raises(ValueError, match="kind_of_gpu: one for each GPU"):
        simulate([0, 0, 0])


def test_asking_for_a_twin_that_is_not_there_says_so() -> None:
    scenario = load(EXAMPLES[0]).with_policy("deferred")
    with pytest.raises(InputError, match="one of auto, python, native"):
        run(scenario, "rust")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="records traces"):
        run(scenario, "native", watching=Watching(trace=lambda step: None))
