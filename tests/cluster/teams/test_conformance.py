"""Every cluster policy passes the conformance suite under teams too: quotas, priorities, run times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.cluster.contract import App, AppArrived, Grant, Revoke
from astrarium.cluster.policies import Allocator, cluster_policies
from astrarium.cluster.teams import Budget, Reservation, Rules, Team
from astrarium.cluster.teams.sharing import TeamSharing
from astrarium.core.choice import Choice, chosen
from astrarium.core.quantities import Duration
from astrarium.testing.cluster import MINUTE, Case, ClusterPolicyConformance, cases, play
from astrarium.testing.conformance import BOUNDED
from tests.support.conformance import suites

HOUR = 60 * MINUTE
RULES = Rules(
    teams={
        "red": Team(guaranteed=4, weight=2.0, budget=Budget(20.0, Duration(24 * HOUR))),
        "blue": Team(guaranteed=2),
        "green": Team(),
    },
    reservations=(Reservation("blue", 3, 20 * MINUTE, 50 * MINUTE),),
)


def in_teams(app: App) -> App:
    """Return an app of a team, with a priority and a least run, by its number."""
    team = ("red", "blue", "green")[app.id % 3]
    return msgspec.structs.replace(app, team=team, priority=app.id // 3 % 2, min_run=app.id % 4 * MINUTE)


def with_teams(case: Case) -> Case:
    later = (
        (at, AppArrived(in_teams(event.app))) for at, event in case.later if isinstance(event, AppArrived)
    )
    others = (arrival for arrival in case.later if not isinstance(arrival[1], AppArrived))
    return replace(case, later=(*later, *others))


class UnderTeams(ClusterPolicyConformance):
    describes_parameters = False

    def any_case(self) -> st.SearchStrategy[Case]:
        return cases().map(with_teams)

    def busy_case(self) -> Case:
        return with_teams(super().busy_case())

    def make(self, *arguments: Any) -> Any:
        return TeamSharing(super().make(*arguments), RULES)

    def observe(self, case: Case, *args: Any, **kwargs: Any) -> Any:
        return super().observe(with_teams(case), *args, **kwargs)


QUICK = ("astrarium", "fifo")
MARKS = {name: [] if name in QUICK else [pytest.mark.thorough] for name in cluster_policies.names()}
globals().update(suites(UnderTeams, [(name, {}, {"pytestmark": marks}) for name, marks in MARKS.items()]))


def policy(name: str) -> Allocator:
    allocator: Allocator = chosen(cluster_policies, Choice(name))
    return allocator


def decided(allocator: Allocator, case: Case) -> list[Any]:
    """Return what is given and taken, without timers."""
    played = play(allocator, case.machines, case.later)
    return [
        (step.now, action)
        for step in played.steps
        for action in step.actions
        if isinstance(action, Grant | Revoke)
    ]


@pytest.mark.parametrize("name", cluster_policies.names())
@BOUNDED
@given(case=cases())
def test_a_single_team_decides_as_the_policy_does(name: str, case: Case) -> None:
    assert decided(TeamSharing(policy(name), Rules()), case) == decided(policy(name), case)
