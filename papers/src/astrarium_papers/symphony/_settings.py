"""Models and systems that several of Symphony's tables and figures use."""

from __future__ import annotations

from typing import Any

from astrarium.serving.goodput import Goodput, search
from astrarium.serving.scenario import Scenario, parse
from astrarium_papers.findings import Effort

# Table 2: one model on 8 GPUs.
RESNET50 = {"profile": {"alpha": "1.053ms", "beta": "5.072ms"}, "slo": "25ms"}
INCEPTION_RESNET_V2 = {"profile": {"alpha": "5.090ms", "beta": "18.368ms"}, "slo": "70ms"}
TABLE2 = {"ResNet50": RESNET50, "InceptionResNetV2": INCEPTION_RESNET_V2}

# What the authors' scheduler allows for by default. Our own numbers are without, unless a row says so.
DELAYS = {"control": "100us", "data": "50us", "response": "2ms"}

# The systems of the evaluation, by the names the paper gives them.
SYMPHONY: dict[str, Any] = {"name": "deferred"}
SYSTEMS: dict[str, dict[str, Any]] = {
    "Symphony": SYMPHONY,
    "Clockwork": {"name": "clockwork"},
    "Nexus": {"name": "nexus"},
    "Shepherd": {"name": "shepherd"},
}

# The authors' Shepherd looks for expired requests at the wrong end of its queues, so that one of them blocks
# its model. Our own numbers are without that fault; beside them stand those with it.
FAULTY_SHEPHERD: dict[str, Any] = {"name": "shepherd", "purge": "tail"}
WITH_FAULT = "with the fault in the authors' Shepherd, whose queues an expired request can block"


def scenario(
    models: Any,
    gpus: int,
    policy: dict[str, Any],
    duration_s: float,
    rate: float = 1000,
    warmup_s: float = 2,
    **workload: Any,
) -> Scenario:
    """Return a scenario. *duration_s* are measured, after the warm-up; the network has no delay unless told
    otherwise."""
    network = workload.pop("network", {})
    raw = {
        "cluster": {"gpus": gpus},
        "models": models,
        "policy": policy,
        "workload": {
            "arrivals": "poisson",
            "rate": f"{rate}/s",
            "duration": f"{duration_s + warmup_s:.9g}s",
            "warmup": f"{warmup_s:.9g}s",
            **workload,
        },
        "network": network,
        "seed": 1,
    }
    return parse(raw)


def goodput(
    case: Scenario,
    effort: Effort,
    label: str = "",
    seeds: int | None = None,
    tolerance: float | None = None,
) -> Goodput:
    effort.say(label or f"goodput of {case.policy.name}")
    tolerance = tolerance or effort.pick(0.02, 0.003)
    return search(case, seeds=seeds or effort.pick(1, 3), tolerance=tolerance, jobs=effort.jobs)
