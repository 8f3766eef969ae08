"""Every registered serving policy passes the suite that ships with the package.

A new file in `serving/policies/` is picked up by itself. What a policy does not promise stands here.
"""

from __future__ import annotations

from typing import Any

from astrarium.serving.registry import ServingPolicy, parameters_of, serving_policies
from astrarium.serving.setup import Setup
from astrarium.testing.serving import ServingPolicyConformance

# Clipper keeps queues per replica and answers whatever it has accepted, in time or not.
PROMISES: dict[str, dict[str, Any]] = {
    "clipper": {"drops_hopeless": False},
}
# Parameters other than the defaults that deserve the whole suite, with what they promise on top.
VARIANTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("deferred", {"gather": "fcfs"}, {"scales": True}),
    ("eager", {"gather": "fcfs"}, {"scales": True}),
    ("timeout", {"gather": "fcfs", "timeout": "20%"}, {"scales": True}),
    ("clockwork", {"sizes": "powers_of_two"}, {}),
    ("orloj", {"batch_sizes": (1, 3, 8), "b": 0.1, "members": "own", "order": "latest"}, {}),
    ("clockwork", {"window": "1ms"}, {}),
]


def suite_for(name: str, parameters: dict[str, Any], promises: dict[str, Any]) -> type:
    factory = serving_policies.get(name)

    def make(self: ServingPolicyConformance, setup: Setup) -> ServingPolicy:
        return factory(setup, parameters_of(factory)(**parameters))

    label = "".join(part.title() for part in [name, *map(str, parameters.values())])
    title = "Test" + "".join(letter for letter in label if letter.isalnum())
    return type(title, (ServingPolicyConformance,), {**PROMISES.get(name, {}), **promises, "make": make})


_CHOICES = [(name, {}, {}) for name in serving_policies.names()] + VARIANTS
globals().update({suite.__name__: suite for suite in (suite_for(*choice) for choice in _CHOICES)})


def test_every_registered_policy_has_a_suite() -> None:
    suites = {name.lower() for name in globals() if name.startswith("Test")}
    assert {f"test{name}".replace("_", "") for name in serving_policies.names()} <= suites
