"""Changes of a draft are possible, and the planner makes them with and without native code."""

from __future__ import annotations

import pytest

from astrarium.core.quantities import GIB
from astrarium.placement.groups import simulation as group_simulation
from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.policies import Search
from astrarium.placement.policies.planner import GREEDY, Planner
from astrarium.placement.policies.planner.draft import FitCheck, Site, SiteMember
from astrarium.placement.policies.planner.judge import (
    CautiousInterference,
    made_up,
)
from astrarium.placement.policies.planner.moves import Moves, Reshaping
from astrarium.placement.policies.planner.options import ModelOptions
from astrarium.placement.policies.planner.quick_simulation import QuickSimulation, worths
from astrarium.placement.problem import ALONE, Problem, Shape
from astrarium.testing.placement.problems import gpus, model
from tests.support.placement.igniter_cases import NOTES, problem_of
from tests.support.placement.planner_cases import five_models


def test_every_change_is_possible() -> None:
    """All that is proposed for a crowded draft fits and is in time, alone."""
    problem = five_models(3)
    options = ModelOptions(problem)
    weights = worths([spec.rate for spec in problem.models], 0.0)
    simulation = QuickSimulation(
        options, [made_up(problem.models, 0, 500)], GREEDY, CautiousInterference(problem), weights
    )
    moves = Moves(options)
    beside = Site((0,), ALONE, (SiteMember(0, 4, 0.2), SiteMember(1, 8, 0.3), SiteMember(3, 4, 0.4)))
    draft = (beside, Site((1,), ALONE, (SiteMember(2, 8), SiteMember(4, 8))), Site((2,)))
    proposed = [move for place in range(5) for move in moves.all_for(draft, place, simulation(draft))]
    assert len(proposed) > 50
    assert draft not in proposed
    for change in proposed:
        assert all(moves.fits(site) for site in change)
        for site in change:
            assert not site.side or all(member.share < 1 for member in site.members)


def test_sites_are_cut_joined_and_turned() -> None:
    problem = Problem((model(0), model(1, weights=GIB)), gpus(4))
    draft = (
        Site((0, 1), Shape(2, 1), (SiteMember(0, 4), SiteMember(1, 4))),
        Site((2,)),
        Site((3,), ALONE, (SiteMember(1, 4),)),
    )
    layouts = list(Reshaping(ModelOptions(problem))(draft, [0, 1]))
    shapes = {tuple(sorted((site.shape, len(site.members)) for site in layout)) for layout in layouts}
    kept = [(ALONE, 0), (ALONE, 1)]
    assert tuple(sorted([*kept, (Shape(1, 2), 2)])) in shapes  # turned
    assert tuple(sorted([*kept, (ALONE, 2), (ALONE, 2)])) in shapes  # cut
    assert tuple(sorted([(Shape(2, 1), 2), (Shape(2, 1), 1)])) in shapes  # joined
    for layout in layouts:
        assert sorted(gpu for site in layout for gpu in site.gpus) == [0, 1, 2, 3]
        assert all(FitCheck(problem).holds(site) for site in layout)


def test_batches_need_a_runtime_that_waits() -> None:
    """AlpaServe's own dispatch knows single requests only, and so does the plan then."""
    problem = Problem((model(0, rate=20.0),), gpus(1))
    plan = Planner(Planner.Parameters(runtime=GroupRuntime(), effort=1.0)).place(problem, Search())
    assert {replica.batch for replica in plan.replicas} == {1}


def test_without_the_native_simulation_the_plan_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = Planner.Parameters(samples=2, sample=400, effort=0.1, judged=4, heard=300)
    problem = problem_of(NOTES, gpus=2)
    native = Planner(parameters).place(problem, Search())
    monkeypatch.setattr(group_simulation, "extension", lambda name: None)
    assert Planner(parameters).place(problem, Search()) == native
