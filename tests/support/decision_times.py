"""How long each decision of a native policy takes, measured inside native code."""

from __future__ import annotations

from typing import Any

import astrarium._simulator as _simulator
import astrarium._testing as _testing
from astrarium.serving.scenario import Scenario, build
from astrarium.serving.twin.native import native_setup
from astrarium.serving.twin.simulation import truth_for


def timed_columns(scenario: Scenario) -> Any:
    """Return a run's columns, with `decision_at` and `decision_ns` of each decision that dispatched."""
    setup = build.setup(scenario)
    arrivals = build.arrivals(scenario)
    policy: Any = build.policy(scenario, setup)
    return _testing.simulate_timed(
        native_setup(_simulator, setup),
        truth_for(_simulator, scenario, setup),
        _simulator.Parameters(policy.native, *policy.native_parameters()),
        arrivals.time,
        build.deadlines(arrivals, setup),
        arrivals.model,
        arrivals.work,
        arrivals.application,
        arrivals.profiled,
        scenario.profiling.delay,
    )
