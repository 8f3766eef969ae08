"""Apps run as their owners: with an owner's rights and no more."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.live.backend import JobCommand, MachineStatus
from astrarium.cluster.live.backends.local import LocalBackend
from astrarium.cluster.live.machine.owners import account
from astrarium.cluster.live.service.unix_socket import unix_client
from astrarium.cluster.live.watching.history import PastQuery
from tests.support.cluster.backend import order, seen
from tests.support.cluster.hosts import on as on_hosts
from tests.support.cluster.hosts import two_hosts
from tests.support.cluster.jobs import arbiter, end_keepers
from tests.support.cluster.users import NOBODY, as_nobody, needs_root

pytest_plugins = ("tests.support.cluster.fixtures",)


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
    account = pwd.getpwnam(NOBODY)
    try:
        one.start(order(1, JobCommand(("/usr/bin/env", "python3", "-c", IS), owner=NOBODY, directory="/")))
        assert seen(one, 1).ended == "finished"
        [path] = home.glob("apps/*/job-0/run-1/result.json")
        expected = [account.pw_uid, account.pw_gid, account.pw_dir, NOBODY, NOBODY]
        assert json.loads(path.read_text()) == expected
        assert path.stat().st_uid == account.pw_uid
        assert path.parents[2].stat().st_uid == account.pw_uid
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

    def as_user_of_team(verb: str, *arguments: Any) -> Any:
        return as_nobody(lambda: getattr(unix_client(home), verb)(*arguments))

    with arbiter(file, home, "--stay") as one:
        one.start()
        one.waited(lambda: one.query(FINISHED.format("first")), "the first app ends")
        app = {"name": "mine", "length": "1s", "command": "id -u", "directory": "/"}
        assert as_user_of_team("send", "app", app, 60.0) == "accepted"
        one.waited(lambda: one.query(FINISHED.format("mine")), "it ends")
        assert one.query("SELECT owner, team FROM apps WHERE name = 'mine'") == [(NOBODY, "vision")]
        logs = as_nobody(lambda: [log.body.decode() for log in unix_client(home).logs("mine", {})[1]])  # type: ignore[union-attr]
        assert logs == [f"{pwd.getpwnam(NOBODY).pw_uid}\n"]
        assert "logs for the team 'speech' needs an operator" in as_user_of_team("logs", "first", {})
        assert "submit for the team 'speech'" in as_user_of_team(
            "send", "app", {**app, "team": "speech"}, 60.0
        )
        assert [app["owner"] for app in as_user_of_team("status")["status"]["apps"]] == ["", NOBODY]
        assert [app["app"] for app in as_user_of_team("past", "history", PastQuery())] == ["mine"]
        assert "Permission denied" in as_nobody(lambda: (home / "cluster.db").read_bytes().hex())
        assert "Permission denied" in as_nobody(lambda: os.listdir(home))
