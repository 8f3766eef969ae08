"""Who may do what: a table of rules, read from the file, for users by name and by group."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.live.access import AccessSection, Identity, PermissionDenied, allowed, chosen_team
from astrarium.cluster.live.composition import planned, running
from astrarium.cluster.live.service.identities import identity, read_keys, user_name
from astrarium.cluster.live.service.unix_socket import peer
from astrarium.cluster.scenario.read import parse
from astrarium.core.errors import InputError
from tests.support.cluster.access_rules import ACCESS, SEEN_BY_TEAM
from tests.support.cluster.users import needs_root

ALICE, BOB, CAROL, EVE = (Identity(name) for name in ("alice", "bob", "carol", "eve"))
ROOT_ADMIN = Identity("zoe", frozenset({"admin"}))
TALKER = Identity("tim", frozenset({"talk", "users"}))


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
        for access in (ACCESS, SEEN_BY_TEAM):
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
    for text, expected in (
        (f"agent: {'b' * 32}", "none of them agent"),
        ("bob", "name: key"),
        (f'"63001": {"b" * 32}', "without quotes"),
        ("bob: x", "32 char"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=expected):
            read_keys("live.keys", str(path))


@pytest.mark.parametrize(
    ("live", "expected"),
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
def test_a_section_that_is_wrong_is_refused(live: dict[str, Any], expected: str) -> None:
    raw = {"machines": [{"gpus": 1}], "apps": [{"name": "a", "length": "1s"}], "live": live}
    with pytest.raises(InputError, match=expected):
        parse(raw)


def test_users_of_a_team_that_the_file_does_not_list_are_refused() -> None:
    raw = {"machines": [{"gpus": 1}], "apps": [{"name": "a", "team": "speech", "length": "1s"}]}
    live = {"access": {"teams": {"speech": ["dave"], "visoin": ["bob"]}}}
    assert parse({**raw, "live": live}).live.access is not None  # any team, where none is listed
    with pytest.raises(InputError) as wrong:
        parse({**raw, "teams": {"vision": {}, "speech": {}}, "live": live})
    expected = "live.access.teams: expected a team of the file: one of vision, speech; did you mean 'vision'?"
    assert str(wrong.value).startswith(expected)
    assert "visoin" in str(wrong.value)


@needs_root
def test_apps_of_many_users_are_not_run_as_root_on_slurm(tmp_path: Path) -> None:
    raw = {"machines": [{"gpus": 1}], "apps": [{"name": "a", "length": "1s", "command": "true"}]}
    scenario = parse({**raw, "live": {"backend": "slurm", "access": {}}})
    expected = pytest.raises(InputError, match=r"live.backend: expected an arbiter that is not root")
    with expected, running(planned(scenario, tmp_path, metrics=None)):
        pass
