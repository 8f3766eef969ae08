"""What a finished draft is freed of."""

from __future__ import annotations

from collections.abc import Callable

from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.placement.policies import Search
from astrarium.placement.policies.planner import GREEDY
from astrarium.placement.policies.planner.climb import Climb
from astrarium.placement.policies.planner.draft import Draft, Site, SiteMember
from astrarium.placement.policies.planner.explain import DraftExplainer
from astrarium.placement.policies.planner.finishing import trimmed
from astrarium.placement.policies.planner.judge import (
    CautiousInterference,
    samples,
)
from astrarium.placement.policies.planner.mending import DraftJudge
from astrarium.placement.policies.planner.moves import Moves
from astrarium.placement.policies.planner.options import ModelOptions
from astrarium.placement.policies.planner.quick_simulation import QuickSimulation, worths
from astrarium.placement.problem import PlacementRequests, Problem
from astrarium.testing.placement.problems import gpus, model


def benched(simulation: QuickSimulation, worth: Callable[[Draft], float]) -> DraftJudge:
    return DraftJudge(simulation, lambda draft: [worth(draft)] * len(simulation.problem.models), 40)


def looking(problem: Problem) -> Climb:
    options = ModelOptions(problem)
    weights = worths([spec.rate for spec in problem.models], 0.1)
    simulation = QuickSimulation(
        options, samples(problem, 2, 500), GREEDY, CautiousInterference(problem), weights
    )
    return Climb(simulation, Moves(options), Search(), 1e9)


def test_a_replica_goes_if_neither_the_quick_look_nor_the_judge_misses_it() -> None:
    climb = looking(Problem((model(0, rate=1.0),), gpus(2)))
    both = tuple(Site((gpu,), members=(SiteMember(0, 1),)) for gpu in range(2))
    assert trimmed(climb, both, benched(climb.simulation, lambda draft: 1.0)) == (both[0], Site((1,)))
    misses = benched(climb.simulation, lambda draft: 1.0 if draft == both else 0.99)
    assert trimmed(climb, both, misses) == both


def test_a_replica_without_which_the_others_were_too_busy_is_there_for_growth() -> None:
    """50 requests a second of 16 ms by two: one alone would be on the edge."""
    problem = Problem((model(0, alone=16 * MILLISECOND, each=2 * MILLISECOND, rate=50.0),), gpus(2))
    climb = looking(problem)
    both = tuple(Site((gpu,), members=(SiteMember(0, 1),)) for gpu in range(2))
    assert trimmed(climb, both, benched(climb.simulation, lambda draft: 1.0)) == both
    easy = PlacementRequests(tuple(range(0, 10 * SECOND, SECOND // 50)), (0,) * 500)
    weights = worths([50.0], 0.1)
    simulation = QuickSimulation(
        climb.simulation.options, [easy], GREEDY, CautiousInterference(problem), weights
    )
    _, second = DraftExplainer(climb.simulation.options).plan(both, 1.0, simulation).replicas
    assert second.why.startswith("second replica, for growth: one alone served 1.0000, 90% busy, of 50/s")
