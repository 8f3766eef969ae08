"""Every registered placement policy passes the suite that ships with the package.

A new file in `placement/policies/` is picked up by itself. What a policy does not promise stands
here. iGniter passes it once more where every model has its coefficients.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest

from astrarium.core.errors import BrokenBooks, InputError
from astrarium.core.quantities import GIB
from astrarium.placement.evaluation import evaluate
from astrarium.placement.plan import Plan, Replica
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.problem import PlacedModel, PlacementRequests, Problem
from astrarium.serving.planning.colocation import v100
from astrarium.testing.checks import ContractError
from astrarium.testing.placement import PlacementPolicyConformance, examine
from astrarium.testing.placement.problems import gpus, model
from tests.support.conformance import Choice, assert_caught, suites
from tests.support.placement.igniter_cases import whole_gpu_times

PROMISES: dict[str, dict[str, Any]] = {
    "alpaserve": {"spreads": True},
    "planner": {"spreads": True},
    "round-robin": {"chooses_shapes": False},  # its parameters say which
}
LIGHTER: dict[str, dict[str, Any]] = {
    "planner": {"samples": 2, "sample": 600, "effort": 1.0, "judged": 6, "heard": 300}
}  # where a search takes long
VARIANTS: list[Choice] = [
    ("alpaserve", {"runtime": {"dispatch": "queue", "max_batch": 4}}, {}),
    ("alpaserve", {"selection": "whole", "beam": 2, "refine": 0}, {}),
    ("ao-milp", {"sets": 0}, {}),
    ("igniter", {"leftovers": "truncate"}, {}),
    ("usher", {"cluster": "open"}, {}),
]

_CHOICES: list[Choice] = [
    *((name, {}, PROMISES.get(name, {})) for name in placement_policies.names()),
    *((name, parameters, {**PROMISES.get(name, {}), **more}) for name, parameters, more in VARIANTS),
]
_SUITES = suites(PlacementPolicyConformance, _CHOICES)
for suite in _SUITES.values():
    suite.parameters = LIGHTER.get(suite.policy, suite.parameters)
globals().update(_SUITES)


class TestIgniterWithCoefficients(PlacementPolicyConformance):
    policy = "igniter"

    def adapted(self, problem: Problem) -> Problem:
        models = tuple(map(self._profiled, problem.models))
        machines = tuple(msgspec.structs.replace(gpu, igniter=v100().gpu) for gpu in problem.gpus)
        return Problem(models, machines)

    def _profiled(self, model: PlacedModel) -> PlacedModel:
        traits = list(v100().models.values())[model.index % len(v100().models)]
        times = whole_gpu_times(v100().gpu, traits, 8)
        forms = {
            shape: msgspec.structs.replace(form, stage_times=(times,) * shape.stages)
            for shape, form in model.forms.items()
        }
        return msgspec.structs.replace(model, forms=forms, igniter=traits)


def test_every_registered_policy_has_a_suite() -> None:
    assert len(_SUITES) == len(_CHOICES)
    assert {suite.policy for suite in _SUITES.values()} == set(placement_policies.names())


PROBLEM = Problem((model(0, use=0.9), model(1)), gpus(2))
BOTH = (Replica(0, (0,)), Replica(1, (1,)))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan("x", BOTH[:1]), "or an entry under `missing`"),
        (Plan("x", BOTH, {1: "no room"}), "it has a replica"),
        (Plan("x", BOTH[:1], {1: ""}), "without a word"),
        (Plan("x", BOTH, {7: "who?"}), "somebody asked"),
        (Plan("x", BOTH, attainment=1.5), "attainment"),
        (Plan("x", (Replica(0, (0,), share=0.6), Replica(1, (0,), share=0.5))), "others have of GPU 0"),
        (Plan("x", (Replica(0, (0,), share=0.5), Replica(1, (0,)))), "others have of GPU 0"),
        (Plan("x", (Replica(0, (0,), share=0.01), BOTH[1])), "takes"),
        (Plan("x", (Replica(0, (0,), batch=9), BOTH[1])), "1 to 8"),
        (Plan("x", (*BOTH, Replica(5, (0,)))), "a model that is there"),
        (Plan("x", (*BOTH, Replica(0, (4,)))), "a GPU of the cluster"),
    ],
)
def test_faulty_plans_are_found(plan: Plan, words: str) -> None:
    with pytest.raises(ContractError, match=words):
        examine(plan, PROBLEM)


def test_no_plan_that_cannot_be_is_run() -> None:
    """What the suite finds, whoever runs a plan finds too."""
    crowded = Plan("x", (Replica(0, (0,), share=0.6), Replica(1, (0,), share=0.5)))
    twofold = Plan("x", BOTH, {1: "no room"})
    for plan in (crowded, twofold, Plan("x", (*BOTH, Replica(5, (0,))))):
        with pytest.raises(BrokenBooks):
            evaluate(PROBLEM, plan, PlacementRequests((), ()))


def test_a_full_gpu_is_found() -> None:
    large = Problem((model(0, weights=9 * GIB), model(1, weights=9 * GIB)), gpus(1))
    with pytest.raises(ContractError, match="on GPU 0"):
        examine(Plan("x", (Replica(0, (0,)), Replica(1, (0,)))), large)


class FirstFit:
    """Everything on the first GPU, whether there is room or not."""

    def place(self, problem: Problem, search: Search) -> Plan:
        return Plan("first", tuple(Replica(spec.index, (problem.gpus[0].id,)) for spec in problem.models))


class Idle:
    def place(self, problem: Problem, search: Search) -> Plan:
        return Plan("idle", (), {spec.index: "work" for spec in problem.models})


class Fickle:
    """Another plan every time it is asked."""

    asked = 0

    def place(self, problem: Problem, search: Search) -> Plan:
        Fickle.asked += 1
        return Plan("fickle", (), {spec.index: f"{Fickle.asked} things" for spec in problem.models})


@pytest.mark.parametrize(
    ("policy", "test"),
    [
        (FirstFit, "test_plans_are_possible_and_complete"),
        (Idle, "test_a_lone_small_model_is_placed"),
        (Fickle, "test_the_same_problem_gets_the_same_plan"),
    ],
)
def test_faulty_policies_are_found(policy: type, test: str) -> None:
    assert_caught(type("Suite", (PlacementPolicyConformance,), {"make": lambda self: policy()}), test)


@pytest.mark.parametrize("missing", ["networkx", "scipy.optimize"])
def test_a_package_that_is_missing_is_named_with_its_extra(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    problem = Problem(tuple(model(index) for index in range(3)), gpus(2))
    factory: Any = placement_policies.get("usher" if missing == "networkx" else "wsm-milp")
    with pytest.raises(InputError, match=r"pip install 'astrarium\[plan\]'"):
        factory(factory.Parameters()).place(problem, Search())
