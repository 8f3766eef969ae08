"""A step that finds no space is written later, and nothing is ordered before it is written."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.live.slowdowns import FixedSlowdowns
from astrarium.cluster.policies import Arbiter, cluster_policies
from astrarium.cluster.state import ClusterState
from astrarium.core.choice import Choice, chosen
from astrarium.core.engine import Engine
from astrarium.run.replay import replay
from tests.support.cluster.full_disk import database_full, failing
from tests.support.cluster.virtual_cluster import VirtualCluster


def check_ended_well(cluster: VirtualCluster, policy: str = "tiresias") -> None:
    assert set(cluster.outcomes().values()) == {"finished"}
    for table in ("leases", "runs"):
        assert cluster.count(table, "outcome = 'open' OR ended IS NULL") == 0
    assert cluster.count("runs", "outcome IN ('lost', 'failed')") == 0
    started = cluster.backend.started
    assert cluster.count("runs", "outcome != 'unstarted'") == len(started) == len(set(started))
    parameters = {"fifo": {}, "max-min": {"round": "5s"}}.get(policy, {"lease": "5s"})
    fresh = Engine(
        ClusterState(FixedSlowdowns()), Arbiter(chosen(cluster_policies, Choice(policy, parameters)))
    )
    assert replay(fresh, cluster.arbiter.store.steps()) is None


@pytest.mark.parametrize("policy", ["fifo", "tiresias", "themis", "max-min", "astrarium"])
def test_a_step_that_finds_no_room_is_written_later_and_nothing_is_ordered_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Every third step fails some times over, after the rows of it were written, and at the commit."""
    cluster = VirtualCluster(tmp_path, policy)
    for number in range(4):
        cluster.submit(f"app {number}", 1 + number % 3)
    cluster.submit("huge", 9)
    store = cluster.arbiter.store
    writes = 0
    failures = 0
    real = store._rows.write

    def sometimes(*arguments: Any) -> None:
        nonlocal writes
        writes += 1
        real(*arguments)
        if writes % 3:
            raise database_full()

    monkeypatch.setattr(store._rows, "write", sometimes)
    for _ in range(1500):
        cluster.clock.pass_seconds(0.5)
        before = (
            list(cluster.backend.started),
            {key: run.leaves_at for key, run in cluster.backend.runs.items()},
        )
        try:
            cluster.arbiter.turn()
        except sqlite3.OperationalError:
            failures += 1
            assert store.behind
            assert not cluster.arbiter.idle
            assert before == (
                cluster.backend.started, {key: run.leaves_at for key, run in cluster.backend.runs.items()}
            )  # fmt: skip
        if cluster.arbiter.idle:
            break
    assert failures > 10
    check_ended_well(cluster, policy)
    [answer] = cluster.rows("SELECT answer FROM inbox WHERE answer LIKE 'refused%'")
    assert answer["answer"] == "refused: gpus: expected at most 4 (got 9)"


def test_a_store_that_is_really_full(tmp_path: Path) -> None:
    """SQLite says so by itself: its file may not grow. It is left as it is, and goes on when it may."""
    cluster = VirtualCluster(tmp_path)
    cluster.submit("a", 2)
    cluster.go(2)
    store = cluster.arbiter.store
    [pages] = cluster.arbiter.store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    store.answer_later(cluster.submit("huge", 9), "x" * 10**6)
    for _ in range(3):
        cluster.clock.pass_seconds(0.5)
        with pytest.raises(sqlite3.OperationalError, match="full") as raised:
            cluster.arbiter.turn()
        assert raised.value.sqlite_errorcode == sqlite3.SQLITE_FULL
        assert store.behind
    store._db.execute(f"PRAGMA max_page_count = {pages + 1000}")
    cluster.go(60)
    assert not store.behind
    check_ended_well(cluster)


def test_an_arbiter_that_dies_with_a_step_that_was_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = VirtualCluster(tmp_path)
    for number in range(3):
        cluster.submit(f"app {number}", 2)
    cluster.go(7)
    monkeypatch.setattr(cluster.arbiter.store._rows, "write", failing(99, database_full(), lambda *_: None))
    steps = cluster.count("steps")
    with pytest.raises(sqlite3.OperationalError):
        cluster.go(20)
    cluster.clock.pass_seconds(30)
    assert cluster.count("steps") == steps
    cluster.die_and_come_back()
    cluster.go(300)
    assert set(cluster.outcomes().values()) == {"finished"}
    assert cluster.count("runs", "outcome = 'open'") == cluster.count("leases", "outcome = 'open'") == 0


def test_a_slow_disk_makes_nobody_dead_and_no_lease_end_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write takes longer than a lease."""
    cluster = VirtualCluster(tmp_path)
    for number in range(3):
        cluster.submit(f"app {number}", 2)
    real = cluster.arbiter.store.write

    def slowly(*arguments: Any) -> None:
        cluster.clock.pass_seconds(7)
        real(*arguments)

    monkeypatch.setattr(cluster.arbiter.store, "write", slowly)
    cluster.go(300)
    check_ended_well(cluster)
    assert cluster.count("leases", "outcome = 'lost'") == 0
    assert cluster.count("decisions", "what = 'lost'") == 0


def test_closing_without_room_leaves_the_status_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = VirtualCluster(tmp_path)
    cluster.submit("a")
    cluster.go(2)
    monkeypatch.setattr(cluster.arbiter.store, "_put", failing(9, database_full(), lambda *_: None))
    cluster.arbiter.close()
    assert '"arbiter":true' in cluster.rows("SELECT value FROM meta WHERE key = 'status'")[0]["value"]
