"""Scenarios that must be learnt, and a way to run a variant of Orloj in them. Shared by its tests."""

from __future__ import annotations

from typing import Any

from astrarium.core.engine import Engine
from astrarium.core.trace import Step
from astrarium.run.simulate import simulate
from astrarium.serving.level import events
from astrarium.serving.policies.orloj import Orloj
from astrarium.serving.scenario import Scenario, build, parse
from astrarium.serving.state import ServingState
from astrarium.serving.world import ServingWorld

SHORT = {"share": 2 / 3, "time": {"normal": {"mean": "8ms", "std": "1ms"}}}
LONG = {"share": 1 / 3, "time": {"modes": [{"mean": "20ms", "std": "2ms"}, {"mean": "45ms", "std": "4ms"}]}}


def scenario(seed: int = 1, rate: float = 90, slo: float = 150, **changed: Any) -> Scenario:
    applications = {"short": {**SHORT, **changed.pop("short", {})}, "long": LONG}
    dynamic = {"applications": applications, "c0": "3ms", "c1": 0.3, "estimate": "mean"}
    return parse(
        {
            "cluster": {"gpus": changed.pop("gpus", 1)},
            "models": {
                "talk": {"profile": {"dynamic": dynamic}, "slo": f"{slo}ms"},
                "plain": {"profile": {"alpha": "1ms", "beta": "4ms"}, "slo": f"{slo / 2}ms"},
            },
            "policy": {"name": "orloj", **changed.pop("policy", {})},
            "workload": {
                "arrivals": "gamma",
                "shape": 0.5,
                "rate": {"talk": f"{rate}/s", "plain": f"{rate / 3}/s"},
                "duration": changed.pop("duration", "6s"),
            },
            "seed": seed,
            **changed,
        }
    )


def played(case: Scenario, kind: type[Orloj] = Orloj) -> tuple[Any, ServingState, list[Step]]:
    """A run with a variant of the policy, every step of it kept."""
    setup = build.setup(case)
    arrivals = build.arrivals(case)
    steps = list[Step]()
    chosen: Any = build.policy(case, setup)
    policy = kind(setup, chosen.parameters)
    truth = build.truth(case, setup, arrivals)
    profiler = build.profiler(case, arrivals, policy)
    state = ServingState(setup)
    engine: Engine[Any, Any, Any] = Engine(state, policy, validate=True, record=steps.append)
    simulate(engine, events(arrivals, setup), ServingWorld(setup, truth, profiler))
    return policy, state, steps
