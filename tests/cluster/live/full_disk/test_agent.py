"""What a machine's agent could not start or write for want of space or memory, it does at a later look."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

import pytest

from astrarium.cluster.live.backend import JobCommand, RunKey, RunStatus
from astrarium.cluster.live.machine import agent as agent_module
from astrarium.cluster.live.machine.keeping import records
from tests.support.cluster.backend import backend, order, result, seen, words
from tests.support.cluster.full_disk import failing, os_error

pytest_plugins = ("tests.support.cluster.fixtures",)


KEY = RunKey(0, 0, 1)


@pytest.mark.parametrize("error", [os_error(), os_error(errno.ENOMEM), os_error(errno.EAGAIN), MemoryError()])
def test_what_could_not_be_started_is_started_at_a_later_look(
    home: Path, script: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    one = backend(home)
    monkeypatch.setattr(subprocess, "Popen", failing(2, error, subprocess.Popen))
    one.start(order(1, JobCommand(words(script))))
    assert not list(home.glob("orders/*/*/*/part-*"))  # nothing half made
    assert one.look().runs[KEY] == RunStatus((0,), error=str(error) or "no memory")
    assert seen(one, 1).ended == "finished"
    assert result(home)["count"] == 20


def test_what_cannot_be_started_for_another_reason_is_told(
    home: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", failing(1, os_error(errno.EACCES), subprocess.Popen))
    with pytest.raises(PermissionError):
        backend(home).start(order(1, JobCommand(words(script))))


def test_a_run_that_is_given_up_before_there_is_room_was_not_started(
    home: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = backend(home)
    monkeypatch.setattr(subprocess, "Popen", failing(1, os_error(), subprocess.Popen))
    one.start(order(1, JobCommand(words(script))))
    one.stop(KEY)
    assert one.look().runs[KEY] == RunStatus((0,), "unstarted")
    one.forget(KEY)
    assert not one.look().runs
    assert not backend(home).look().runs


def test_an_arbiter_that_was_killed_between_a_folder_and_its_keeper(home: Path, script: Path) -> None:
    """Nothing was started yet: the next one starts it, and nothing is lost."""
    one = backend(home)
    task = JobCommand(words(script))
    (home / "orders" / "0-app" / "job-0" / "run-1" / "part-0").mkdir(parents=True)
    assert not one.look().runs
    one.start(order(1, task))
    assert seen(one, 1).ended == "finished"


def test_a_wish_that_cannot_be_written_reaches_the_job_later(
    home: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = backend(home)
    one.start(order(1, JobCommand(words(script, 5000, 0.02))))
    seen(one, 1, lambda run: run.progress > 0)
    monkeypatch.setattr(agent_module, "mark", failing(2, os_error(), records.mark))
    one.stop(KEY)
    assert seen(one, 1).ended == "stopped"
    monkeypatch.setattr(agent_module, "mark", failing(2, os_error(), records.mark))
    for _ in range(3):  # as a cluster does at every step, until it is no longer shown
        one.forget(KEY)
        assert backend(home).look().runs.keys() == one.look().runs.keys()
    one.forget(KEY)
    assert not one.look().runs
    assert not backend(home).look().runs


def test_an_outcome_that_cannot_be_read_now_is_not_taken_for_lost(
    home: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = backend(home)
    one.start(order(1, JobCommand(words(script))))
    seen(one, 1)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", failing(99, os_error(errno.EMFILE), Path.read_bytes))
        assert one.look().runs[KEY].ended == ""
    assert one.look().runs[KEY].ended == "finished"
