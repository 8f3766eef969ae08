"""Machines that share no folder with the arbiter: checkpoints and folders travel with their jobs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from astrarium.cluster.live.backend import JobCommand
from tests.support.cluster.backend import words
from tests.support.cluster.hosts import (
    on,
    result_of,
    squares,
    stopped_after,
    two_hosts,
    waited,
)

pytest_plugins = ("tests.support.cluster.fixtures",)


@pytest.mark.parametrize("copied", [True, False])
def test_a_checkpoint_follows_its_job(tmp_path: Path, script: Path, copied: bool) -> None:
    task = JobCommand(words(script, 40, 0.05))
    with two_hosts(tmp_path, copies=copied) as (office, left, right):
        office.started(on(1, task, "left.1"))
        first = stopped_after(office, 1)
        assert first.ended == "stopped"
        office.forget(1)
        office.started(on(2, task, "right.1"))
        assert office.seen(2, lambda seen: seen.kept >= first.kept).kept >= first.kept
        assert office.seen(2).ended == "finished"
        assert result_of(right) == squares(40)
        assert not left.files("run-*/result.json")


def test_nothing_is_copied_for_a_job_that_stays_if_that_is_not_wanted(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 30, 0.03))
    with two_hosts(tmp_path, copies=False) as (office, left, _):
        office.started(on(1, task, "left.1"))
        first = stopped_after(office, 1)
        office.forget(1)
        office.started(on(2, task, "left.1"))
        assert office.seen(2, lambda seen: seen.kept >= first.kept).kept >= first.kept
        assert office.seen(2).ended == "finished"
        assert result_of(left) == squares(30)
        assert not list((tmp_path / "arbiter").glob("**/*.tar"))


def test_a_gang_is_given_its_checkpoint_on_every_machine(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 40, 0.05))
    with two_hosts(tmp_path) as (office, left, right):
        office.started(on(1, task, "left.1"))
        first = stopped_after(office, 1)
        office.started(on(2, task, "right.1", "left.1"))
        assert office.seen(2).ended == "finished"
        assert first.kept > 0
        assert right.files("run-1/brought.json", "orders")
        [log] = left.files("run-2/part-1/log-1.txt")
        assert log.exists()
        [order] = left.files("run-2/part-1/order.json", "orders")
        env = json.loads(order.read_text())["processes"][0]["env"]
        assert (env["WORLD_SIZE"], env["RANK"], env["MASTER_ADDR"]) == ("2", "1", "127.0.0.1")
        assert env["ASTRARIUM_RESUME"] == str(left.files("run-1/checkpoint")[0])


def test_a_gang_on_two_machines_hears_that_it_should_stop(tmp_path: Path, script: Path) -> None:
    """Long before half of its grace is over: it is up on both."""
    task = JobCommand(words(script, 5000, 0.02))
    with two_hosts(tmp_path, grace=600.0) as (office, _, _):
        office.started(on(1, task, "left.1", "right.1"))
        assert stopped_after(office, 1, 0.001).ended == "stopped"


def test_a_folder_travels_too(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; at = pathlib.Path(os.environ['ASTRARIUM_FOLDER'], 'checkpoint');"
        "given = os.environ['ASTRARIUM_RESUME'];"
        "given and sys.exit(pathlib.Path(given, 'deep', 'two').read_text() != 'b' * 3_000_000);"
        "(at / 'deep').mkdir(parents=True); (at / 'one').write_text('a');"
        "(at / 'deep' / 'two').write_text('b' * 3_000_000); sys.exit(75)"
    )
    task = JobCommand((sys.executable, "-c", code))
    with two_hosts(tmp_path) as (office, _, right):
        office.started(on(1, task, "left.1"))
        assert office.seen(1).ended == "stopped"
        office.started(on(2, task, "right.1"))
        assert office.seen(2).ended == "finished"
        assert {path.name for path in right.files("run-1/checkpoint/*")} == {"one", "deep"}


def test_old_checkpoints_are_cleared_everywhere(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 60, 0.03))
    with two_hosts(tmp_path) as (office, left, right):
        for run, machine in ((1, "left.1"), (2, "right.1"), (3, "left.1")):
            office.started(on(run, task, machine))
            assert stopped_after(office, run, run * 0.2).ended == "stopped"
            office.forget(run)
        office.started(on(4, task, "left.1"))
        assert office.seen(4).ended == "finished"
        waited(lambda: office.backend.look() and not right.files("run-*/checkpoint"))
        assert {path.parent.name for path in left.files("run-*/checkpoint")} <= {"run-3", "run-4"}
        assert len(list((tmp_path / "arbiter").glob("**/*.tar"))) == 1
