"""The service of an arbiter: the kernel says who asks, or a key does, and who asks gets what they may."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astrarium.cli.cluster.state import _own_name, state_folder
from astrarium.cluster.live import limits
from astrarium.cluster.live.access import AccessSection
from astrarium.cluster.live.machine.owners import impassable
from astrarium.cluster.live.service.client import Client
from astrarium.cluster.live.service.hidden_names import HiddenNames
from astrarium.cluster.live.service.identities import user_name
from astrarium.cluster.live.service.service import Service
from astrarium.cluster.live.service.state_folder import StateFolder
from astrarium.cluster.live.service.unix_socket import SOCKET, unix_client, unix_listener
from astrarium.cluster.live.store import Store, open_database
from astrarium.cluster.live.watching.history import PastQuery
from astrarium.cluster.live.wire.handshake import Place
from astrarium.cluster.live.wire.handshake import connected as connected_to
from astrarium.cluster.live.wire.listener import tcp_listener
from astrarium.core.errors import AstrariumError
from tests.support.cluster.access_rules import ACCESS, SEEN_BY_TEAM
from tests.support.cluster.users import as_nobody, needs_root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A state folder in which two teams have an app each, and an arbiter has answered."""
    home = tmp_path / "here.state"
    Store(home).close()
    db = open_database(home / "cluster.db")
    why = "it needs 2 together, 1 of 2 are free, and held for hear, which needs 1"
    apps = [
        {"app": "see", "team": "vision", "outcome": "open", "why": why},
        {"app": "hear", "team": "speech", "outcome": "open", "why": ""},
    ]
    status = {"apps": apps, "machines": [{"machine": 0, "held": {"0": "see", "1": "hear"}}]}
    db.execute("INSERT INTO meta VALUES ('status', ?)", (json.dumps(status),))
    db.execute("INSERT INTO meta VALUES ('hooks', ?)", (json.dumps({"0 tell": {"error": "of speech"}}),))
    for number, app in enumerate(apps):
        values = (number, app["app"], app["team"], "{}", "somebody")
        db.execute("INSERT INTO apps (id, name, team, task, owner) VALUES (?, ?, ?, ?, ?)", values)
        log = home / f"apps/{number}-{app['app']}/job-0/run-1/part-0/log-0.txt"
        log.parent.mkdir(parents=True)
        log.write_text(f"words of {app['app']}\n")
        order = home / f"orders/{number}-{app['app']}/job-0/run-1/part-0/order.json"
        order.parent.mkdir(parents=True)
        order.write_text(json.dumps({"processes": [{"log": "log-0.txt"}]}))
    db.close()
    return home


KEYS = {"alice": b"a" * 32, "bob": b"b" * 32, "eve": b"e" * 32}


@pytest.fixture
def asked(folder: Path) -> Iterator[Any]:
    listeners = []

    def client(user: str, access: AccessSection | None = ACCESS) -> Client:
        here = Place("127.0.0.1", 0)
        listeners.append(tcp_listener(here, KEYS.get, Service(folder, access).serve))
        return Client(connected_to(Place("127.0.0.1", listeners[-1].address[1]), user, KEYS[user]))

    yield client
    for listener in listeners:
        listener.close()


def inbox(home: Path) -> list[tuple[str, Any, str]]:
    store = Store(home)
    messages = [(message.kind, message.body, message.owner) for message in store.inbox.unread()]
    store.close()
    return messages


def test_users_act_for_their_teams(asked: Any, folder: Path) -> None:
    bob = asked("bob")
    assert bob.send("app", {"name": "new"}, 0.0) is None  # no arbiter has answered
    assert inbox(folder) == [("app", {"name": "new", "team": "vision"}, "bob")]
    with pytest.raises(AstrariumError, match="submit for the team 'speech' needs an operator"):
        bob.send("app", {"name": "more", "team": "speech"}, 0.0)
    with pytest.raises(AstrariumError, match="withdraw for the team 'speech'"):
        bob.send("withdraw", {"app": "hear"}, 0.0)
    with pytest.raises(AstrariumError, match="logs for the team 'speech'"):
        bob.logs("hear", {})
    with pytest.raises(AstrariumError, match=r"such as see, hear.*did you mean 'see'"):
        bob.send("withdraw", {"app": "sea"}, 0.0)
    with pytest.raises(AstrariumError, match="operate needs an operator"):
        bob.send("drain", {"machine": "0", "gpu": 0}, 0.0)
    with pytest.raises(AstrariumError, match="kind: expected app, withdraw"):
        bob.send("erase", {}, 0.0)
    assert len(inbox(folder)) == 1
    bob.send("withdraw", {"app": "see"}, 0.0)
    assert inbox(folder)[1:] == [("withdraw", {"app": "see"}, "bob")]
    head, pieces = bob.logs("see", {})
    assert (head.ended, head.several) == (False, False)
    assert [piece.body for piece in pieces] == [b"words of see\n"]
    assert [piece.body for piece in bob.logs("see", {"job-0/run-1/part-0/log-0.txt": 9})[1]] == [b"see\n"]


def test_operators_act_for_all(asked: Any, folder: Path) -> None:
    alice = asked("alice")
    alice.send("withdraw", {"app": "hear"}, 0.0)
    assert [piece.body for piece in alice.logs("hear", {})[1]] == [b"words of hear\n"]
    assert inbox(folder) == [("withdraw", {"app": "hear"}, "alice")]


def test_who_is_in_no_team_only_looks(asked: Any) -> None:
    eve = asked("eve")
    assert len(eve.status()["status"]["apps"]) == 2
    assert eve.story("see") == {"decisions": [], "runs": []}
    with pytest.raises(AstrariumError, match="eve is in no team"):
        eve.send("app", {"name": "x"}, 0.0)
    with pytest.raises(AstrariumError, match="eve is in no team"):
        eve.logs("see", {})


def test_the_status_may_be_for_teams_alone(asked: Any) -> None:
    shown = asked("bob", SEEN_BY_TEAM).status()["status"]
    assert [app["app"] for app in shown["apps"]] == ["see"]
    assert shown["machines"][0]["held"] == {"0": "see", "1": "another team"}
    assert shown["apps"][0]["why"].endswith("and held for another team's app, which needs 1")
    assert len(asked("alice", SEEN_BY_TEAM).status()["status"]["apps"]) == 2


def words_of(do: Callable[[], object]) -> str:
    with pytest.raises(AstrariumError) as error:
        do()
    return str(error.value)


def test_an_app_that_one_may_not_see_is_answered_as_one_that_does_not_exist(asked: Any) -> None:
    bob = asked("bob", SEEN_BY_TEAM)
    for do in (bob.story, lambda app: bob.logs(app, {}), lambda app: bob.send("withdraw", {"app": app}, 0.0)):
        there = words_of(partial(do, "hear"))
        nowhere = words_of(partial(do, "none"))
        assert there == nowhere.replace("none", "hear")
        assert there == "APP: expected an app of this cluster, such as see (got 'hear')"
    eve = asked("eve", SEEN_BY_TEAM)
    assert "there is none yet" in words_of(lambda: eve.story("see"))
    assert "such as see, hear" in words_of(lambda: asked("alice", SEEN_BY_TEAM).story("none"))


def test_a_team_that_one_is_not_in_is_answered_as_one_that_does_not_exist(asked: Any) -> None:
    bob = asked("bob", SEEN_BY_TEAM)
    there, nowhere = (
        words_of(partial(bob.send, "app", {"name": "x", "team": team}, 0.0)) for team in ("speech", "none")
    )
    assert there == nowhere.replace("none", "speech") == "team: expected one of vision (got 'speech')"
    refusal = words_of(lambda: asked("eve", SEEN_BY_TEAM).send("app", {"name": "x", "team": "vision"}, 0.0))
    assert refusal == "team: expected none: eve is in no team (got 'vision')"


def test_reasons_do_not_name_the_apps_of_others(asked: Any, folder: Path) -> None:
    why = "lent by speech, whose app hear waits"
    db = open_database(folder / "cluster.db")
    db.execute("INSERT INTO decisions (at, app, what, gpus, why) VALUES (0, 0, 'revoke', '[0]', ?)", (why,))
    query = """INSERT INTO events (at, wall, kind, name, team, app, gpus, reason)
               VALUES (0, 0, 'preempted', 'see', 'vision', 0, '[]', ?)"""
    db.execute(query, (f"{why}; given to hear (why)",))
    db.close()
    hidden = "lent by speech, whose app waits"
    bob = asked("bob", SEEN_BY_TEAM)
    assert bob.story("see")["decisions"][0]["why"] == hidden
    assert bob.past("events", PastQuery())[0]["reason"] == hidden
    assert asked("bob").story("see")["decisions"][0]["why"] == why
    assert asked("alice", SEEN_BY_TEAM).story("see")["decisions"][0]["why"] == why


WRONG: list[tuple[str, Any]] = [
    ("logs", {"app": "see", "have": [1]}),
    ("logs", {"app": "see", "have": 3}),
    ("logs", {"app": "see", "have": {"x": -1}}),
    ("logs", {"app": "see", "have": {"x": "y"}}),
    ("logs", {"app": "see", "have": {"x": 1.5}}),
    ("logs", {"app": "see", "have": {"x": (1 << 64) - 1}}),
    ("logs", {"app": "see", "have": {str(number): 0 for number in range(limits.MOST_LOGS + 1)}}),
    ("logs", {"app": {"a": 1}}),
    ("logs", {}),
    ("story", {"app": ["see"]}),
    ("withdraw", {"app": None}),
    ("withdraw", {"name": "see"}),
    ("drain", {"machine": [1], "gpu": 0}),
    ("drain", {"machine": "0", "gpu": (1 << 64) - 1}),
    ("retry", {"machine": "0", "gpu": "x"}),
    ("app", {"name": "x", "team": {"a": 1}}),
    ("app", {"name": "x", "env": msgspec.msgpack.Ext(5, b"x")}),
    ("app", {"name": "x", "env": {(1, 2): 3}}),
    ("app", {"name": "x" * (limits.LARGEST_APP + 1)}),
    ("events", {"after": (1 << 64) - 1}),
    ("events", {"after": float("inf")}),
    ("events", {"teams": 3}),
    ("accounting", {"by": ["app"] * 1000}),
    ("accounting", {"by": [["app"]]}),
    ("history", {"since": {}}),
]


@pytest.mark.parametrize(("kind", "body"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_question_is_answered_with_what_would_be_right(asked: Any, kind: str, body: Any) -> None:
    alice = asked("alice")
    refusal = words_of(lambda: alice._ask(kind, body))
    assert "expected" in refusal, refusal
    assert alice.story("see") == {"decisions": [], "runs": []}  # and the next question as well


def test_an_error_of_ours_is_answered_and_ends_nothing(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = asked("alice")
    with monkeypatch.context() as broken:
        broken.setattr(StateFolder, "status", lambda self: 1 // 0)
        assert words_of(alice.status) == "ZeroDivisionError"
    assert alice.status()


def test_hooks_are_shown_to_operators(asked: Any) -> None:
    assert asked("bob").status()["hooks"] == []
    assert asked("alice").status()["hooks"] == [{"error": "of speech"}]


def test_without_access_all_may_do_all(asked: Any, folder: Path) -> None:
    asked("eve", None).send("withdraw", {"app": "hear"}, 0.0)
    assert inbox(folder) == [("withdraw", {"app": "hear"}, "eve")]


def test_the_socket_in_the_folder_knows_who_asks(folder: Path) -> None:
    assert unix_client(folder) is None
    listener = unix_listener(folder, Service(folder).serve, everybody=False)
    assert (folder / SOCKET).stat().st_mode & 0o777 == 0o600
    client = unix_client(folder)
    assert client is not None
    client.send("withdraw", {"app": "see"}, 0.0)
    assert inbox(folder)[0][2] == user_name(os.getuid())
    listener.close()
    assert unix_client(folder) is None
    assert not (folder / SOCKET).exists()
    again = unix_listener(folder, Service(folder).serve, everybody=True)
    assert (folder / SOCKET).stat().st_mode & 0o777 == 0o666
    again.close()


def test_a_socket_that_is_no_longer_ours_stays(folder: Path) -> None:
    one = unix_listener(folder, Service(folder).serve, everybody=False)
    other = unix_listener(folder, Service(folder).serve, everybody=False)
    one.close()
    assert unix_client(folder) is not None
    other.close()
    assert not (folder / SOCKET).exists()


def test_a_folder_with_a_long_path_has_a_socket_too(tmp_path: Path) -> None:
    home = tmp_path / ("x" * 120)
    home.mkdir()
    listener = unix_listener(home, Service(home).serve, everybody=False)
    assert unix_client(home) is not None
    listener.close()


def test_a_store_of_an_older_version_has_its_columns_added(tmp_path: Path) -> None:
    home = tmp_path / "old.state"
    home.mkdir()
    db = sqlite3.connect(home / "cluster.db")
    db.execute("CREATE TABLE apps (id INTEGER PRIMARY KEY, name TEXT UNIQUE, task TEXT, submitted INTEGER, "
               "arrived INTEGER, ended INTEGER, outcome TEXT DEFAULT 'submitted', reason TEXT)")  # fmt: skip
    db.execute("CREATE TABLE inbox (id INTEGER PRIMARY KEY, at INTEGER, kind TEXT, body TEXT, answer TEXT)")
    db.execute("INSERT INTO inbox (kind, body) VALUES ('withdraw', '{}')")
    db.execute("INSERT INTO apps (name) VALUES ('a')")
    db.commit()
    db.close()
    assert inbox(home) == [("withdraw", {}, "")]
    assert StateFolder(home).teams() == {"a": ""}


def test_who_reads_the_store_from_outside_takes_nothing_away(tmp_path: Path) -> None:
    """Also after a message was left from within the arbiter: SQLite's locks are those of the process."""
    home = tmp_path / "here.state"
    office = Store(home)
    StateFolder(home).send("withdraw", {"app": "a"}, 0.0)
    log = (home / "cluster.db-wal").stat().st_ino
    path = str(home / "cluster.db")
    read = f"import sqlite3; db = sqlite3.connect({path!r}); db.execute('SELECT * FROM apps'); db.close()"
    subprocess.run([sys.executable, "-c", read], check=True, timeout=60)
    assert (home / "cluster.db-wal").stat().st_ino == log
    office.close()


def test_a_user_without_a_name_is_a_number_over_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 61001")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert _own_name() == str(os.getuid())


@needs_root
def test_a_state_folder_that_one_may_not_pass_is_named(tmp_path: Path) -> None:
    home = tmp_path / "here.state"
    Store(home).close()
    tmp_path.chmod(0o700)
    assert "a folder that you may pass through" in as_nobody(lambda: str(state_folder(home)))
    assert impassable(home) == tmp_path


@pytest.mark.parametrize(
    ("reason", "hidden"),
    [
        ("secret has only 40 GPU seconds left, this one 20.0 GPU-hours", "{} has only 40 GPU seconds left,"),
        ("2 GPU-hours left; secret is the same and came before it", "2 GPU-hours left; {} is the same and"),
        ("they bring it less than they bring secret, which waits", "they bring it less than they bring {},"),
        ("it waits for two words (secret-2).", "it waits for {} ({})."),
        ("secretary and nosecret are words of their own", "secretary and nosecret are words of their own"),
        ("lent by speech, whose app secret waits; given to secret", "lent by speech, whose app waits"),
    ],
)
def test_names_are_taken_out_of_every_sentence(reason: str, hidden: str) -> None:
    hiding = HiddenNames(["secret", "secret-2", "two words"])
    sentence = hiding.hidden(reason)
    assert sentence.startswith(hidden.replace("{}", HiddenNames.OTHER))
    assert not {"secret", "secret-2"} & set(re.split(r"[ ,;()]", sentence))
    assert HiddenNames([]).hidden(reason) == reason
