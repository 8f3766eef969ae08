"""Teams in files: what is wrong is named, with the value and what would be right; and what is shown."""

from __future__ import annotations

import re
from copy import deepcopy
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astrarium.cluster.level import LEVEL, run
from astrarium.cluster.scenario import schema
from astrarium.cluster.scenario.build import build
from astrarium.cluster.scenario.calendar import Calendar, read_moment
from astrarium.cluster.scenario.read import parse
from astrarium.cluster.scenario.sharing import simulated_rules
from astrarium.cluster.teams import DAY, HOUR, Budget, Rules, Team
from astrarium.core.errors import InputError
from astrarium.core.plain_data import read_yaml
from tests.support.paths import ROOT

pytest_plugins = ("tests.support.cli_fixtures",)

EXAMPLE = ROOT / "examples" / "cluster" / "teams.yaml"
PAGE = ROOT / "docs" / "cluster" / "teams.md"


def written(**changes: Any) -> dict[str, Any]:
    """Return the example with fields changed; None takes one away."""
    raw = deepcopy(read_yaml(EXAMPLE))
    for path, value in changes.items():
        place: Any = raw
        *names, last = [int(name) if name.isdigit() else name for name in path.split("__")]
        for name in names:
            place = place[name]
        place[last] = value
    return dict(raw)


def rules(raw: dict[str, Any]) -> Rules | None:
    scenario = parse(raw, Path("teams.yaml"))
    return simulated_rules(scenario, build(scenario))


WRONG = {
    "teams__vision__guaranteed": (13, "teams.speech.guaranteed: expected at most 16 GPUs for all teams"),
    "teams__vision__weight": (0, "teams.vision.weight: expected a number > 0"),
    "teams__vision__weigth": (1, "teams.vision.weigth: expected one of .*; did you mean 'weight'"),
    "teams__vision__budget__gpu_hours": (-1, "teams.vision.budget.gpu_hours: expected a number > 0"),
    "teams__vision__budget__over": ("0s", "teams.vision.budget.over: expected a duration above 0"),
    "apps__0__team": ("vison", "apps\\[0\\].team: expected a team of the file: .*; did you mean 'vision'"),
    "apps__1__team": ("", "apps\\[1\\].team: expected a team of the file: one of vision, speech"),
    "apps__0__max_run": ("5min", "apps\\[0\\].max_run: expected at least min_run, 600s"),
    "apps__0__priority": (5000, "apps\\[0\\].priority: expected a whole number <= 1000"),
    "reservations__0__team": ("radio", "reservations\\[0\\].team: expected a team of the file"),
    "reservations__0__gpus": (
        5,
        "reservations\\[0\\].gpus: expected at most 4: the cluster has 16 GPUs, 12 are",
    ),
    "reservations__0__end": ("2h", "reservations\\[0\\].end: expected a time after start, 3h"),
    "reservations__0__start": (
        "monday 25:00",
        "reservations\\[0\\].start: expected a time from the start such as",
    ),
    "reservations__0__every": ("30min", "reservations\\[0\\].every: expected at least as long as it lasts"),
    "sharing": ({"turn": "0s"}, "sharing.turn: expected a duration above 0"),
    "team": ({}, "team: expected one of .*; did you mean 'teams'"),
}


@pytest.mark.parametrize("path", WRONG)
def test_what_is_wrong_is_named(path: str) -> None:
    value, expected = WRONG[path]
    with pytest.raises(InputError, match=expected):
        rules(written(**{path: value}))


def test_promises_that_cannot_be_kept_to_an_app_are_refused() -> None:
    alone = written(teams__vision__borrow=False, teams__vision__guaranteed=6)
    with pytest.raises(InputError, match=r"apps\[1\].gpus: expected at most 6 for a job, which vision has"):
        rules(alone)
    small = written(teams__vision__budget={"gpu_hours": 1, "hard": True})
    with pytest.raises(
        InputError, match=r"teams.vision.budget.gpu_hours: expected at least 1.33: train needs 8"
    ):
        rules(small)


def test_overlapping_reservations_are_refused_and_others_are_not() -> None:
    twice = [{"team": "vision", "gpus": 3, "start": f"{at}h", "end": f"{at + 2}h"} for at in (1, 2)]
    with pytest.raises(InputError, match=r"reservations\[1\].gpus: expected at most 1"):
        rules(written(reservations=twice))
    twice[1]["start"], twice[1]["end"] = "3h", "4h"
    read = rules(written(reservations=twice))
    assert read is not None
    assert read.reserved(3 * HOUR) == {"vision": 3}


def test_dates_need_a_start_to_be_simulated() -> None:
    dated = written(reservations__0__start="monday 9:00", reservations__0__end="monday 17:00")
    with pytest.raises(InputError, match=r"reservations\[0\].start: .*sharing.starts"):
        rules(dated)
    read = rules({**dated, "sharing": {"starts": "2026-11-23 8:00"}})  # a monday
    assert read is not None
    assert [read.reserved(hour * HOUR) for hour in (0, 1, 8, 9)] == [{}, {"speech": 4}, {"speech": 4}, {}]
    assert read.reserved(7 * DAY + HOUR) == {"speech": 4}


def test_moments_are_read_in_every_form() -> None:
    calendar = Calendar.simulated(datetime(2026, 11, 23, 8))
    forms = ("90min", "2026-11-23 9:30", "2026-11-23T09:30:00", datetime(2026, 11, 23, 9, 30))
    assert {calendar.instant(read_moment(form)) for form in forms} == {90 * 60 * 10**9}


def test_files_without_teams_have_no_rules() -> None:
    raw = read_yaml(ROOT / "examples" / "cluster" / "cluster.yaml")
    assert rules(raw) is None
    assert rules({**raw, "sharing": {}}) is not None


def test_a_run_is_told_by_team() -> None:
    scenario = parse(read_yaml(EXAMPLE), EXAMPLE)
    record = run(scenario)
    summary = LEVEL.summarize(scenario, record)
    by_team = {team.team: team for team in summary.by_team}
    assert list(by_team) == ["vision", "speech"]
    assert sum(team.gpu_hours for team in summary.by_team) == pytest.approx(summary.gpu_hours)
    assert by_team["vision"].guaranteed == 8
    assert by_team["speech"].borrowed_gpu_hours > by_team["vision"].lent_gpu_hours > 0
    assert (by_team["vision"].apps, by_team["vision"].finished) == (3, 2)


def test_the_page_shows_the_example_and_lists_every_field() -> None:
    text = PAGE.read_text()
    shown = text.split("# teams.yaml\n")[1].split("```")[0]
    lines = [line for line in EXAMPLE.read_text().splitlines() if not line.startswith("#")]
    assert shown.splitlines() == lines
    listed = set(re.findall(r"`([\w.\[\]]+)`", text.split("## All fields")[1].split("## Limits")[0]))
    kinds: dict[str, type[msgspec.Struct]] = {
        "teams.NAME": Team, "teams.NAME.budget": Budget,
        "reservations[]": schema.ReservationEntry, "sharing": schema.SharingSection,
    }  # fmt: skip
    for place, kind in kinds.items():
        for field in msgspec.structs.fields(kind):
            assert f"{place}.{field.name}" in listed or field.name == "budget"
    assert {"apps[].priority", "apps[].min_run", "apps[].max_run"} <= listed


def test_the_page_can_be_followed(call: Any) -> None:
    text = PAGE.read_text()
    printed = ""
    for language, body in re.findall(r"^```(sh|text)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language == "sh":
            printed = call(*body.replace("teams.yaml", str(EXAMPLE)).split()[1:]).out
        else:
            in_one_line = " ".join(printed.split())
            for line in body.splitlines():
                assert " ".join(line.split()) in in_one_line, line
