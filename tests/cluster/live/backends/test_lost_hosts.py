"""Machines that are lost, cut off, and come back."""

from __future__ import annotations

from pathlib import Path

from astrarium.cluster.live.backend import JobCommand, RunKey
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


def test_a_job_goes_on_from_the_copy_when_its_machine_is_lost(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 100, 0.05), env={"ASTRARIUM_CHECKPOINTS": "0.2"})
    with two_hosts(tmp_path) as (office, left, right):
        office.started(on(1, task, "left.1"))
        waited(lambda: copied_progress(office) > 0.1)
        office.lose(left, "left.1")
        lost = office.seen(1)
        assert (lost.ended, lost.error) == ("lost", "its machine is gone")
        assert lost.kept == copied_progress(office) > 0.1
        assert office.backend.look().machines.keys() == {"right.1"}
        office.forget(1)
        office.started(on(2, task, "right.1"))
        assert office.seen(2, lambda seen: seen.kept > 0).kept >= lost.kept
        waited(lambda: not alive(left) or left.files("run-1/result.json"))
        left.start()  # the cable is back
        office.machines(["left.2", "right.1"])
        assert RunKey(0, 0, 1) not in office.backend.look().runs
        waited(lambda: not alive(left))
        assert office.seen(2).ended == "finished"
        assert result_of(right) == squares(100)


def alive(host: AgentThread) -> list[Path]:
    orders = host.files("run-*/part-*/order.json", "orders")
    return [path for path in orders if not path.with_name("outcome.json").exists()]


def test_a_run_that_was_given_up_is_stopped_and_never_looked_at(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 3000, 0.02), env={"ASTRARIUM_CHECKPOINTS": "0.1"})
    with two_hosts(tmp_path) as (office, left, _):
        office.started(on(1, task, "left.1"))
        waited(lambda: copied_progress(office) > 0)
        office.lose(left, "left.1")
        office.seen(1)
        office.forget(1)
        office.started(on(2, task, "right.1"))
        checkpoint = office.backend._store._begun["0-app/job-0"].given
        assert checkpoint is not None
        left.start()
        office.machines(["left.2", "right.1"])
        waited(lambda: office.backend.look() and not alive(left))
        assert any("run 1 is stopped: it was given up" in line for line in left.words)
        newest = office.backend._newest("0-app/job-0")
        assert newest is not None
        assert newest.run == 2 or newest.name == checkpoint.name
        assert office.backend.look().runs.keys() == {RunKey(0, 0, 2)}


def test_without_a_copy_a_job_begins_anew_unless_its_machine_comes_back(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 40, 0.05))
    with two_hosts(tmp_path, copies=False) as (office, left, right):
        office.started(on(1, task, "left.1"))
        first = stopped_after(office, 1)
        office.lose(left, "left.1")
        assert office.backend.kept(on(1, task, "left.1")) == 0
        left.start()
        office.machines(["left.2", "right.1"])
        assert office.backend.kept(on(1, task, "left.1")) == first.kept
        office.lose(left, "left.2")
        office.started(on(2, task, "right.1"))
        assert office.seen(2).ended == "finished"
        assert result_of(right) == squares(40)
        assert right.files("run-1/*") == []


def test_a_machine_that_is_away_for_a_moment_is_not_lost(tmp_path: Path, script: Path) -> None:
    """Its agent is another one then, and finds the job."""
    task = JobCommand(words(script, 60, 0.05))
    with two_hosts(tmp_path) as (office, left, _):
        office.started(on(1, task, "left.1"))
        office.seen(1, lambda seen: seen.progress > 0.1)
        left.leave()
        left.start()
        assert office.seen(1).ended == "finished"
        assert office.backend.look().machines.keys() == {"left.1", "right.1"}
        assert result_of(left) == squares(60)


def test_jobs_that_end_with_their_agent_are_lost_with_it(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 5000, 0.02))
    with two_hosts(tmp_path) as (office, _left, _):
        other = AgentThread(tmp_path / "other", office.port, "other", with_agent=True)
        office.machines(["left.1", "other.1", "right.1"])
        office.started(on(1, task, "other.1"))
        office.seen(1, lambda seen: seen.progress > 0)
        other.leave()
        waited(lambda: not alive(other))
        other.start()
        assert office.seen(1).ended == "lost"
        office.machines(["left.1", "other.2", "right.1"])
        other.leave()
