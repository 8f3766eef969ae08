"""Arbiters that come after each other, and machines that come back to another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astrarium.cluster.live.backend import Fenced, JobCommand, RunKey
from tests.support.cluster.backend import words
from tests.support.cluster.hosts import (
    AgentThread,
    copied_progress,
    on,
    result_of,
    squares,
    stopped_after,
    two_hosts,
    waited,
)

pytest_plugins = ("tests.support.cluster.fixtures",)


def test_the_next_arbiter_finds_what_runs_and_what_has_ended(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 60, 0.05))
    with two_hosts(tmp_path) as (office, _, right):
        office.started(on(1, task, "left.1"))
        first = stopped_after(office, 1)
        office.forget(1)
        office.started(on(2, task, "right.1"))
        office.seen(2, lambda seen: seen.progress > first.progress)
        office.again()
        runs = office.backend.look().runs
        assert runs.keys() == {RunKey(0, 0, 2)}
        assert runs[RunKey(0, 0, 2)].kept >= first.kept
        assert office.backend.look().machines.keys() == {"left.1", "right.1"}
        assert office.seen(2).ended == "finished"
        assert result_of(right) == squares(60)


def test_a_machine_that_does_not_come_back_to_the_next_arbiter_is_lost(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 5000, 0.02), env={"ASTRARIUM_CHECKPOINTS": "0.1"})
    with two_hosts(tmp_path) as (office, left, _):
        office.started(on(1, task, "left.1"))
        waited(lambda: copied_progress(office) > 0)
        left.leave()
        office.options["patience"] = 3.0
        office.again()
        lost = office.backend.look().runs[RunKey(0, 0, 1)]
        assert (lost.ended, lost.kept) == ("lost", copied_progress(office))
        assert lost.kept > 0


@pytest.mark.thorough
def test_an_agent_refuses_an_arbiter_that_was_superseded(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as (office, left, _):
        office.again()
        office.machines(["left.1", "right.1"])
        office.epoch = 0
        office.again()

        def refused() -> bool:
            try:
                office.backend.look()
            except Fenced as error:
                return str(error) == "arbiter 1 was superseded by arbiter 2"
            return False

        waited(refused)
        assert "arbiter 1 was superseded by arbiter 2; trying again" in left.words


def test_a_fresh_state_folder_is_another_cluster(tmp_path: Path, script: Path) -> None:
    """Its apps may have the names of others that were here: their files are elsewhere."""
    task = JobCommand(words(script, 20, 0.01))
    with two_hosts(tmp_path) as (office, left, _):
        office.started(on(1, task, "left.1"))
        assert office.seen(1).ended == "finished"
        office.listener.close()
        office._home = tmp_path / "another"
        office.again()
        office.machines(["left.1", "right.1"])
        office.started(on(1, JobCommand(words(script, 30, 0.01)), "left.1"))
        assert office.seen(1).ended == "finished"
        assert sorted(json.loads(path.read_text())["count"] for path in left.files("run-1/result.json")) == [
            20,
            30,
        ]


def test_two_machines_with_one_name_are_told_apart(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as (office, _, _):
        twin = AgentThread(tmp_path / "twin", office.port, "left")
        waited(lambda: any("another machine here has the name left" in line for line in twin.words))
        assert office.backend.look().machines.keys() == {"left.1", "right.1"}
        twin.leave()


def test_a_machine_that_comes_back_with_other_gpus_is_another_one(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as (office, left, _):
        left.leave()
        other = AgentThread(tmp_path / "left", office.port, "left", gpus=3)
        office.machines(["left.2", "right.1"])
        assert office.backend.look().machines["left.2"].gpus == 3
        other.leave()
