"""Teams on a live cluster: the same rules, and nothing is forgotten when the arbiter is killed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astrarium.cluster.contract import App, Revoke, single
from astrarium.cluster.live.arbiter import ArbiterProcess, ArbiterSetup, ChosenPolicy
from astrarium.cluster.live.backend import JobCommand, MachineStatus
from astrarium.cluster.live.settings import settings
from astrarium.cluster.live.store import Store
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.scenario.read import parse
from astrarium.cluster.teams import Budget, Rules, Team
from astrarium.cluster.teams.sharing import TeamSharing
from astrarium.core.choice import Choice, chosen
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND
from tests.support.cluster.live_fakes import Clock, FakeBackend

START = 1_700_000_000 * SECOND
RULES = Rules({"red": Team(1, budget=Budget(1.0)), "blue": Team(2)}, half_life=100 * SECOND, turn=5 * SECOND)


def read(body: dict[str, Any], largest: int, owner: str) -> list[tuple[App, JobCommand]]:
    app = single(0, body["name"], 20 * SECOND, body["gpus"], team=body["team"])
    return [(msgspec.structs.replace(app, **body.get("limits", {})), JobCommand(("train",)))]


class Office:
    """An arbiter for teams on two machines that are not there, which can be killed."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.clock = Clock()
        machines = {name: MachineStatus(2) for name in ("left", "right")}
        self.backend = FakeBackend(
            self.clock, machines, dict.fromkeys(range(20), 40 * SECOND), leaving=SECOND
        )
        self.arbiter = self.open(RULES)

    def open(self, rules: Rules) -> ArbiterProcess:
        policy = TeamSharing(chosen(cluster_policies, Choice("tiresias", {"lease": "5s"})), rules)
        setup = ArbiterSetup(
            ChosenPolicy("tiresias, for teams", policy), read, lambda: START + self.clock.now, self.clock
        )
        return ArbiterProcess(self.home, setup, self.backend)

    def kill(self, rules: Rules = RULES) -> None:
        os.close(self.arbiter._lock)
        self.arbiter = self.open(rules)

    def submit(self, name: str, team: str, gpus: int = 1, **limits: Any) -> None:
        body = {"name": name, "team": team, "gpus": gpus, "limits": limits}
        Store(self.home).inbox.send("app", body, self.clock.now)

    def go(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.clock.pass_seconds(0.5)
            self.arbiter.turn()

    def decided(self, kind: type[Any]) -> list[Any]:
        actions = (action for step in self.arbiter.store.steps() for action in step.actions)
        return [action for action in actions if isinstance(action, kind)]


def remembered(office: Office) -> tuple[Any, ...]:
    sharing = office.arbiter._allocator_now
    assert isinstance(sharing, TeamSharing)
    return sharing._accounts, sharing._holdings, sharing._cut, sharing._ran, list(sharing._policies)


def test_an_arbiter_that_is_killed_goes_on_with_all_that_teams_had(tmp_path: Path) -> None:
    office = Office(tmp_path)
    for number in range(4):
        office.submit(f"red {number}", "red")
    office.go(7)
    before = remembered(office)
    office.kill()
    assert remembered(office) == before
    assert office.arbiter.epoch == 2
    office.submit("blue", "blue", 2, priority=1)
    office.go(3)
    assert next(action.why for action in office.decided(Revoke)) == "lent by blue, whose app blue waits"
    office.kill()
    office.go(2)
    held = {row.app.name: len(row.leases) for row in office.arbiter.state.apps.values()}
    assert held["blue"] == 2
    office.go(150)
    assert {row.outcome.name for row in office.arbiter.state.ledger.rows.values()} == {"FINISHED"}
    assert not office.arbiter.state.holder


def test_other_rules_hold_from_the_next_arbiter_on_and_usage_is_remembered(tmp_path: Path) -> None:
    office = Office(tmp_path)
    office.submit("red", "red", 2)
    office.go(20)
    before = office.arbiter._allocator_now
    assert isinstance(before, TeamSharing)
    used = before._accounts.by_team["red"].used
    assert used is not None
    office.kill(msgspec.structs.replace(RULES, teams={"red": Team(2), "blue": Team()}))
    after = office.arbiter._allocator_now
    assert isinstance(after, TeamSharing)
    assert after is not before
    assert after.rules.teams["red"].guaranteed == 2
    assert after._accounts.by_team["red"].used == used
    office.go(40)
    assert [row.outcome.name for row in office.arbiter.state.ledger.rows.values()] == ["FINISHED"]


def test_an_app_is_ended_by_its_max_run_in_every_book(tmp_path: Path) -> None:
    office = Office(tmp_path)
    office.submit("red", "red", max_run=10 * SECOND)
    office.go(30)
    (row,) = office.arbiter.state.ledger.rows.values()
    assert (row.outcome.name, row.reason) == ("FAILED", "it has held GPUs for 10s, its max_run")
    assert not [run for run, status in office.backend.look().runs.items() if not status.ended]
    shown = office.arbiter.status()["apps"][0]
    assert (shown["outcome"], shown["gpus"]) == ("failed", [])


def test_status_says_why_a_team_waits(tmp_path: Path) -> None:
    office = Office(tmp_path)
    for number in range(6):
        office.submit(f"red {number}", "red")
    office.submit("blue", "blue", 2)
    office.go(3)
    waits = [app["why"] for app in office.arbiter.status()["apps"] if app["wants"]]
    assert any("red has 1 guaranteed GPUs" in why or "red has its 1 guaranteed" in why for why in waits)


def scenario(tmp_path: Path, **sections: Any) -> Any:
    raw = {
        "machines": [{"gpus": 4}],
        "apps": [{"name": "one", "team": "red", "length": "1s", "command": "true"}],
        "teams": {"red": {"guaranteed": 2}},
        **sections,
    }
    return parse(raw, tmp_path / "live.yaml")


def test_the_file_of_an_arbiter_is_read_with_its_teams(tmp_path: Path) -> None:
    setup = settings(scenario(tmp_path))
    assert isinstance(setup.policy.allocator, TeamSharing)
    assert setup.policy.spec.endswith(", for teams")
    submitted = {"name": "two", "team": "rod", "length": "1s", "command": "true"}
    with pytest.raises(
        InputError, match=r"app.team: expected a team of the file: one of red; did you mean 'red'"
    ):
        setup.read(submitted, 4, "")
    plain = settings(scenario(tmp_path, teams=None))
    assert not isinstance(plain.policy.allocator, TeamSharing)
    with pytest.raises(InputError, match=r"app.priority"):
        plain.read({**submitted, "priority": 3}, 4, "")


def test_reservations_by_the_calendar_are_in_the_clock_of_the_run(tmp_path: Path) -> None:
    every_day = [
        {"team": "red", "gpus": 2, "start": f"{day} 0:00", "end": f"{day} 24:00"}
        for day in ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
    ]
    setup = settings(scenario(tmp_path, reservations=every_day), origin=START)
    assert isinstance(setup.policy.allocator, TeamSharing)
    rules = setup.policy.allocator.rules
    now = time.time_ns() - START
    assert {sum(rules.reserved(now + day * 24 * 3600 * SECOND).values()) for day in range(8)} <= {2}
    assert all(reservation.every == 7 * 24 * 3600 * SECOND for reservation in rules.reservations)
