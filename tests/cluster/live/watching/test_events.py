"""What is told of a live cluster: events, apps that have ended, and GPU time by team and day."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.cluster.contract import AppArrived, Grant, MachineJoined, single
from astrarium.cluster.live.backend import MachineStatus, Sickness
from astrarium.cluster.live.slowdowns import FixedSlowdowns
from astrarium.cluster.live.store import FILE, open_database
from astrarium.cluster.live.watching.events import Chronicler
from astrarium.cluster.live.watching.history import (
    By,
    Span,
    WallClock,
    accounting,
    events,
    history,
    last_instant,
    moment,
    usage,
)
from astrarium.cluster.machines import Machine
from astrarium.cluster.state import ClusterState
from astrarium.core.quantities import SECOND
from astrarium.core.trace import Step
from tests.support.cluster.virtual_cluster import START, VirtualCluster

DAY = 24 * 3600 * SECOND
ENDS = {"finished", "failed", "withdrawn"}
OF_STEPS = ENDS | {"submitted", "started", "resumed", "preempted", "shrunk", "grown", "moved"}


def rows_of(cluster: VirtualCluster, *fields: str, **wanted: Any) -> list[tuple[Any, ...]]:
    with open_database(cluster.home / FILE, read_only=True) as db:
        return [tuple(event[field] for field in fields) for event in events(db, **wanted)]


def test_events_tell_of_gpus_that_fail_and_are_used_again(tmp_path: Path) -> None:
    cluster = VirtualCluster(tmp_path)
    cluster.submit("a", 4)
    cluster.go(1)
    cluster.backend.sicken("right", gpu1=Sickness("Xid 79", lost=True))
    cluster.go(1)
    cluster.backend.sicken("right")
    cluster.submit("", kind="retry", machine="right", gpu=1)
    cluster.submit("", kind="drain", machine="right", gpu=7)
    cluster.go(1)
    seen = rows_of(cluster, "kind", "name", "cause", "reason")
    assert [event[1] for event in seen if event[0] == "refused"] == ["right:7"]
    assert ("gpu_failed", "right:1", "", "Xid 79") in seen
    assert ("preempted", "a", "lost", "GPU 3 is out of use: Xid 79") in seen
    assert ("gpu_repaired", "right:1", "", "") in seen


def test_events_tell_the_story_of_a_cluster(tmp_path: Path) -> None:
    cluster = VirtualCluster(tmp_path)
    cluster.backend.breaks = {2}
    cluster.submit("a", 4, team="red")
    cluster.go(1)
    cluster.submit("b", 2, team="blue")
    cluster.submit("huge", 9)
    cluster.go(6)
    cluster.backend.lose("right")
    cluster.submit("bad")
    cluster.go(4)
    cluster.backend.machines["third"] = MachineStatus(2)
    cluster.submit("b", kind="withdraw")
    cluster.go(60)
    cluster.arbiter.close()
    seen = rows_of(cluster, "kind", "name", "cause")
    assert seen[:5] == [
        ("arbiter_started", "arbiter 1", ""),
        ("machine_joined", "left", ""),
        ("machine_joined", "right", ""),
        ("submitted", "a", ""),
        ("started", "a", ""),
    ]
    assert [event[0] for event in seen if event[1] == "a"] == [
        "submitted", "started", "preempted", "resumed", "finished"
    ]  # fmt: skip
    assert ("preempted", "a", "expired") in seen
    assert ("refused", "huge", "") in seen
    assert [event[0] for event in seen if event[1] == "bad"][-1] == "failed"
    assert [event[0] for event in seen if event[1] == "bad"].count("run_failed") == 3
    assert [event[0] for event in seen if event[1] == "b"][-1] == "withdrawn"
    assert {("machine_lost", "right", ""), ("machine_joined", "third", "")} <= set(seen)
    assert seen[-1] == ("arbiter_ended", "arbiter 1", "")
    why = next(reason for kind, reason in rows_of(cluster, "kind", "reason") if kind == "preempted")
    assert why == "its lease ended; given to b (it has had the least GPU time)"
    assert {name for (name,) in rows_of(cluster, "name", teams=["red"])} == {"a"}
    assert {name for (name,) in rows_of(cluster, "name", app="b")} == {"b"}
    assert rows_of(cluster, "kind", app="huge") == [("refused",)]


def test_an_app_that_loses_its_machine_is_told_so(tmp_path: Path) -> None:
    cluster = VirtualCluster(tmp_path, "fifo")
    cluster.submit("a", 4)
    cluster.go(3)
    cluster.backend.lose("right")
    cluster.go(1)
    assert ("preempted", "lost", "right died") in rows_of(cluster, "kind", "cause", "reason")


def test_an_arbiter_that_left_without_a_word_is_missed(tmp_path: Path) -> None:
    cluster = VirtualCluster(tmp_path)
    cluster.submit("a")
    cluster.go(2)
    cluster.die_and_come_back()
    cluster.arbiter.close()
    started = [reason for kind, reason in rows_of(cluster, "kind", "reason") if kind == "arbiter_started"]
    assert ["left without a word" in reason for reason in started] == [False, True]
    ended = [reason for kind, reason in rows_of(cluster, "kind", "reason") if kind == "arbiter_ended"]
    assert ended == ["its jobs run on"]


def test_events_have_the_time_of_the_wall_even_if_it_is_set(tmp_path: Path) -> None:
    cluster = VirtualCluster(tmp_path)
    cluster.submit("a")
    cluster.go(2)
    cluster.set_back = 3600 * SECOND
    cluster.submit("b")
    cluster.go(2)
    cluster.die_and_come_back()
    cluster.submit("c")
    cluster.go(2)
    came = {
        name: wall - START
        for kind, name, wall in rows_of(cluster, "kind", "name", "wall")
        if kind == "submitted"
    }
    assert came == {
        "a": SECOND // 2,
        "b": 5 * SECOND // 2 - 3600 * SECOND,
        "c": 9 * SECOND // 2 - 3600 * SECOND,
    }
    assert rows_of(cluster, "name", since=START) != rows_of(cluster, "name")


def test_a_folder_that_an_earlier_version_has_begun_is_gone_on_with(tmp_path: Path) -> None:
    cluster = VirtualCluster(tmp_path)
    cluster.submit("a", team="red")
    cluster.go(50)
    db = open_database(cluster.home / FILE)
    for change in ("TABLE events", "TABLE clock"):
        db.execute(f"DROP {change}")
    for table, column in (("apps", "team"), ("runs", "began")):
        db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    cluster.die_and_come_back()
    cluster.submit("b", team="blue")
    cluster.go(50)
    with open_database(cluster.home / FILE, read_only=True) as db:
        accounts = accounting(db, ["team"])
        assert [app["team"] for app in history(db)] == ["red", "blue"]
    assert {group: used.counts["finished"] for group, used in accounts.items()} == {("red",): 1, ("blue",): 1}
    assert [name for kind, name in rows_of(cluster, "kind", "name") if kind == "finished"] == ["b"]


def test_a_step_that_could_not_be_written_is_told_when_it_is() -> None:
    state = ClusterState()
    chronicler = Chronicler()
    step = Step(
        0, (MachineJoined(Machine(0, 1)), AppArrived(single(0, "a", SECOND))), (Grant(0, (0,), SECOND),)
    )
    for event in step.events:
        state.apply(0, event)
    state.commit(0, step.actions[0])
    first = chronicler.hear(step, state, {0: "here"}, ())
    assert [event.kind for event in first] == ["machine_joined", "submitted", "started"]
    assert chronicler.hear(step, state, {0: "here"}, ()) == first
    assert chronicler.hear(Step(1, (), ()), state, {0: "here"}, ()) == []


def test_a_clock_that_was_set_cuts_days_where_it_says() -> None:
    clock = WallClock([(0, 10 * DAY - 5 * SECOND), (20 * SECOND, 9 * DAY + 20 * SECOND)])
    days = ["1970-01-10", "1970-01-11", "1970-01-10"]
    parts = [(0, 5), (5, 20), (20, 30)]
    assert list(clock.days(0, 30 * SECOND)) == [
        (day, start * SECOND, end * SECOND) for day, (start, end) in zip(days, parts, strict=True)
    ]
    assert moment(START).isoformat() == "2023-11-14T22:13:20+00:00"


SPANS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3 * DAY), st.integers(0, 2 * DAY)),
    max_size=12,
).map(lambda drawn: [Span(app, gpu, start, start + length) for app, gpu, start, length in drawn])
GROUPS: list[list[By]] = [["team"], ["app"], ["day"], ["team", "day"], ["day", "app"]]


@given(
    leases=SPANS, anchors=st.lists(st.tuples(st.integers(0, 3 * DAY), st.integers(0, 9 * DAY)), max_size=3)
)
def test_groups_add_up_to_the_leases(leases: list[Span], anchors: list[tuple[int, int]]) -> None:
    """However they are cut by days, and whatever was done to the clock."""
    named = {0: ("a", "red"), 1: ("b", "red"), 2: ("c", "blue")}
    whole = sum(lease.end - lease.start for lease in leases)
    for by in GROUPS:
        accounts = usage(leases, leases, named, WallClock(anchors), by)
        assert sum(row.leased for row in accounts.values()) == whole


WISHES = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 4)),
        st.tuples(st.just("withdraw"), st.integers(0, 3)),
        st.tuples(st.just("go"), st.integers(1, 12)),
        st.tuples(st.just("lose"), st.sampled_from(["left", "right"])),
        st.tuples(st.just("join"), st.sampled_from(["left", "right"])),
        st.tuples(st.just("die"), st.just(0)),
    ),
    min_size=3,
    max_size=14,
)


def lived(home: Path, wishes: list[tuple[str, Any]], policy: str) -> VirtualCluster:
    cluster = VirtualCluster(home, policy)
    count = 0
    for wish, what in wishes:
        if wish == "submit":
            cluster.submit(f"app-{count}", what, team=("red", "blue", "")[count % 3])
            count += 1
        elif wish == "withdraw":
            cluster.submit(f"app-{what}", kind="withdraw")
        elif wish == "go":
            cluster.go(what)
        elif wish == "lose" and what in cluster.backend.machines:
            cluster.backend.lose(what)
        elif wish == "join":
            cluster.backend.machines.setdefault(what, MachineStatus(2))
        elif wish == "die":
            cluster.die_and_come_back(policy)
    cluster.go(5)
    return cluster


def again(cluster: VirtualCluster) -> Iterator[tuple[str, str]]:
    """Events of apps, made anew from the steps."""
    state = ClusterState(FixedSlowdowns())
    chronicler = Chronicler()
    for step in cluster.arbiter.store.steps():
        for event in step.events:
            state.apply(step.now, event)
        for action in step.actions:
            state.commit(step.now, action)
        yield from ((event.kind, event.name) for event in chronicler.hear(step, state, {}, ()))


@settings(max_examples=25, deadline=None)
@given(WISHES, st.sampled_from(["fifo", "tiresias", "srtf"]))
def test_whatever_happens_the_accounts_are_whole(wishes: list[tuple[str, Any]], policy: str) -> None:
    with tempfile.TemporaryDirectory() as home:
        cluster = lived(Path(home), wishes, policy)
        of_apps = [row for row in rows_of(cluster, "kind", "name") if row[0] in OF_STEPS]
        assert of_apps == [row for row in again(cluster) if row[0] in OF_STEPS]
        for row in cluster.rows("SELECT * FROM apps"):
            check_story([kind for kind, name in of_apps if name == row["name"]], row["outcome"])
        check_accounts(cluster)
        cluster.arbiter.store.close()
        os.close(cluster.arbiter._lock)


def check_story(kinds: list[str], outcome: str) -> None:
    """An app comes once, starts once, is resumed after it was preempted, and ends once, if it does."""
    assert kinds[0] == "submitted"
    assert kinds.count("submitted") == 1
    assert [kind for kind in kinds if kind in ENDS] == ([] if outcome == "open" else [outcome])
    holds = False
    for place, kind in enumerate(kinds[1:], 1):
        if kind in ("started", "resumed"):
            assert not holds
            assert (kind == "started") == ("started" not in kinds[:place])
            holds = True
        elif kind == "preempted":
            assert holds
            holds = False


def check_accounts(cluster: VirtualCluster) -> None:
    with open_database(cluster.home / FILE, read_only=True) as db:
        now = last_instant(db)
        leased = db.execute(
            "SELECT coalesce(sum(coalesce(ended, ?) - since), 0) FROM leases", (now,)
        ).fetchone()[0]
        apps = dict(db.execute("SELECT outcome, count(*) FROM apps GROUP BY 1"))
        for by in GROUPS:
            accounts = list(accounting(db, by).values())
            assert sum(row.leased for row in accounts) == leased
            assert all(0 <= row.busy <= row.leased for row in accounts)
            for outcome in ENDS:
                assert sum(row.counts[outcome] for row in accounts) == apps.get(outcome, 0)
            assert sum(row.counts["submitted"] for row in accounts) == sum(apps.values())
        past = history(db)
        assert len(past) == sum(apps.get(outcome, 0) for outcome in ENDS)
        own = {group: used.leased for group, used in accounting(db, ["app"]).items()}
        for app in past:
            assert app["gpu_hours"] * 3600 * SECOND == pytest.approx(own.get((app["app"],), 0))


def test_gpu_time_is_busy_while_a_process_is_up(tmp_path: Path) -> None:
    cluster = VirtualCluster(tmp_path, "fifo")
    cluster.submit("a", 2, team="red")
    cluster.go(40)
    with open_database(cluster.home / FILE, read_only=True) as db:
        [used] = accounting(db, ["team"]).values()
        [app] = history(db, teams=["red"])
        assert history(db, teams=["blue"]) == []
        assert accounting(db, ["team"], since=START + DAY) == {}
        [part] = accounting(db, ["team"], since=START + 10 * SECOND).values()
    assert used.leased == 40 * SECOND  # two GPUs for 20 s
    assert used.busy == 39 * SECOND  # it was first seen half a second after it was ordered
    assert part.leased == 21 * SECOND  # until 20.5 s
    assert part.counts["finished"] == 1
    assert part.counts["submitted"] == 0
    assert (app["waited_s"], app["took_s"], app["preemptions"]) == (0.0, 20.0, 0)
