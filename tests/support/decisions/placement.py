"""What placement policies plan: for the example, and for random problems."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import msgspec

from astrarium.core.choice import Choice
from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.problem import ALONE, PlacementRequests, Problem
from astrarium.serving.planning.search import Planning, PlanningGoals
from astrarium.serving.planning.speeds import Speeds
from astrarium.serving.scenario import Scenario, load
from astrarium.testing.placement.problems import MIB, SPREAD, gpus, model
from tests.support.decisions.digests import Case, Parameters, Rows, Runs, rounded, variants
from tests.support.decisions.scenarios import EXAMPLES, SEED, one_of


def planned_example() -> Scenario:
    return load(EXAMPLES / "planning" / "plan.yaml", [*SEED, "workload.duration=3s"], planning=True)


def random_problem(seed: int) -> Problem:
    """Models of different sizes, rates and objectives, most of which fit, with requests to plan with."""
    draw = Random(f"placement {seed}")
    models = tuple(
        model(
            index,
            alone=draw.randint(4, 30) * MILLISECOND,
            each=draw.randint(1, 8) * MILLISECOND,
            slo=draw.randint(60, 300) * MILLISECOND,
            rate=float(draw.randint(1, 15)),
            weights=draw.randint(500, 6000) * MIB,
            activations=draw.randint(0, 40) * MIB,
            shapes=one_of(draw, (ALONE,), (ALONE, *SPREAD)),
            use=one_of(draw, 0.05, 0.2, 0.45),
        )
        for index in range(6)
    )
    return Problem(models, gpus(4), drawn_requests(draw, [spec.rate for spec in models]))


def drawn_requests(draw: Random, rates: list[float], seconds: int = 20) -> PlacementRequests:
    drawn = [
        (draw.randrange(seconds * SECOND), index)
        for index, rate in enumerate(rates)
        for _ in range(int(rate * seconds))
    ]
    times, models = zip(*sorted(drawn), strict=True)
    return PlacementRequests(times, models)


OTHER_PLACEMENT: list[tuple[str, Parameters]] = [
    ("alpaserve", {"runtime": {"dispatch": "queue", "max_batch": 4}}),
    ("alpaserve", {"selection": "whole", "beam": 2, "refine": 0}),
    ("ao-milp", {"sets": 0}),
    ("igniter", {"leftovers": "truncate"}),
    ("usher", {"cluster": "open"}),
]
USUAL: dict[str, Parameters] = {
    "planner": {"samples": 2, "sample": 600, "effort": 1.0, "judged": 6, "heard": 300},  # or it searches long
    "round-robin": {"stages": 1},  # the only shape that all models have
}
# They need to know what models use of a GPU, which the example does not say.
DEMANDING = {"ao-milp", "usher", "wao-usher", "wsm-milp"}


def placement(problem: Problem) -> Runs:
    for label, (name, parameters) in variants(placement_policies.names(), OTHER_PLACEMENT).items():
        yield label, "python", placed(name, {**USUAL.get(name, {}), **parameters}, problem, Search())


def placed(name: str, parameters: Parameters, problem: Problem, search: Search) -> Rows:
    factory: Any = placement_policies.get(name)
    return replicas(factory(msgspec.convert(parameters, factory.Parameters)).place(problem, search))


def replicas(plan: Plan) -> Rows:
    assert plan.replicas, f"a plan of {plan.policy} without a replica tells nothing: {plan.missing}"
    rows: Rows = [
        ["replica", replica.model, replica.gpus, replica.shape.stages, replica.shape.operators, replica.batch]
        for replica in plan.replicas
    ]
    rows += [["share", rounded(replica.share)] for replica in plan.replicas]
    expected = None if plan.attainment is None else rounded(plan.attainment)
    return [*rows, ["missing", sorted(plan.missing)], ["attainment", expected]]


def planned(scenario: Scenario) -> Runs:
    """Judged by what will run, as `astrarium plan` does."""
    for name in placement_policies.names():
        if name not in DEMANDING:
            parameters = USUAL.get(name, {})
            planning = Planning(scenario, Choice(name, parameters), PlanningGoals(seeds=1))
            [problem] = planning.problems(scenario.cluster.size, Speeds(scenario))
            search = Search(planning.judge(problem))
            yield name, "python", placed(name, parameters, problem, search)


def cases() -> Iterator[Case]:
    yield Case("placement", "plan", planned, planned_example)
    for seed in range(1, 7):
        yield Case("placement", f"random-{seed}", placement, partial(random_problem, seed), seed > 2)
