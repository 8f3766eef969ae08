"""What goes wrong between an arbiter and its hosts: copies that are cut off or too large, full disks."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astrarium.cluster.live.backend import JobCommand, RunKey
from astrarium.cluster.live.backends.hosts import backend, checkpoints, copies, handle, machine_checkpoints
from astrarium.cluster.live.wire.channel import WireError
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


def test_a_slow_copy_holds_up_nobody(tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = JobCommand(words(script, 40, 0.05))
    go = threading.Event()
    at_once = checkpoints.receive_pieces

    def slowly(channel: Any, write: Any) -> None:
        go.wait(60)
        at_once(channel, write)

    for module in (copies, machine_checkpoints):
        monkeypatch.setattr(module, "receive_pieces", slowly)
    with two_hosts(tmp_path) as (office, _, _right):
        office.started(on(1, task, "left.1"))
        first = stopped_after(office, 1)
        later = on(2, task, "right.1")
        other = later.__class__(RunKey(1, 0, 1), "other", (1,), later.parts, task)
        office.backend.start(later)
        office.started(other)  # on the same machine, meanwhile
        waited(lambda: office.backend.look().runs[other.key].ended == "finished")
        office.backend.start(later)
        assert later.key not in office.backend.look().runs
        go.set()
        office.started(later)
        assert office.seen(2).ended == "finished"
        assert first.kept > 0


def test_a_checkpoint_that_is_cut_off_is_sent_again(
    tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never taken for a whole one, here nor there."""
    at_once = checkpoints.send_pieces
    broken = list[str]()

    def broken_twice(channel: Any, read: Any, *rest: Any) -> None:
        if len(broken) < 2:
            broken.append("once more")
            channel.send_bytes(read(10))
            raise WireError("the cable broke")
        at_once(channel, read, *rest)

    for module in (machine_checkpoints, backend):
        monkeypatch.setattr(module, "send_pieces", broken_twice)
    monkeypatch.setattr(handle, "ASK_AGAIN", 0.2)
    task = JobCommand(words(script, 30, 0.03))
    with two_hosts(tmp_path) as (office, _, right):
        office.started(on(1, task, "left.1"))
        first = stopped_after(office, 1)
        office.started(on(2, task, "right.1"))
        assert len(broken) == 2
        assert office.seen(2, lambda seen: seen.kept >= first.kept).kept > 0
        assert office.seen(2).ended == "finished"
        assert result_of(right) == squares(30)


def test_a_checkpoint_with_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    import socket

    from astrarium.cluster.live.wire.channel import Channel

    left, right = socket.socketpair()
    with Channel(left) as one, Channel(right) as other:
        for body in (b"some", b"", b"x" * 32):
            one.send_bytes(body)
        with pytest.raises(WireError, match="wrong checksum"):
            checkpoints.receive_pieces(other, lambda piece: None)


def test_a_machine_without_room_for_a_checkpoint_fails_the_run(tmp_path: Path, script: Path) -> None:
    task = JobCommand(words(script, 40, 0.03))
    with two_hosts(tmp_path) as (office, _, right):
        office.started(on(1, task, "left.1"))
        first = stopped_after(office, 1)
        [home] = [path for path in right.folder.iterdir() if path.is_dir() and path.name != "locks"]
        (home / "apps").write_text("this is not a folder")
        office.started(on(2, task, "right.1"))
        failed = office.seen(2)
        assert failed.ended == "failed"
        assert failed.kept == first.kept
        assert "its checkpoint could not be brought to right.1: [Errno 20] Not a directory" in failed.error
        office.forget(2)


def test_a_machine_that_cannot_start_a_run_fails_it(tmp_path: Path, script: Path) -> None:
    with two_hosts(tmp_path) as (office, _, right):
        waited(lambda: [path for path in right.folder.iterdir() if path.name not in ("locks", "agent.lock")])
        [home] = [path for path in right.folder.iterdir() if path.is_dir() and path.name != "locks"]
        (home / "apps").write_text("this is not a folder")
        office.started(on(1, JobCommand(words(script)), "right.1"))
        failed = office.seen(1)
        assert failed.ended == "failed"
        assert "it could not be started: [Errno 20] Not a directory" in failed.error
        office.forget(1)


def test_logs_are_brought_when_somebody_wants_them(tmp_path: Path) -> None:
    code = "import time; print('first', flush=True); time.sleep(1); print('last' * 1_000_000)"
    with two_hosts(tmp_path) as (office, _, _):
        office.started(on(1, JobCommand((sys.executable, "-c", code)), "left.1"))
        path = tmp_path / "arbiter/copies/0-app/job-0/run-1/part-0/log-0.txt"

        def brought() -> str:
            office.backend.bring_logs("0-app", 60)
            return path.read_text() if path.exists() else ""

        waited(lambda: brought().startswith("first\n"))
        assert office.seen(1).ended == "finished"
        assert brought() == "first\n" + "last" * 1_000_000 + "\n"
        assert brought() == "first\n" + "last" * 1_000_000 + "\n"


def test_logs_of_an_app_are_bounded_where_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse log costs its job nothing, and once filled the disk of the arbiter."""
    monkeypatch.setattr(backend, "LONGEST_LOG", 3 << 20)
    code = "import os; log = os.environ['ASTRARIUM_FOLDER'] + '/part-0/log-0.txt'; os.truncate(log, 1 << 29)"
    with two_hosts(tmp_path) as (office, _, _):
        office.started(on(1, JobCommand((sys.executable, "-c", code)), "left.1"))
        assert office.seen(1).ended == "finished"
        path = tmp_path / "arbiter/copies/0-app/job-0/run-1/part-0/log-0.txt"
        for _ in range(3):
            office.backend.bring_logs("0-app", 60)
            assert path.stat().st_size == 3 << 20


def test_a_checkpoint_that_finds_no_room_is_not_asked_for_again_and_again(tmp_path: Path) -> None:
    """A sparse checkpoint of terabytes once had the arbiter write its disk full, over and over."""
    store = copies.CopyStore(tmp_path)
    one = checkpoints.Checkpoint("0-app/job-0", 1, checkpoints.Stamp(1, 1 << 50))
    channel: Any = SimpleNamespace(receive_bytes=lambda: pytest.fail("nothing of it is taken"))
    with pytest.raises(OSError, match=f"a checkpoint of {1 << 50} bytes, and room for"):
        store.receive(channel, one)
    assert store.waits(one)
    assert not store.waits(checkpoints.Checkpoint("1-other/job-0", 1, checkpoints.Stamp(1, 10)))


def test_a_checkpoint_is_no_larger_than_it_was_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "OVERHEAD", 1000)
    store = copies.CopyStore(tmp_path)
    one = checkpoints.Checkpoint("0-app/job-0", 1, checkpoints.Stamp(1, 10))
    channel: Any = SimpleNamespace(receive_bytes=lambda: b"x" * 100)
    with pytest.raises(OSError, match="more than 1020 bytes: it is larger than it was said to be"):
        store.receive(channel, one)
    assert not list(tmp_path.glob("copies/*/*/*/*"))


def test_logs_leave_room_for_the_arbiter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "LEAST_ROOM", 1 << 62)
    whole = SimpleNamespace(f_bavail=1, f_blocks=1 << 40, f_frsize=4096)
    monkeypatch.setattr(os, "fstatvfs", lambda descriptor: whole)
    with (tmp_path / "log").open("wb") as file, pytest.raises(OSError, match="no room for more"):
        copies.write_within(file, b"x")
    assert (tmp_path / "log").stat().st_size == 0


@pytest.mark.parametrize(("job", "run"), [("0-a/../b", 1), ("/etc", 1), ("0-a/job-0", 0), ("0-a", 1)])
def test_only_folders_of_jobs_can_be_named(job: str, run: int) -> None:
    with pytest.raises(ValueError, match="a job's folder and run"):
        checkpoints.Checkpoint(job, run, checkpoints.Stamp(1, 1))
