"""Rounds and parts of time: Gavel's policies, on paper, against a solver, and against recorded runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.cluster.contract import App, AppArrived, Grant, Run, single
from astrarium.cluster.machines import Machine, Spread
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.policies._gavel import Vector, largest_level, middle, smallest_level
from astrarium.cluster.slowdowns import Slowdowns
from astrarium.cluster.state import ClusterState
from astrarium.cluster.workloads.apps import single_apps
from astrarium.cluster.workloads.traces import read_trace
from astrarium.cluster.world import ClusterWorld
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND
from astrarium.testing.cluster import Played, play
from tests.support.paths import ROOT

DATA = ROOT.parent / "shared" / "data" / "cluster"
TRACE = DATA / "shockwave_120jobs_32gpus.csv"
RUNS = DATA / "reference_120jobs_32gpus.json"
ROUND = 120 * SECOND
SHARES = ["max-min", "finish-time-fair"]


def run(name: str, machines: int, *apps: tuple[float, App], **parameters: Any) -> Played:
    """On machines of one GPU, between which distance does not matter."""
    factory: Any = cluster_policies.get(name)
    later = [(round(at * SECOND), AppArrived(app)) for at, app in apps]
    world = ClusterWorld(_flat())
    state = ClusterState(_flat())
    return play(factory(factory.Parameters(**parameters)), _single(machines), later, world, state)


def _single(count: int) -> list[Machine]:
    return [Machine(number, 1) for number in range(count)]


def _flat() -> Slowdowns:
    return Slowdowns(guess=dict.fromkeys(Spread, 1.0))


def ends(played: Played) -> dict[str, float]:
    return {row.app.name: row.ended / SECOND for row in played.state.ledger.rows.values()}


@pytest.mark.parametrize("name", SHARES)
def test_a_gpu_whose_job_has_ended_and_who_has_come_wait_for_the_next_round(name: str) -> None:
    """a ends inside the first round, which goes on for b until 120 s; c has come at 5 s."""
    a = single(0, "a", 10 * SECOND)
    b = single(1, "b", 200 * SECOND)
    c = single(2, "c", 50 * SECOND)
    played = run(name, 2, (0, a), (0, b), (5, c), refresh=0)
    assert ends(played) == {"a": 10, "b": 200, "c": 170}


@pytest.mark.parametrize("name", SHARES)
def test_a_round_ends_with_the_last_of_its_jobs(name: str) -> None:
    played = run(name, 1, (0, single(0, "a", 10 * SECOND)), (5, single(1, "b", 50 * SECOND)), refresh=0)
    assert ends(played) == {"a": 10, "b": 60}


@pytest.mark.parametrize("name", SHARES)
def test_who_has_come_has_no_part_before_parts_are_found_anew(name: str) -> None:
    """At 120 s parts are found (those of 0 s do not count), and again at the first round from 1120 s on."""
    apps = [(0.0, single(0, "a", 2000 * SECOND)), (100.0, single(1, "b", 10 * SECOND))]
    played = run(name, 3, *apps, (200.0, single(2, "c", 10 * SECOND)))
    assert ends(played) == {"a": 2000, "b": 130, "c": 1210}


def test_equals_take_turns_round_by_round() -> None:
    played = run("max-min", 1, *((0, single(n, f"{n}", 240 * SECOND)) for n in range(2)))
    assert ends(played) == {"0": 360, "1": 480}


def test_a_gang_of_two_gets_half_of_the_time_of_a_single_job() -> None:
    """2 GPUs, three apps: 2/3 GPU each on average. The gang has both in one round of three."""
    apps = [single(0, "gang", 1200 * SECOND, 2), single(1, "a", 2400 * SECOND), single(2, "b", 2400 * SECOND)]
    played = run("max-min", 2, *((0, app) for app in apps))
    begins = [
        (step.now // ROUND, a.app) for step in played.steps for a in step.actions if isinstance(a, Grant)
    ]
    gang = {index for index, app in begins if app == 0 and index < 12}
    others = {index for index, app in begins if app == 1 and index < 12}
    assert len(gang) == 4
    assert not gang & others


def test_quiet_rounds_wake_nobody() -> None:
    played = run("max-min", 4, (0, single(0, "a", 10**6 * SECOND)))
    assert len(played.steps) <= 4
    assert sum(isinstance(action, Run) for action in played.actions) == 1


def test_finish_time_fairness_makes_up_for_what_was_lost() -> None:
    """late is short, and would have ended soon by itself: it gets more than an equal part."""
    old = single(0, "old", 6000 * SECOND)
    late = single(1, "late", 600 * SECOND)
    fair = ends(run("finish-time-fair", 1, (0, old), (3000, late), refresh=0))
    equal = ends(run("max-min", 1, (0, old), (3000, late), refresh=0))
    assert fair["late"] <= equal["late"]
    assert max(fair.values()) == max(equal.values()) == 6600


def test_rounds_must_last() -> None:
    factory: Any = cluster_policies.get("max-min")
    with pytest.raises(InputError, match="round"):
        factory.Parameters(round=0)


gangs = st.lists(st.integers(1, 8), min_size=1, max_size=8).map(lambda sizes: np.array(sizes, dtype=float))


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(sizes=gangs, gpus=st.integers(8, 24))
def test_the_level_of_max_min_is_that_of_the_linear_program(sizes: Vector, gpus: int) -> None:
    linprog = pytest.importorskip("scipy.optimize").linprog
    count = len(sizes)
    rows = np.hstack([-np.diag(sizes), np.ones((count, 1))])  # level <= gang * part
    total = np.append(sizes, 0.0)
    solved = linprog(
        np.append(np.zeros(count), -1.0), np.vstack([rows, total]), np.append(np.zeros(count), gpus),
        bounds=[(0, 1)] * count + [(0, None)],
    )  # fmt: skip
    assert largest_level(sizes, gpus) == pytest.approx(-solved.fun)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(sizes=gangs, gpus=st.integers(8, 24), seed=st.integers(0, 1000))
def test_the_middle_is_better_than_all_around_it(sizes: Vector, gpus: int, seed: int) -> None:
    least = largest_level(sizes, gpus) / sizes
    best = middle(least, sizes, gpus)
    assert (best >= least - 1e-9).all()
    assert (best <= 1 + 1e-9).all()
    assert sizes @ best <= gpus + 1e-6
    value = _slacks(best, least, sizes, gpus)
    chance = np.random.default_rng(seed)
    for _ in range(20):
        near = best + chance.normal(0, 1e-3, len(best)) * (best > least + 1e-6)
        assert _slacks(near, least, sizes, gpus) <= value + 1e-9


def _slacks(parts: Vector, least: Vector, sizes: Vector, gpus: float) -> float:
    """The logarithm of their product; nothing is worse than to be outside."""
    free = least < 1 - 1e-9
    slacks = np.concatenate([(parts - least)[free], (1 - parts)[free], [gpus - float(sizes @ parts)]])
    return float(np.log(slacks).sum()) if (slacks > 0).all() else -np.inf


def test_bisection_finds_the_smallest_level_that_fits() -> None:
    """Two gangs of 1 and 3 GPUs that need 1/level of the time: 4/level <= 2."""
    sizes = np.array([1.0, 3.0])
    level = smallest_level(lambda rho: np.minimum(1.0, np.array([1.0, 1.0]) / rho), sizes, 2.0, 1.0)
    assert level == pytest.approx(2.0)
    assert smallest_level(lambda rho: np.array([0.1, 0.1]), sizes, 2.0, 1.5) == 1.5


@pytest.fixture(scope="module")
def trace() -> list[tuple[float, App]]:
    """What the simulator of Shockwave takes the work to be is what its owners say, without changes of the
    batch size; how long it takes is with them."""
    if not (TRACE.exists() and RUNS.exists()):
        pytest.skip("the recorded runs are not here")
    drawn = single_apps(read_trace(TRACE, "shockwave"))
    return [(app.arrival / SECOND, msgspec.convert(app, App, from_attributes=True)) for app in drawn]


@pytest.mark.parametrize(
    ("name", "recorded"), [("max-min", "max_min_fairness"), ("finish-time-fair", "finish_time_fairness")]
)
def test_recorded_runs_are_met(name: str, recorded: str, trace: list[tuple[float, App]]) -> None:
    """32 GPUs, rounds of 120 s, and 20 s for who was not in the round before, unless it ends within 115 s."""
    factory: Callable[[Any], Any] = cluster_policies.get(name)
    later = [(round(at * SECOND), AppArrived(app)) for at, app in trace]
    world = ClusterWorld(_flat(), startup=20 * SECOND, short=115 * SECOND)
    state = ClusterState(_flat(), startup=20 * SECOND)
    play(factory(factory.Parameters()), _single(32), later, world, state)  # type: ignore[attr-defined]
    rows = state.ledger.rows.values()
    mark = json.loads(RUNS.read_text())[f"shockwave_120jobs_32gpus|{recorded}"]
    assert max(row.ended for row in rows) / SECOND == pytest.approx(mark["makespan_s"], rel=0.015)
    mean = sum(row.ended - row.arrived for row in rows) / len(rows) / SECOND
    assert mean == pytest.approx(mark["avg_jct_s"], rel=0.015)
