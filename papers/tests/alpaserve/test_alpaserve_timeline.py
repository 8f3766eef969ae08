"""Plans that follow each other, what a change of plans does to a backlog, and traffic by windows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from astrarium.core.errors import InputError
from astrarium.core.quantities import GIB, SECOND
from astrarium.placement.groups.layout import Group, GroupLayout, Tables
from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.groups.simulation import SimulatedRequests, in_time, simulate_groups
from astrarium.placement.plan import Plan, Replica, check
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.problem import ALONE, Form, PlacedModel, PlacementRequests, Problem, Shape
from astrarium.testing.placement.problems import gpus
from astrarium.testing.placement.problems import model as spread_model
from astrarium_papers.alpaserve._common import cases, workloads
from astrarium_papers.alpaserve._common.cases import FAIR, Case
from astrarium_papers.alpaserve._common.timeline import Timeline, serve_timeline
from astrarium_papers.alpaserve._common.windows import Source, Windows, replanned

PLAIN = GroupRuntime(stage_overhead=0, fixed_overhead=0)
TWO = Shape(stages=2)


def model(index: int, slo: int, *forms: tuple[int, ...]) -> PlacedModel:
    """Each form by the times of its stages."""
    shapes = {Shape(len(times)): times for times in forms}
    forms_by_shape = {
        shape: Form(shape, tuple((0, time) for time in times), (1,) * len(times))
        for shape, times in shapes.items()
    }
    return PlacedModel(index, f"m{index}", slo, 1.0, forms_by_shape)


def placing(policy: str) -> Callable[[Problem], Plan]:
    factory: Any = placement_policies.get(policy)
    return partial(factory(factory.Parameters()).place, search=Search())


def flat_plan(index: int = 0) -> Plan:
    return Plan("test", (Replica(index, (0,), ALONE),))


def test_a_backlog_stays_unless_it_is_forgotten() -> None:
    """The same plan again and again: forgetting what was begun makes an overloaded GPU look idle."""
    models = [model(0, 30, (10,))]
    tables = Tables.of(models, PLAIN)
    times = tuple(range(0, 400, 4))
    workload = SimulatedRequests.of(tables, PlacementRequests(times, (0,) * len(times)))
    changing = Timeline(tuple(range(0, 400, 20)), (flat_plan(),) * 20)
    steady = simulate_groups(GroupLayout.of(tables, [Group((0,), ALONE, (0,))]), workload)
    carried = serve_timeline(tables, changing, workload, carry_backlog=True)
    forgotten = serve_timeline(tables, changing, workload, carry_backlog=False)
    assert carried.finish.tolist() == steady.finish.tolist()
    assert in_time(forgotten, workload).sum() > 1.4 * in_time(steady, workload).sum()
    python = serve_timeline(tables, changing, workload, True, "python")
    assert python.finish.tolist() == carried.finish.tolist()


def test_a_backlog_belongs_to_gpus_whatever_groups_they_make_up() -> None:
    models = [model(0, 1000, (100,), (50, 50))]
    tables = Tables.of(models, PLAIN)
    workload = SimulatedRequests.of(tables, PlacementRequests((0, 10), (0, 0)))
    pipeline = Plan("test", (Replica(0, (1, 0), TWO),))
    outcome = serve_timeline(tables, Timeline((0, 5), (flat_plan(), pipeline)), workload)
    assert outcome.finish.tolist() == [100, 150]  # the second stage, on GPU 0, is free at 100


def test_timelines_begin_at_the_beginning() -> None:
    for starts in ((1,), (0, 5), (0, 5, 3)):
        with pytest.raises(InputError):
            Timeline(starts, (flat_plan(),) * (3 if len(starts) == 3 else 1))


def test_statistics_leave_rejected_requests_out_of_latencies() -> None:
    case = cases.Case(("bert-1.3b",) * 2, 1, 20.0, cv=4, slo=3, seconds=60)
    outcome = cases.judge(case, Plan("test", (Replica(0, (0,), ALONE),)), cases.FAIR)
    alone = case_latency = cases.forms("bert-1.3b")[ALONE].latency(1)
    assert 0 < outcome.attainment < 1
    assert outcome.statistics.by_model[1] == 0
    assert outcome.statistics.latency.min() >= alone == case_latency
    assert outcome.statistics.mean <= outcome.statistics.p99 <= 3 * alone


def test_alpaserve_plans_again_with_the_history_of_a_trace() -> None:
    """The first half of the minute asks for one large model, the second for another; a GPU holds one."""
    halves = [(second * SECOND // 2, int(second >= 60)) for second in range(120)]
    requests = PlacementRequests(tuple(at for at, _ in halves), tuple(index for _, index in halves))
    large = tuple(spread_model(place, weights=10 * GIB, shapes=(ALONE,)) for place in range(2))
    problem = Problem(large, gpus(1), requests)
    sources: tuple[tuple[Source, list[int]], ...] = (("window", [0, 0, 1, 1]), ("history", [0, 0, 1]))
    for source, wanted in sources:
        timeline = replanned(placing("alpaserve"), problem, Windows(15 * SECOND, source))
        assert timeline.starts == tuple(15 * SECOND * number for number in range(4))
        assert [plan.replicas[0].model for plan in timeline.plans][-len(wanted) :] == wanted


def test_clockwork_plans_every_window() -> None:
    problem = cases.problem(Case(("bert-1.3b",) * 8, 4, 16.0, seconds=100.0), FAIR)
    timeline = replanned(placing("clockwork++"), problem, Windows(30 * SECOND))
    assert timeline.starts == tuple(number * 30 * SECOND for number in range(4))
    for plan in timeline.plans:
        check(plan, problem)
    later = replanned(placing("clockwork++"), problem, Windows(30 * SECOND, "history"))
    assert later.plans[1:] == timeline.plans[:-1]


def test_knowing_the_window_beats_its_history_and_forgetting_beats_both() -> None:
    case = Case(("bert-1.3b",) * 16, 4, 32.0, 4.0, 5.0, 200.0)
    forgetful = msgspec.structs.replace(FAIR, carry_backlog=False)
    window = Windows(10 * SECOND)
    history = Windows(10 * SECOND, "history")
    known = cases.run(case, "clockwork++", windows=window).attainment
    assert known > cases.run(case, "clockwork++", windows=history).attainment
    assert cases.run(case, "clockwork++", None, forgetful, windows=window).attainment > known


def test_windows_of_a_long_running_process_bring_as_many_requests_as_their_rate_says() -> None:
    """A restarted one brings more: 1.26 times as many at CV 4, 0.5 requests a second and windows of 60 s."""
    rates = [[0.5]] * 2000
    counts = {}
    for stationary in (True, False):
        times, models = workloads.windows(rates, 4.0, 60.0, np.random.default_rng(2), stationary)
        assert (np.diff(times) >= 0).all()
        assert len(times) == len(models)
        counts[stationary] = len(times) / (2000 * 30)
    assert counts[True] == pytest.approx(1.0, abs=0.05)
    assert counts[False] == pytest.approx(1.26, abs=0.05)
