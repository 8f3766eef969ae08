"""Who may do what: a table of rules, users by Unix identity and by key, and apps that run as their owners."""

from __future__ import annotations

import json
import os
import pwd
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astrarium.cli.cluster.live import arbitrate
from astrarium.cli.cluster.state import _own_name, state_folder
from astrarium.cluster.live import limits
from astrarium.cluster.live.access import AccessSection, Identity, PermissionDenied, allowed, chosen_team
from astrarium.cluster.live.backend import JobCommand, MachineStatus
from astrarium.cluster.live.backends.local import LocalBackend
from astrarium.cluster.live.machine.owners import account, impassable
from astrarium.cluster.live.service.client import Client
from astrarium.cluster.live.service.hidden_names import HiddenNames
from astrarium.cluster.live.service.identities import identity, read_keys, user_name
from astrarium.cluster.live.service.service import Service
from astrarium.cluster.live.service.state_folder import StateFolder
from astrarium.cluster.live.service.unix_socket import SOCKET, peer, unix_client, unix_listener
from astrarium.cluster.live.store import Store, open_database
from astrarium.cluster.live.watching.history import PastQuery
from astrarium.cluster.live.wire.handshake import Place
from astrarium.cluster.live.wire.handshake import connected as connected_to
from astrarium.cluster.live.wire.listener import tcp_listener
from astrarium.cluster.scenario.read import parse
from astrarium.core.errors import AstrariumError, InputError
from tests.support.cluster.backend import order, seen
from tests.support.cluster.hosts import on as on_hosts
from tests.support.cluster.hosts import two_hosts
from tests.support.cluster.jobs import arbiter, end_keepers
from tests.support.cluster.users import as_user, needs_root

pytest_plugins = ("tests.support.cli_fixtures", "tests.support.cluster.fixtures")

ACCESS = AccessSection(
    ("alice", "@admin"), {"vision": ("bob", "carol"), "speech": ("dave", "@talk", "carol")}
)
OPEN = ACCESS
SEEN_BY_TEAM = msgspec.structs.replace(ACCESS, status="team")
ALICE, BOB, CAROL, EVE = (Identity(name) for name in ("alice", "bob", "carol", "eve"))
ROOT_ADMIN = Identity("zoe", frozenset({"admin"}))
TALKER = Identity("tim", frozenset({"talk", "users"}))
NOBODY = "nobody"


# the rules


@pytest.mark.parametrize(
    ("who", "team", "may"),
    [
        (ALICE, "vision", "submit withdraw logs status operate"),
        (ALICE, "", "submit withdraw logs status operate"),
        (ROOT_ADMIN, "speech", "submit withdraw logs status operate"),
        (BOB, "vision", "submit withdraw logs status"),
        (BOB, "speech", "status"),
        (BOB, "", "status"),
        (CAROL, "vision", "submit withdraw logs status"),
        (CAROL, "speech", "submit withdraw logs status"),
        (TALKER, "speech", "submit withdraw logs status"),
        (TALKER, "vision", "status"),
        (EVE, "vision", "status"),
        (EVE, "", "status"),
    ],
)
def test_who_may_do_what(who: Identity, team: str, may: str) -> None:
    for action in ("submit", "withdraw", "logs", "status", "operate"):
        for access in (OPEN, SEEN_BY_TEAM):
            expected = action in may.split()
            if action == "status" and access is SEEN_BY_TEAM:
                expected = "submit" in may.split()
            assert permitted(access, who, action, team) is expected, (action, access.status)


def permitted(access: AccessSection, who: Identity, action: Any, team: str) -> bool:
    try:
        allowed(access, who, action, team)
    except PermissionDenied:
        return False
    return True


def test_the_error_says_who_may() -> None:
    with pytest.raises(
        PermissionDenied,
        match="submit for the team 'speech' needs an operator or a user of it: bob is in vision",
    ):
        allowed(ACCESS, BOB, "submit", "speech")
    with pytest.raises(PermissionDenied, match=r"logs for an app of no team needs .*: eve is in no team"):
        allowed(ACCESS, EVE, "logs", "")
    with pytest.raises(PermissionDenied, match="operate needs an operator"):
        allowed(ACCESS, BOB, "operate", "vision")


def test_the_only_team_of_a_user_is_that_of_the_app() -> None:
    assert chosen_team(ACCESS, BOB, "") == "vision"
    assert chosen_team(ACCESS, BOB, "speech") == "speech"  # and then refused
    assert chosen_team(ACCESS, ALICE, "") == ""
    assert chosen_team(ACCESS, EVE, "") == ""
    with pytest.raises(InputError, match="team: expected one of vision, speech: carol is in several"):
        chosen_team(ACCESS, CAROL, "")
    with pytest.raises(InputError, match="did you mean 'vision'"):
        chosen_team(ACCESS, ALICE, "vison")


def test_who_is_at_the_other_end_is_told_by_the_kernel() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert peer(left).user == pwd.getpwuid(os.getuid()).pw_name
    assert user_name(4_000_000) == "4000000"
    assert identity("no-such-user") == Identity("no-such-user")
    assert identity(user_name(os.getuid())).groups


def test_keys_are_read_from_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"bob: {'b' * 32}\n\ncarol: {'1' * 40}\n")
    with pytest.raises(InputError, match="chmod 600"):
        read_keys("live.keys", str(path))
    path.chmod(0o600)
    assert read_keys("live.keys", str(path)) == {"bob": b"b" * 32, "carol": b"1" * 40}
    for text, told in (
        (f"agent: {'b' * 32}", "none of them agent"),
        ("bob", "name: key"),
        (f'"63001": {"b" * 32}', "without quotes"),
        ("bob: x", "32 char"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=told):
            read_keys("live.keys", str(path))


@pytest.mark.parametrize(
    ("live", "told"),
    [
        ({"keys": "keys", "listen": "a:1"}, "live.access"),
        ({"keys": "keys", "access": {}}, "live.listen"),
        ({"backend": "agents"}, "live.listen"),
        ({"backend": "agents", "listen": "a:1"}, "live.key"),
        ({"key": "cluster.key"}, "live.key: expected backend: agents"),
        ({"backend": "ray", "copies": False}, "live.copies: expected backend: agents"),
        ({"access": {"operators": "alice"}}, "live.access.operators"),
        ({"access": {"teams": {"vision": "bob"}}}, "live.access.teams"),
        ({"access": {"status": "none"}}, "live.access.status"),
    ],
)
def test_a_section_that_is_wrong_is_refused(live: dict[str, Any], told: str) -> None:
    raw = {"machines": [{"gpus": 1}], "apps": [{"name": "a", "length": "1s"}], "live": live}
    with pytest.raises(InputError, match=told):
        parse(raw)


def test_users_of_a_team_that_the_file_does_not_list_are_refused() -> None:
    raw = {"machines": [{"gpus": 1}], "apps": [{"name": "a", "team": "speech", "length": "1s"}]}
    live = {"access": {"teams": {"speech": ["dave"], "visoin": ["bob"]}}}
    assert parse({**raw, "live": live}).live.access is not None  # any team, where none is listed
    with pytest.raises(InputError) as wrong:
        parse({**raw, "teams": {"vision": {}, "speech": {}}, "live": live})
    told = "live.access.teams: expected a team of the file: one of vision, speech; did you mean 'vision'?"
    assert str(wrong.value).startswith(told)
    assert "visoin" in str(wrong.value)


@needs_root
def test_apps_of_many_users_are_not_run_as_root_on_slurm(tmp_path: Path) -> None:
    raw = {"machines": [{"gpus": 1}], "apps": [{"name": "a", "length": "1s", "command": "true"}]}
    scenario = parse({**raw, "live": {"backend": "slurm", "access": {}}})
    with pytest.raises(InputError, match=r"live.backend: expected an arbiter that is not root"):
        arbitrate(None, tmp_path / "file.yaml", scenario, tmp_path, stay=False, json=False)  # type: ignore[arg-type]


# the service: the kernel says who asks, or a key does


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
    for each in listeners:
        each.close()


def inbox(home: Path) -> list[tuple[str, Any, str]]:
    store = Store(home)
    found = [(each.kind, each.body, each.owner) for each in store.inbox()]
    store.close()
    return found


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
    found = asked("bob", SEEN_BY_TEAM).status()["status"]
    assert [app["app"] for app in found["apps"]] == ["see"]
    assert found["machines"][0]["held"] == {"0": "see", "1": "another team"}
    assert found["apps"][0]["why"].endswith("and held for another team's app, which needs 1")
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
    told = words_of(lambda: asked("eve", SEEN_BY_TEAM).send("app", {"name": "x", "team": "vision"}, 0.0))
    assert told == "team: expected none: eve is in no team (got 'vision')"


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
    told = words_of(lambda: alice._ask(kind, body))
    assert "expected" in told, told
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


# as their owners


def as_nobody(do: Callable[[], Any]) -> Any:
    found = pwd.getpwnam(NOBODY)
    return as_user(found.pw_uid, do, found.pw_gid)


IS = (
    "import os, json, pathlib; at = pathlib.Path(os.environ['ASTRARIUM_FOLDER']);"
    "(at / 'result.json').write_text(json.dumps([os.getuid(), os.getgid(), os.environ['HOME'],"
    " os.environ['USER'], os.environ['LOGNAME']]));"
    "[os.rename(at.parents[1], at.parents[2] / 'mine')] if os.environ.get('BAD') else None"
)


@needs_root
def test_an_app_runs_as_its_owner(open_path: Path) -> None:
    home = open_path / "here.state"
    one = LocalBackend(home, {"left": MachineStatus(2)})
    found = pwd.getpwnam(NOBODY)
    try:
        one.start(order(1, JobCommand(("/usr/bin/env", "python3", "-c", IS), owner=NOBODY, directory="/")))
        assert seen(one, 1).ended == "finished"
        [path] = home.glob("apps/*/job-0/run-1/result.json")
        told = [found.pw_uid, found.pw_gid, found.pw_dir, NOBODY, NOBODY]
        assert json.loads(path.read_text()) == told
        assert path.stat().st_uid == found.pw_uid
        assert path.parents[2].stat().st_uid == found.pw_uid
        assert path.parents[2].stat().st_mode & 0o7777 == 0o700
        assert path.parents[3].stat().st_uid == 0
    finally:
        end_keepers(home)


@needs_root
def test_an_owner_cannot_replace_what_the_agent_has_put_there(open_path: Path) -> None:
    home = open_path / "here.state"
    one = LocalBackend(home, {"left": MachineStatus(2)})
    try:
        task = JobCommand(
            ("/usr/bin/env", "python3", "-c", IS), owner=NOBODY, directory="/", env={"BAD": "1"}
        )
        one.start(order(1, task))
        failed = seen(one, 1)
        assert failed.ended == "failed"
        assert "PermissionError" in failed.error
    finally:
        end_keepers(home)


@needs_root
def test_an_owner_who_is_no_user_here_fails_the_run(open_path: Path) -> None:
    home = open_path / "here.state"
    one = LocalBackend(home, {"left": MachineStatus(2)})
    try:
        one.start(order(1, JobCommand(("true",), owner="no-such-user")))
        failed = seen(one, 1)
        assert (failed.ended, failed.error) == (
            "failed",
            "exit code 126, there is no user no-such-user on this machine",
        )
    finally:
        end_keepers(home)


@needs_root
def test_a_program_that_only_root_could_find_is_not_found(
    open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = open_path / "here.state"
    hidden = open_path / "hidden"
    hidden.mkdir(mode=0o700)
    monkeypatch.setenv("PATH", f"{hidden}:/usr/bin:/bin")
    one = LocalBackend(home, {"left": MachineStatus(2)})
    try:
        one.start(order(1, JobCommand(("no-such-program",), owner=NOBODY, directory="/")))
        failed = seen(one, 1)
        assert failed.ended == "not found"
        assert "there is no program 'no-such-program' in" in failed.error
    finally:
        end_keepers(home)


@needs_root
def test_a_checkpoint_that_travels_stays_its_owners(open_path: Path) -> None:
    """And one that is a link to what only root may read leads nowhere."""
    code = (
        "import os, pathlib, sys; given = os.environ['ASTRARIUM_RESUME'];"
        "at = pathlib.Path(os.environ['ASTRARIUM_FOLDER'], 'checkpoint');"
        "given and sys.exit(pathlib.Path(given, 'words').read_text() != 'mine');"
        "at.mkdir(); (at / 'words').write_text('mine'); (at / 'link').symlink_to('/etc/shadow'); sys.exit(75)"
    )
    task = JobCommand(("/usr/bin/env", "python3", "-c", code), owner=NOBODY, directory="/")
    with two_hosts(open_path) as (office, _, right):
        office.started(on_hosts(1, task, "left.1"))
        first = office.seen(1)
        assert first.ended == "stopped", first
        office.started(on_hosts(2, task, "right.1"))
        assert office.seen(2).ended == "finished"
        [words] = right.files("run-1/checkpoint/words")
        assert words.stat().st_uid == pwd.getpwnam(NOBODY).pw_uid
        assert (words.parent / "link").is_symlink()


def test_without_root_apps_run_as_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert account(JobCommand(("true",), owner=NOBODY)) == {}


@needs_root
def test_root_itself_and_apps_without_an_owner_run_as_they_are() -> None:
    assert account(JobCommand(("true",), owner="root")) == {}
    assert account(JobCommand(("true",))) == {}
    assert account(JobCommand(("true",), owner=NOBODY))["user"] == pwd.getpwnam(NOBODY).pw_uid


LIVE = """\
machines: [{{gpus: 2}}]
apps: [{{name: first, team: speech, length: 1s, command: "true"}}]
policy: {{name: fifo}}
live:
  look: 50ms
  access: {{teams: {{vision: [{nobody}], speech: [somebody]}}}}
"""
FINISHED = "SELECT * FROM apps WHERE outcome = 'finished' AND name = '{}'"


@needs_root
@pytest.mark.long
def test_a_user_of_the_machine_submits_and_reads_and_cannot_do_more(open_path: Path) -> None:
    home = open_path / "here.state"
    file = open_path / "live.yaml"
    file.write_text(LIVE.format(nobody=NOBODY))

    def asked(verb: str, *given: Any) -> Any:
        return as_nobody(lambda: getattr(unix_client(home), verb)(*given))

    with arbiter(file, home, "--stay") as one:
        one.start()
        one.waited(lambda: one.query(FINISHED.format("first")), "the first app ends")
        app = {"name": "mine", "length": "1s", "command": "id -u", "directory": "/"}
        assert asked("send", "app", app, 60.0) == "accepted"
        one.waited(lambda: one.query(FINISHED.format("mine")), "it ends")
        assert one.query("SELECT owner, team FROM apps WHERE name = 'mine'") == [(NOBODY, "vision")]
        logs = as_nobody(lambda: [each.body.decode() for each in unix_client(home).logs("mine", {})[1]])  # type: ignore[union-attr]
        assert logs == [f"{pwd.getpwnam(NOBODY).pw_uid}\n"]
        assert "logs for the team 'speech' needs an operator" in asked("logs", "first", {})
        assert "submit for the team 'speech'" in asked("send", "app", {**app, "team": "speech"}, 60.0)
        assert [each["owner"] for each in asked("status")["status"]["apps"]] == ["", NOBODY]
        assert [each["app"] for each in asked("past", "history", PastQuery())] == ["mine"]
        assert "Permission denied" in as_nobody(lambda: (home / "cluster.db").read_bytes().hex())
        assert "Permission denied" in as_nobody(lambda: os.listdir(home))


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
    found = hiding.hidden(reason)
    assert found.startswith(hidden.replace("{}", HiddenNames.OTHER))
    assert not {"secret", "secret-2"} & set(re.split(r"[ ,;()]", found))
    assert HiddenNames([]).hidden(reason) == reason
