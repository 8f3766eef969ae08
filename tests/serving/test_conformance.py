"""Every registered serving policy passes the suite that ships with the package.

A new file in `serving/policies/` is picked up by itself. What a policy does not promise stands here.
Policies that learn pass it once more where every model is dynamic.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from astrarium.core.choice import parameters_of
from astrarium.run.simulate import World
from astrarium.serving.contract import Action, DynamicSpec, Event, ModelSpec, Request, RequestProfiled, Setup
from astrarium.serving.policies import LengthsAside, serving_policies
from astrarium.serving.state import Batch, ServingState
from astrarium.serving.twin.live import faster
from astrarium.serving.world import Profiler, ServingWorld
from astrarium.testing.played import Played
from astrarium.testing.serving import ServingPolicyConformance
from astrarium.testing.serving.cases import Case, crowd
from tests.support.conformance import Choice, suites
from tests.support.live_fakes import NATIVE

# Clipper keeps queues per replica and answers whatever it has accepted, in time or not; turbo knows no
# deadlines once its queue is cut.
PROMISES: dict[str, dict[str, Any]] = {
    "clipper": {"drops_hopeless": False},
    "turbo": {"drops_hopeless": False, "scales": True},
}
# Parameters other than the defaults that deserve the whole suite, with what they promise on top.
VARIANTS: list[Choice] = [
    ("deferred", {"gather": "fcfs"}, {"scales": True}),
    ("eager", {"gather": "fcfs"}, {"scales": True}),
    ("timeout", {"gather": "fcfs", "timeout": "20%"}, {"scales": True}),
    ("clockwork", {"sizes": "powers_of_two"}, {}),
    ("orloj", {"batch_sizes": (1, 3, 8), "b": 0.1, "members": "own", "order": "latest"}, {}),
    ("clockwork", {"window": "1ms"}, {}),
    ("turbo", {"trigger": "lazy"}, {}),
    ("astrarium", {"lookahead": False}, {}),
    ("astrarium", {"patience": 0.5}, {}),
]
DYNAMIC: list[Choice] = [
    ("astrarium", {"lines": "grouped"}, {}),
    ("astrarium", {"lines": "application"}, {}),
    ("orloj", {"members": "own"}, {}),
]

# Of the longest that a single request of each application takes: times of short, mixed and long ones.
SHARES = (tuple(range(10, 21)), tuple(range(10, 101, 9)), tuple(range(80, 101, 2)))


def learnt(model: ModelSpec) -> ModelSpec:
    """The model with three applications, none of which ever takes longer than its table says of a batch."""
    slope = model.latency[2] - model.latency[1] if model.max_batch > 1 else model.latency[1] // 2
    longest = 10 * slope
    c0 = model.latency[1] - slope
    history = tuple(tuple(longest * share // 100 for share in shares) for shares in SHARES)
    return msgspec.structs.replace(model, dynamic=DynamicSpec(c0, 0.1, history))


def single(setup: Setup, request: Request) -> int:
    known = setup.models[request.model].dynamic
    assert known is not None
    times = known.history[request.application]
    return times[request.id % len(times)]


class PaddedTruth:
    """A batch takes as long as its longest member makes it."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def execution(self, batch: Batch) -> int:
        known = self._setup.models[batch.model].dynamic
        assert known is not None
        longest = max(single(self._setup, request) for request in batch.requests)
        return known.c0 + longest * len(batch.requests) // 10


def dynamic(case: Case) -> Case:
    """The case with requests of three applications in turn."""
    setup = msgspec.structs.replace(case.setup, models=tuple(map(learnt, case.setup.models)))
    requests = [msgspec.structs.replace(one, application=one.id % len(SHARES)) for one in case.requests]
    return replace(case, setup=setup, requests=tuple(requests), truth=case.truth or PaddedTruth(setup))


class DynamicConformance(ServingPolicyConformance):
    """Every other request is profiled."""

    drops_hopeless = False  # times are not known exactly

    def play(self, case: Case, *more: Any, **options: Any) -> Played[Case, ServingState]:
        return super().play(dynamic(case), *more, **options)

    def make_world(self, case: Case) -> World[Action, Event, ServingState]:
        chosen = [request.id % 2 == 0 for request in case.requests]
        work = [single(case.setup, request) for request in case.requests]
        return ServingWorld(case.setup, case.exact, Profiler(chosen, work, delay=3_000_000))

    def test_it_hears_of_profiled_requests(self) -> None:
        steps = self.observe(crowd(2, 2, 60)).steps
        assert any(isinstance(event, RequestProfiled) for step in steps for event in step.events)


def promised(name: str) -> dict[str, Any]:
    knows_lengths = not issubclass(parameters_of(serving_policies.get(name)), LengthsAside)
    return {"knows_lengths": knows_lengths, **PROMISES.get(name, {})}


class TwinConformance(ServingPolicyConformance):
    """The native twin decides."""

    def make(self, *told: Any) -> Any:
        return faster(super().make(*told), *told)


_CHOICES: list[Choice] = [
    *((name, {}, promised(name)) for name in serving_policies.names()),
    *((name, parameters, {**promised(name), **more}) for name, parameters, more in VARIANTS),
]
_TWINS: list[Choice] = [(name, {}, promised(name)) for name in NATIVE]
globals().update(suites(ServingPolicyConformance, _CHOICES))
globals().update({f"{title}Twin": suite for title, suite in suites(TwinConformance, _TWINS).items()})
globals().update({f"{title}Dynamic": suite for title, suite in suites(DynamicConformance, DYNAMIC).items()})


def test_every_registered_policy_has_a_suite() -> None:
    suites = {name.lower() for name in globals() if name.startswith("Test")}
    assert {f"test{name}".replace("_", "") for name in serving_policies.names()} <= suites
