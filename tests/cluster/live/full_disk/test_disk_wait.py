"""What the operator hears while the arbiter waits for the disk."""

from __future__ import annotations

import errno
import re
import sqlite3
from pathlib import Path

import pytest

from astrarium.cluster.live.disk_wait import DiskWait
from astrarium.core.quantities import SECOND
from tests.support.cluster.full_disk import Clock, database_full, failing, os_error
from tests.support.cluster.virtual_cluster import VirtualCluster


@pytest.fixture
def disk_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[DiskWait, Clock]:
    times = Clock()
    monkeypatch.setattr("astrarium.cluster.live.disk_wait.time", times)
    return DiskWait(tmp_path, VirtualCluster(tmp_path).arbiter, lambda what, took: None), times


def tried(wait: DiskWait, *errors: Exception) -> None:
    for error in errors:
        with wait.waited_for():
            raise error


READ_ONLY = database_full(sqlite3.SQLITE_READONLY | 3 << 8)


@pytest.mark.parametrize(
    "error", [database_full(), READ_ONLY, database_full(sqlite3.SQLITE_BUSY), os_error(errno.EMFILE)]
)
def test_the_operator_hears_what_is_needed_now_and_then_and_when_it_goes_on(
    disk_wait: tuple[DiskWait, Clock], capsys: pytest.CaptureFixture[str], tmp_path: Path, error: Exception
) -> None:
    one, times = disk_wait
    tried(one, error)
    assert not one.missing
    tried(one, *[error] * 20)
    assert one.missing
    [printed] = capsys.readouterr().err.splitlines()
    assert printed.startswith(f"the arbiter waits: {tmp_path} cannot be written ({error}); ")
    assert re.search(r"MB are free there, about 0\.\d\d MB are needed", printed)
    times.now += DiskWait.SAY
    tried(one, *[error] * 20)
    assert len(capsys.readouterr().err.splitlines()) == 1
    with one.waited_for():
        pass
    assert not one.missing
    assert capsys.readouterr().err == f"{tmp_path} can be written again: the arbiter goes on\n"


def test_a_slow_turn_is_told_and_a_broken_store_is_not_waited_for(
    disk_wait: tuple[DiskWait, Clock], capsys: pytest.CaptureFixture[str]
) -> None:
    one, times = disk_wait
    for _ in range(3):
        with one.waited_for():
            times.now += 9
    assert capsys.readouterr().err.count("a turn took 9 s: the disk of") == 1
    for error in (
        database_full(sqlite3.SQLITE_CORRUPT),
        os_error(errno.ENOENT),
        database_full(sqlite3.SQLITE_ERROR),
    ):
        with pytest.raises(type(error)):
            tried(one, error)


def test_that_it_waits_is_an_event_when_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = VirtualCluster(tmp_path)
    waits = list[float]()
    one = DiskWait(tmp_path, cluster.arbiter, lambda what, took: waits.append(took / SECOND))
    real = cluster.arbiter.store.tell
    tell = failing(4, database_full(), cluster.arbiter.store.tell)
    monkeypatch.setattr(cluster.arbiter.store, "tell", tell)
    began = cluster.arbiter.now()
    for _ in range(4):
        tried(one, database_full())
        cluster.clock.pass_seconds(1)
    assert waits == [0, 1, 2]
    assert not cluster.count("events", "kind = 'arbiter_waits'")
    for _ in range(3):
        with one.waited_for():
            pass
    monkeypatch.setattr(cluster.arbiter.store, "tell", real)
    rows = cluster.rows("SELECT at, kind, name, reason FROM events WHERE kind != 'arbiter_started'")
    assert [(row["at"] - began, row["kind"], row["name"]) for row in rows] == [
        (1 * SECOND, "arbiter_waits", "arbiter 1"),
        (4 * SECOND, "arbiter_goes_on", "arbiter 1"),
    ]
    assert rows[0]["reason"].startswith(f"{tmp_path} cannot be written (")
    assert rows[0]["reason"].endswith("MB are needed")
    assert (rows[1]["reason"], waits[-1]) == ("it has waited 3 s", 0)
    cluster.die_and_come_back()
    [begins] = cluster.rows("SELECT reason FROM events ORDER BY id DESC LIMIT 1")
    assert "the one before left without a word" in begins["reason"]
