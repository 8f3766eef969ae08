"""Models and systems that several of Symphony's tables and figures use."""

from __future__ import annotations

from typing import Any

from astrarium.experiments.goodput import Goodput, search
from astrarium.reproduce.findings import Effort
from astrarium.scenario import Scenario, parse

# Table 2: one model on 8 GPUs.
RESNET50 = {"profile": {"alpha": "1.053ms", "beta": "5.072ms"}, "slo": "25ms"}
INCEPTION_RESNET_V2 = {"profile": {"alpha": "5.090ms", "beta": "18.368ms"}, "slo": "70ms"}
TABLE2 = {"ResNet50": RESNET50, "InceptionResNetV2": INCEPTION_RESNET_V2}

# The systems of the evaluation, by the names the paper gives them.
SYMPHONY: dict[str, Any] = {"name": "deferred"}
SYSTEMS: dict[str, dict[str, Any]] = {
    "Symphony": SYMPHONY,
    "Clockwork": {"name": "clockwork"},
    "Nexus": {"name": "nexus"},
    "Shepherd": {"name": "shepherd"},
}


def scenario(
    models: Any, gpus: int, policy: dict[str, Any], duration_s: float, rate: float = 1000, **workload: Any
) -> Scenario:
    """A scenario with two seconds of warm-up at zero network delay, unless told otherwise."""
    network = workload.pop("network", {})
    raw = {
        "cluster": {"gpus": gpus},
        "models": models,
        "policy": policy,
        "workload": {
            "arrivals": "poisson",
            "rate": f"{rate}/s",
            "duration": f"{duration_s + 2}s",
            "warmup": "2s",
            **workload,
        },
        "network": network,
        "seed": 1,
    }
    return parse(raw)


def goodput(case: Scenario, effort: Effort, label: str = "", seeds: int | None = None) -> Goodput:
    effort.say(label or f"goodput of {case.policy.name}")
    tolerance = effort.pick(0.02, 0.003)
    return search(case, seeds=seeds or effort.pick(1, 3), tolerance=tolerance, jobs=effort.jobs)
