"""What holds for teams whatever comes: nothing is idle that somebody may use, and everybody has its own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.cluster.contract import App, AppArrived
from astrarium.cluster.demand import most_usable, wanted
from astrarium.cluster.machines import Machine
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.state import ClusterState, Outcome
from astrarium.cluster.teams import Reservation, Rules, Team
from astrarium.cluster.teams.sharing import TeamSharing
from astrarium.cluster.world import ClusterWorld
from astrarium.core.choice import Choice, chosen
from astrarium.core.quantities import Time
from astrarium.testing.cluster import MINUTE, Played, play
from astrarium.testing.conformance import BOUNDED
from tests.support.cluster.shared_cluster import app, follow

SIZE = 8
TEAMS = ("red", "blue", "green")
Arrivals = list[tuple[int, App]]


@st.composite
def rules(draw: st.DrawFn) -> Rules:
    guaranteed = draw(st.lists(st.integers(0, 2), min_size=3, max_size=3))
    weights = draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=3, max_size=3))
    borrow = draw(st.lists(st.sampled_from([True, True, False]), min_size=3, max_size=3))
    teams = {
        name: Team(most, weight, may or not most)
        for name, most, weight, may in zip(TEAMS, guaranteed, weights, borrow, strict=True)
    }
    return Rules(teams, turn=draw(st.sampled_from([1, 10])) * MINUTE)


@st.composite
def arrivals(draw: st.DrawFn) -> Arrivals:
    """Return apps whose jobs need one GPU each."""
    drawn = []
    for number in range(draw(st.integers(1, 8))):
        limits = {"priority": draw(st.integers(0, 1)), "min_run": draw(st.sampled_from([0, 0, 7])) * MINUTE}
        jobs = draw(st.integers(1, 6))
        minutes = draw(st.integers(1, 60))
        one = app(number, draw(st.sampled_from(TEAMS)), minutes, 1, jobs, **limits)
        drawn.append((draw(st.integers(0, 60)), one))
    return drawn


def shared(rule: Rules, apps: Arrivals, name: str) -> Played:
    policy = TeamSharing(chosen(cluster_policies, Choice(name)), rule)
    later = [(at * MINUTE, AppArrived(app)) for at, app in apps]
    return play(policy, [Machine(0, SIZE)], later, ClusterWorld())


def held(state: ClusterState) -> dict[str, int]:
    gpus = dict.fromkeys(TEAMS, 0)
    for row in state.apps.values():
        gpus[row.app.team] += len(row.leases)
    return gpus


def most(rule: Team) -> int:
    return SIZE if rule.borrow else rule.guaranteed


@pytest.mark.parametrize("name", ["tiresias", "themis", "astrarium", "srsf"])
@BOUNDED
@given(rule=rules(), apps=arrivals())
def test_no_gpu_is_idle_that_somebody_may_use(name: str, rule: Rules, apps: Arrivals) -> None:
    played = shared(rule, apps, name)
    state = ClusterState()
    for step in played.steps:
        follow(state, step)
        has = held(state)
        for row in state.apps.values() if state.free else ():
            assert not wanted(row) or has[row.app.team] >= most(rule.teams[row.app.team]), step.now
    assert all(row.outcome is Outcome.FINISHED for row in played.state.ledger.rows.values())


@pytest.mark.parametrize("name", ["tiresias", "fifo", "themis", "drf"])
@BOUNDED
@given(rule=rules(), apps=arrivals())
def test_a_team_has_what_it_is_guaranteed_as_soon_as_runs_may_be_stopped(
    name: str, rule: Rules, apps: Arrivals
) -> None:
    played = shared(rule, apps, name)
    state = ClusterState()
    since = dict[int, tuple[int, Time]]()
    for step in played.steps:
        follow(state, step)
        since = {gpu: since.get(gpu, (app, step.now)) for gpu, app in state.holder.items()}
        since = {
            gpu: at if at[0] == state.holder[gpu] else (state.holder[gpu], step.now)
            for gpu, at in since.items()
        }
        has = held(state)
        for team, own in rule.teams.items():
            wants = sum(most_usable(row) for row in state.apps.values() if row.app.team == team)
            if has[team] < min(wants, own.guaranteed):
                others = [name for name in TEAMS if has[name] > rule.teams[name].guaranteed]
                for number, began in since.values():
                    row = state.apps[number]
                    assert row.app.team not in others or step.now - began < row.app.min_run


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["fifo", "tiresias", "astrarium", "max-min"])
@BOUNDED
@given(gangs=st.lists(st.sampled_from([1, 2, 3, 5, 8]), min_size=2, max_size=2), guaranteed=st.integers(0, 3))
def test_equal_teams_are_served_equally_over_time(name: str, gangs: list[int], guaranteed: int) -> None:
    """Both always have more to do than there are GPUs. Of gangs that do not fit into what is guaranteed, only
    what is borrowed is evened out: they are tried without guarantees."""
    guaranteed = guaranteed if max(gangs) == 1 else 0
    rule = Rules({team: Team(guaranteed) for team in TEAMS[:2]}, turn=10 * MINUTE)
    apps: Arrivals = [
        (0, app(2 * copy + side, TEAMS[side], 400, gang))
        for side, gang in enumerate(gangs)
        for copy in range(-(-2 * SIZE // gang))
    ]
    played = shared(rule, apps, name)
    state = ClusterState()
    service = dict[str, Time]()
    before: Any = None
    for step in played.steps:
        if before is not None and step.now <= 400 * MINUTE:
            for team, count in before[1].items():
                service[team] = service.get(team, 0) + count * (min(step.now, 400 * MINUTE) - before[0])
        follow(state, step)
        before = (step.now, held(state))
    assert abs(service["red"] - service["blue"]) <= 6 * SIZE * rule.turn


@pytest.mark.parametrize("name", cluster_policies.names())
def test_reserved_gpus_are_free_for_their_team_under_every_policy(name: str) -> None:
    reserved = Reservation("blue", 5, 61 * MINUTE, 121 * MINUTE)
    rule = Rules({"red": Team(3), "blue": Team()}, (reserved,))
    apps = [(n, app(n, "red", 150, 1 + n % 3, min_run=3 * MINUTE)) for n in range(9)]
    apps.append((70, app(9, "blue", 30, 5)))
    played = shared(rule, apps, name)
    state = ClusterState()
    for step in played.steps:
        follow(state, step)
        if reserved.holds(step.now):
            assert held(state)["red"] <= SIZE - 5
    blue = played.state.ledger.rows[9]
    assert (blue.started, blue.ended) == (70 * MINUTE, 100 * MINUTE)
    assert all(row.outcome is Outcome.FINISHED for row in played.state.ledger.rows.values())


def test_other_rules_change_nothing_of_a_run_without_teams() -> None:
    plain = msgspec.structs.replace(app(0, "", 10), team="anybody")
    assert Rules().team_of(plain) == ""
