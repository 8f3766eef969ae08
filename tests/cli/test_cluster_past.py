"""What `astrarium cluster` tells of a live cluster that has run: events, history, accounting, status."""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from astrarium.cli.cluster import status as status_module
from astrarium.cluster.live.access import AccessSection
from astrarium.cluster.live.service.service import Service
from astrarium.cluster.live.service.state_folder import StateFolder
from astrarium.cluster.live.service.unix_socket import unix_listener
from astrarium.cluster.live.settings import hooks_of
from astrarium.cluster.live.watching import history as history_module
from astrarium.cluster.live.watching.events import ClusterEvent
from astrarium.cluster.live.wire.handshake import Place
from astrarium.cluster.live.wire.listener import tcp_listener
from astrarium.cluster.scenario.read import parse
from astrarium.core.errors import InputError
from tests.support.cluster.live_fakes import Immediate
from tests.support.cluster.virtual_cluster import VirtualCluster

pytest_plugins = ("tests.support.cli_fixtures",)


@pytest.fixture
def cluster(tmp_path: Path) -> VirtualCluster:
    """A cluster that began a minute ago, with an app that waits."""
    cluster = VirtualCluster(tmp_path / "one.state", "fifo", foresight=Immediate())
    cluster.set_back = cluster.wall() - time.time_ns() + 60 * 10**9
    cluster.die_and_come_back("fifo")
    cluster.submit("a", 2, team="red")
    cluster.submit("huge", 9)
    cluster.go(30)
    cluster.submit("b", 2, team="blue")
    cluster.go(1)
    cluster.submit("wide", 4)
    cluster.submit("c", 1)
    cluster.go(1)
    return cluster


@pytest.fixture
def state(cluster: VirtualCluster) -> str:
    return str(cluster.home)


def test_a_refused_app_of_a_file_does_not_keep_the_others(
    call: Any, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"x": "accepted", "y": "refused: gpus", "z": None, "last": "refused: name"}
    monkeypatch.setattr(StateFolder, "send", lambda self, kind, body, wait: answers[body["name"]])
    apps = [{"name": name, "length": "1s", "command": "true"} for name in answers]
    (tmp_path / "apps.yaml").write_text(json.dumps({"apps": apps}))
    answer = call("cluster", "submit", str(tmp_path / "apps.yaml"), "--state", state)
    assert (answer.code, answer.out) == (2, "x: accepted\n")
    assert "z: left for the arbiter" in answer.err
    assert "error: y: refused: gpus\nerror: last: refused: name\n" in answer.err
    assert answer.err.endswith("error: 2 of 4 apps were refused; the others were handed in\n")


def test_a_priority_is_submitted(call: Any, cluster: VirtualCluster, state: str) -> None:
    words = ("cluster", "submit", "--state", state, "--command", "true", "--name", "soon", "--wait", "0")
    assert call(*words, "--priority", "2").code == 0
    [message] = cluster.arbiter.store.inbox.unread()
    assert message.body["priority"] == 2
    assert "app.priority: expected a whole number" in call(*words, "--priority", "1001").error


def test_events_are_lines_or_objects(call: Any, state: str) -> None:
    lines = call("cluster", "events", "--state", state).lines
    assert any("started a [red] GPUs 0-1: it was the next in line" in line for line in lines)
    assert any("refused huge: gpus: expected at most 4 (got 9)" in line for line in lines)
    events = [
        json.loads(line) for line in call("cluster", "events", "--state", state, "--json").out.splitlines()
    ]
    assert len(events) == len(lines)
    assert [event["id"] for event in events] == sorted(event["id"] for event in events)
    assert [event["kind"] for event in events if event["name"] == "a"] == ["submitted", "started", "finished"]
    of_team = call("cluster", "events", "--state", state, "--team", "blue").lines
    assert [line.split()[2:4] for line in of_team] == [["submitted", "b"], ["started", "b"]]


def test_events_since_then(call: Any, state: str) -> None:
    assert call("cluster", "events", "--state", state, "--since", "1ns").out == ""
    assert call("cluster", "events", "--state", state, "--since", "7d").out != ""
    assert "--since: expected a duration" in call("cluster", "events", "--state", state, "--since", "x").error


def test_history_as_table_json_and_csv(call: Any, state: str) -> None:
    assert "finished" in call("cluster", "history", "--state", state).out
    [app] = call("cluster", "history", "--state", state, "--json").json["apps"]
    assert (app["app"], app["team"], app["outcome"], app["preemptions"]) == ("a", "red", "finished", 0)
    [row] = csv.DictReader(call("cluster", "history", "--state", state, "--csv").out.splitlines())
    assert float(row["gpu_hours"]) == pytest.approx(40 / 3600)
    assert row["started"] == app["started"]
    assert call("cluster", "history", "--state", state, "--team", "blue", "--json").json["apps"] == []


def test_accounting_as_csv(call: Any, state: str, tmp_path: Path) -> None:
    text = call("cluster", "accounting", "--state", state, "--by", "team", "--csv", "-").out
    rows = {row["team"]: row for row in csv.DictReader(text.splitlines())}
    assert rows.keys() == {"", "blue", "red"}
    assert float(rows["red"]["leased_gpu_hours"]) == pytest.approx(40 / 3600, abs=1e-6)
    assert (rows["red"]["finished"], rows[""]["submitted"]) == ("1", "2")
    call("cluster", "accounting", "--state", state, "--csv", str(tmp_path / "all.csv"))
    header, *days = (tmp_path / "all.csv").read_text().splitlines()
    assert header.startswith("team,day,leased_gpu_hours,busy_gpu_hours,idle_gpu_hours,submitted,finished")
    assert len(days) >= 3
    answer = call("cluster", "accounting", "--state", state, "--json").json["accounting"]
    assert sum(each["submitted"] for each in answer) == 4


KEYS = {"alice": b"a" * 32, "bob": b"b" * 32, "eve": b"e" * 32}
ACCESS = AccessSection(("alice",), {"red": ("bob",), "blue": ("dave",)})


@pytest.fixture
def over_network(call: Any, state: str, tmp_path: Path) -> Iterator[Any]:
    """Call a command as a user with a key."""
    listeners = []

    def calling(user: str, *words: str, status: Literal["all", "team"] = "all") -> Any:
        access = msgspec.structs.replace(ACCESS, status=status)
        service = Service(Path(state), access)
        listeners.append(tcp_listener(Place("127.0.0.1", 0), KEYS.get, service.serve))
        key = tmp_path / f"{user}.key"
        key.write_bytes(KEYS[user])
        key.chmod(0o600)
        where = ("--arbiter", f"127.0.0.1:{listeners[-1].address[1]}", "--user", user)
        return call("cluster", *words, *where, "--key-file", str(key))

    yield calling
    for listener in listeners:
        listener.close()


def test_users_are_told_the_past_of_their_teams_and_operators_all(
    call: Any, over_network: Any, state: str
) -> None:
    lines = over_network("bob", "events").lines
    assert [line.split()[2:5] for line in lines] == [
        ["submitted", "a", "[red]:"],
        ["started", "a", "[red]"],
        ["finished", "a", "[red]"],
    ]
    assert over_network("alice", "events").out == call("cluster", "events", "--state", state).out
    assert [app["app"] for app in over_network("bob", "history", "--json").json["apps"]] == ["a"]
    [red] = over_network("bob", "accounting", "--by", "team", "--json").json["accounting"]
    assert (red["team"], red["submitted"], red["finished"]) == ("red", 1, 1)
    everything = call("cluster", "accounting", "--state", state, "--json").json
    assert over_network("alice", "accounting", "--json").json == everything


@pytest.mark.parametrize("verb", ["events", "history"])
def test_the_past_of_others_is_refused(over_network: Any, verb: str) -> None:
    text = over_network("bob", verb, "--team", "blue").err
    assert f"{verb} for the team 'blue' needs an operator or a user of it: bob is in red" in text
    assert "eve is in no team" in over_network("eve", verb).err


def test_who_was_given_gpus_is_hidden_with_the_status(cluster: VirtualCluster, over_network: Any) -> None:
    taken = ClusterEvent(
        cluster.arbiter.now(), "preempted", "a", "red", 0, reason="taken back; given to b (why)"
    )
    cluster.arbiter.store.tell(taken)
    assert "taken back; given to b (why)" in over_network("bob", "events").out
    text = over_network("bob", "events", status="team").out
    assert "taken back\n" in text
    assert "given to" not in text


def test_the_arbiter_is_asked_by_its_socket_while_it_runs(
    call: Any, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [call("cluster", verb, "--state", state).out for verb in ("events", "history", "accounting")]
    kinds = list[str]()
    service = Service(Path(state))
    answer = service._answer

    def noted(channel: Any, who: Any, ask: Any) -> None:
        kinds.append(ask.kind)
        answer(channel, who, ask)

    monkeypatch.setattr(service, "_answer", noted)
    listener = unix_listener(Path(state), service.serve, everybody=False)
    try:
        after = [call("cluster", verb, "--state", state).out for verb in ("events", "history", "accounting")]
    finally:
        listener.close()
    assert after == before
    assert kinds == ["events", "events", "history", "accounting"]


def test_many_events_come_in_parts(call: Any, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = call("cluster", "events", "--state", state).out
    monkeypatch.setattr(history_module, "MOST_EVENTS", 2)
    assert call("cluster", "events", "--state", state).out == whole


def test_who_may_not_read_the_store_is_told_so(
    call: Any, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    errors = call("cluster", "history", "--state", state).error
    assert "no arbiter answers here, and only its user and root may read the store" in errors


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["accounting", "--by", "user"], "--by: expected team, app or day (got 'user')"),
        (
            ["accounting", "--csv", "no/such/folder.csv"],
            "--csv no/such/folder.csv: No such file or directory",
        ),
        (["history", "--since", "5"], "--since: expected a duration with its unit"),
    ],
)
def test_wrong_words(call: Any, state: str, words: list[str], error: str) -> None:
    assert error in call("cluster", words[0], "--state", state, *words[1:]).error


def test_the_status_shows_when_apps_start_and_why_not_now(call: Any, state: str) -> None:
    lines = call("cluster", "status", "--state", state).lines
    assert next(line for line in lines if line.startswith("wide waiting in ")).split()[2:4] == ["in", "19s"]
    apps = {app["app"]: app for app in call("cluster", "status", "--state", state, "--json").json["apps"]}
    assert apps["c"]["starts_how"] == "simulated"
    assert "2 of 4 are free, and held for wide, which needs 4 together; number 2" in apps["c"]["why"]


def test_of_many_apps_that_have_ended_only_the_last_are_shown(
    call: Any, cluster: VirtualCluster, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.submit("c", kind="withdraw")
    cluster.go(1)
    monkeypatch.setattr(status_module, "LATEST", 1)
    lines = call("cluster", "status", "--state", state).lines
    assert "1 more have ended: `astrarium cluster history` shows them" in lines
    assert not [line for line in lines if line.startswith("a finished")]
    assert [line.split()[:2] for line in lines if line.startswith(("b ", "c "))] == [
        ["b", "running"],
        ["c", "withdrawn"],
    ]


def test_watching_without_a_terminal_prints_again_and_again(
    call: Any, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([None, None])

    def sleep(seconds: float) -> None:
        assert seconds == status_module.EVERY
        if next(looks, "over") == "over":
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    answer = call("cluster", "status", "--state", state, "--watch")
    assert answer.out.count("arbiter 2 is not running; 2 of 4 GPUs are free") == 3
    assert answer.code == 130


def test_a_hook_whose_program_is_not_there_is_refused(tmp_path: Path) -> None:
    hooks = [{"on": ["end"], "command": f"{sys.executable} x.py"}, {"on": ["end"], "command": "./none.sh"}]
    raw = {"machines": [{"gpus": 1}], "apps": [{"name": "a", "length": "1s"}], "live": {"hooks": hooks}}
    with pytest.raises(
        InputError, match=r"live.hooks\[1\].command: expected a program .* \(got './none.sh'\)"
    ):
        hooks_of(parse(raw, tmp_path / "file.yaml"))
