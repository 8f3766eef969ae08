"""A live cluster on this machine: real processes, a real store, an arbiter that is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.live import settings
from tests.support.cluster.jobs import Arbiter, arbiter, check_accounts, cluster_file, results

pytestmark = pytest.mark.long
pytest_plugins = ("tests.support.cli_fixtures", "tests.support.cluster.fixtures")


APP = {"name": "b", "length": "1s"}


def expected() -> dict[tuple[str, int], Any]:
    counts = {("wide", 0): 60, ("twins", 0): 50, ("twins", 1): 50, ("late", 0): 30}
    return {key: {"sum": sum(n * n for n in range(total)), "count": total} for key, total in counts.items()}


def steps(one: Arbiter) -> int:
    return len(one.query("SELECT * FROM steps"))


def has_steps(one: Arbiter, count: int) -> bool:
    return steps(one) >= count


@pytest.mark.thorough
def test_an_arbiter_that_is_killed_again_and_again(home: Path, script: Path, tmp_path: Path) -> None:
    with arbiter(cluster_file(tmp_path, script), home) as one:
        for epoch in (1, 2, 3):
            one.start()
            new = f"SELECT * FROM meta WHERE key = 'epoch' AND value = {epoch}"
            one.waited(partial(one.query, new), "another arbiter")
            one.waited(partial(has_steps, one, steps(one) + 3), "steps")
            one.kill()
        one.start()
        one.end()
        check_accounts(one)
        assert results(home) == expected()


@pytest.mark.thorough
def test_ctrl_c_drains_and_the_next_one_goes_on(home: Path, script: Path, tmp_path: Path) -> None:
    with arbiter(cluster_file(tmp_path, script), home) as one:
        one.start()
        one.waited(lambda: list(home.glob("apps/*/job-*/run-*/ready")), "a job runs")
        assert one.send(signal.SIGINT) == 0, one.words.read_text()
        assert f"run {tmp_path / 'cluster.yaml'} --state {home}` goes on" in one.words.read_text()
        assert not alive(home)
        one.start()
        one.end()
        check_accounts(one)
        assert results(home) == expected()


AS_RAY_DOES = """\
import signal, sys
from astrarium.cli.main import app
from astrarium.cluster.live import composition

before = composition.backend_of

def backend_of(*given):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
    return before(*given)

composition.backend_of = backend_of
app(sys.argv[1:])
"""


def test_a_backend_that_takes_the_signal_does_not_keep_it(home: Path, script: Path, tmp_path: Path) -> None:
    """Ray's driver leaves on SIGTERM; ours drains."""
    words = ["run", str(cluster_file(tmp_path, script)), "--state", str(home), "--stay"]
    with arbiter(tmp_path / "cluster.yaml", home) as one, one.words.open("wb") as output:
        one.process = subprocess.Popen(
            [sys.executable, "-c", AS_RAY_DOES, *words], stderr=output, stdout=output
        )
        one.waited(lambda: list(home.glob("apps/*/job-*/run-*/ready")), "a job runs")
        assert one.send(signal.SIGTERM) == 0, one.words.read_text()
        assert "drained" in one.words.read_text()
        assert not alive(home)


def alive(home: Path) -> list[Path]:
    return [
        path.parent
        for path in home.glob("orders/*/*/*/*/order.json")
        if not (path.parent / "outcome.json").exists()
    ]


@pytest.mark.thorough
def test_apps_are_submitted_asked_about_and_withdrawn(
    call: Any, home: Path, script: Path, tmp_path: Path
) -> None:
    file = cluster_file(tmp_path, script, policy={"name": "fifo"})
    state = ("--state", str(home))
    with arbiter(file, home, "--stay") as one:
        one.start()
        one.waited(lambda: one.query("SELECT * FROM apps WHERE outcome = 'open'"), "apps have come")
        long = f"{sys.executable} {script} 100000 0.05"
        submit = ("cluster", "submit", *state, "--wait", "60")
        assert call(*submit, "--command", long, "--name", "mine", "--gpus", "3").out == "mine: accepted\n"
        result = call(*submit, "--command", long, "--name", "mine")
        assert result.code == 2
        assert "mine: refused: name: expected one that no other app has had here (got 'mine')" in result.err
        result = call(*submit, "--command", "no-such-program 5", "--name", "lost")
        assert result.code == 2
        assert "refused: app.command: expected a program that is in PATH" in result.err
        assert "(got 'no-such-program')" in result.err
        result = call(*submit, "--command", long, "--name", "huge", "--gpus", "99")
        assert "app.gpus: expected at most 4 GPUs" in result.err
        one.waited(lambda: len(one.query("SELECT * FROM apps WHERE outcome = 'finished'")) == 3, "others end")
        one.waited(lambda: list(home.glob("apps/*mine/job-0/run-1/ready")), "it runs")
        answer = call("cluster", "status", *state, "--json").json
        assert answer["arbiter"] is True
        mine = next(app for app in answer["apps"] if app["app"] == "mine")
        assert len(mine["gpus"]) == 3
        story = call("cluster", "status", *state, "--app", "mine", "--json").json
        assert [(decision["what"], decision["why"]) for decision in story["decisions"]] == [
            ("grant", "it was the next in line")
        ]
        assert [run["outcome"] for run in story["runs"]] == ["open"]
        assert "it was the next in line" in call("cluster", "status", *state, "--app", "mine").out
        assert "did you mean 'mine'" in call("cluster", "status", *state, "--app", "mone").err
        assert call("cluster", "withdraw", "mine", *state, "--wait", "60").out == "mine: accepted\n"
        assert "has not ended" in call("cluster", "withdraw", "mine", *state, "--wait", "60").err
        one.waited(lambda: not alive(home), "it has left")
        assert one.send(signal.SIGTERM) == 0
        assert one.query("SELECT outcome FROM apps WHERE name = 'mine'") == [("withdrawn",)]
        shown = call("cluster", "status", *state)
        assert "not running" in shown.out
        assert "withdrawn" in shown.out


def test_who_waits_learns_why(call: Any, home: Path, script: Path, tmp_path: Path) -> None:
    apps = [
        {
            "name": name,
            "gpus": 4,
            "length": "1h",
            "processes": "job",
            "command": f"{sys.executable} {script} 100000 0.05",
        }
        for name in ("first", "second")
    ]
    with arbiter(cluster_file(tmp_path, script, apps=apps, policy={"name": "fifo"}), home) as one:
        one.start()
        one.waited(
            lambda: one.query("SELECT * FROM meta WHERE key = 'status' AND value LIKE '%second%'"), "status"
        )
        shown = call("cluster", "status", "--state", str(home)).lines
        assert any("second waiting" in line and "number 1 of 1 in line" in line for line in shown)
        assert any("first running 0-3" in line for line in shown)


def test_logs_are_printed_and_followed(call: Any, home: Path, script: Path, tmp_path: Path) -> None:
    """Each run has a log; who follows hears all until the app ends."""
    code = "import pathlib, sys, time; print('hello'); go = pathlib.Path('go')\n"
    wait = "while not go.exists(): time.sleep(0.05)\nprint('bye')"
    apps = [
        {"name": "talks", "length": "1s", "command": [sys.executable, "-uc", code + wait]},
        {"name": "twins", "length": "1s", "jobs": 2, "command": "sh -c 'echo job $ASTRARIUM_JOB'"},
        {"name": "silent", "length": "1s", "command": "true"},
    ]
    file = cluster_file(
        tmp_path, script, apps=apps, live={"jobs": str(tmp_path / "elsewhere"), "look": "50ms"}
    )
    state = ("--state", str(home))
    with arbiter(file, home) as one:
        one.start()
        one.waited(lambda: one.query("SELECT * FROM runs WHERE outcome = 'open'"), "it runs")
        one.waited(lambda: call("cluster", "logs", "talks", *state).out == "hello\n", "its first words")
        follows = subprocess.Popen(
            [sys.executable, "-m", "astrarium", "cluster", "logs", "talks", "-f", *state],
            stdout=subprocess.PIPE,
        )
        assert follows.stdout is not None
        assert follows.stdout.readline() == b"hello\n"
        (tmp_path / "go").touch()
        assert follows.communicate(timeout=60)[0] == b"bye\n"
        one.end()
        expected = (
            "==> job-0/run-1/part-0/log-0.txt <==\njob 0\n==> job-1/run-1/part-0/log-0.txt <==\njob 1\n"
        )
        assert call("cluster", "logs", "twins", *state).out == expected
        assert call("cluster", "logs", "silent", *state).err == "silent: it has written nothing yet\n"
        expected = "APP: expected an app of this cluster, such as talks, twins, silent; did you mean 'twins'?"
        assert expected in call("cluster", "logs", "twin", *state).error


@pytest.mark.thorough
def test_only_one_arbiter_at_a_time(home: Path, script: Path, tmp_path: Path) -> None:
    file = cluster_file(tmp_path, script)
    with arbiter(file, home) as one:
        one.start()
        one.waited(lambda: one.query("SELECT * FROM steps"), "steps")
        other = Arbiter(file, home)
        other.words = tmp_path / "other.txt"
        other.start()
        assert other.process is not None
        assert other.process.wait(60) == 2
        assert "no other arbiter is running" in other.words.read_text()


def test_a_job_that_fails_is_told_at_once_and_in_the_end(home: Path, script: Path, tmp_path: Path) -> None:
    """Also when the command is mended in the file: an app that was here is not another one."""
    bad = {"name": "bad", "length": "1s", "command": [sys.executable, "-c", "raise SystemExit('no data')"]}
    file = cluster_file(tmp_path, script, apps=[bad], live={"retries": 1, "look": "50ms"})
    with arbiter(file, home) as one:
        one.start()
        assert one.process is not None
        assert one.process.wait(60) == 1
        words = one.words.read_text()
        assert "bad job 0, run 1 failed: exit code 1, no data" in words
        assert "bad job 0, run 2 failed: exit code 1, no data" in words
        assert one.query("SELECT outcome, reason FROM apps") == [
            ("failed", "job 0 failed: exit code 1, no data")
        ]
        assert one.query("SELECT DISTINCT outcome FROM jobs") == [("abandoned",)]
        assert one.query("SELECT DISTINCT outcome FROM runs") == [("failed",)]
        one.start()
        one.end()  # with 0: it failed in another run
        assert "here before, and taken as they were then: bad" in one.words.read_text()


@pytest.mark.thorough
def test_what_is_left_while_no_arbiter_runs_is_found_by_the_next(
    call: Any, home: Path, script: Path, tmp_path: Path
) -> None:
    file = cluster_file(tmp_path, script, apps=[{"name": "first", "length": "1s", "command": "true"}])
    state = ("--state", str(home), "--wait", "0")
    with arbiter(file, home) as one:
        one.start()
        one.end()
        for _ in range(2):
            assert (
                "left for the arbiter"
                in call("cluster", "submit", "--command", "true", "--name", "x", *state).err
            )
        call("cluster", "submit", "--command", "sleep 600", "--name", "y", "--on-stop", "restart", *state)
        call("cluster", "withdraw", "y", *state)
        assert (
            "4 submitted or withdrawn, and not yet read"
            in call("cluster", "status", "--state", str(home)).out
        )
        one.start()
        one.end()
        rows = one.query("SELECT name, outcome FROM apps")
        assert rows == [("first", "finished"), ("x", "finished"), ("y", "withdrawn")]
        assert [row[0].partition(":")[0] for row in one.query("SELECT answer FROM inbox ORDER BY id")] == [
            "accepted", "refused", "accepted", "accepted",
        ]  # fmt: skip
        assert not one.query("SELECT * FROM leases WHERE outcome = 'open'")
        assert not one.query("SELECT * FROM runs WHERE outcome = 'open'")


def test_a_state_folder_that_cannot_be_written_is_named(call: Any, script: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    result = call("run", str(cluster_file(tmp_path, script)), "--state", str(tmp_path / "taken"))
    assert result.code == 2
    assert f"error: {tmp_path / 'taken'}: Not a directory" in result.err


def test_a_store_that_is_none_is_named(call: Any, script: Path, tmp_path: Path) -> None:
    (tmp_path / "here.state").mkdir()
    (tmp_path / "here.state/cluster.db").write_text("garbage" * 1000)
    result = call("run", str(cluster_file(tmp_path, script)), "--state", str(tmp_path / "here.state"))
    assert result.code == 2
    assert f"error: {tmp_path / 'here.state'}: the store cannot be read or written: file is not" in result.err


def test_a_cluster_that_has_written_nothing_begins_now(tmp_path: Path) -> None:
    """A full disk or a kill may leave an empty file."""
    (tmp_path / "cluster.db").touch()
    before = time.time_ns()
    assert before <= settings.origin_of(tmp_path) <= time.time_ns()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"apps": [{"name": "a", "length": "1s"}]}, "apps[0].command: expected a command"),
        ({"apps": [{"name": "a", "length": "1s", "gpus": 9, "command": "x"}]}, "at most 4 GPUs"),
        (
            {"apps": [{"name": "a", "kind": "halving", "jobs": 2, "budget": "1s", "command": "x"}]},
            "apps[0].kind",
        ),
        ({"apps": {"themis": 1}}, "can only be simulated"),
        ({"live": {"address": "somewhere"}}, "live.address"),
        (
            {"apps": [{"name": "a", "length": "1s", "command": "x", "direktory": "y"}]},
            "did you mean 'directory'?",
        ),
        (
            {"apps": [{"name": "a", "length": "1s", "command": "x", "env": {"A=B": "y"}}]},
            "apps[0].env: expected a name without =",
        ),
        (
            {
                "apps": [
                    {"name": "a", "length": "1s", "command": "true"},
                    {**APP, "command": "no-such-program 5"},
                ]
            },
            "apps[1].command: expected a program that is in PATH",
        ),
        ({"apps": [{**APP, "command": "./sum.sh"}]}, "(got './sum.sh')"),
        ({"apps": [{**APP, "command": "true", "env": {"PATH": "/nowhere"}}]}, "(got 'true')"),
        ({"apps": [{**APP, "command": "true", "directory": "none"}]}, "apps[0].directory: expected a folder"),
        ({"live": {"grace": "0s"}}, "live.grace"),
        ({"live": {"retries": -1}}, "live.retries"),
        (
            {"apps": [{"name": "a", "length": "1s", "command": "'"}]},
            "apps[0].command: expected a command line",
        ),
        ({"apps": [{"name": "a", "length": "1s", "command": "x", "on_stop": "maybe"}]}, "apps[0].on_stop"),
    ],
)
def test_files_that_cannot_be_run(
    call: Any, tmp_path: Path, script: Path, changes: Any, expected: str
) -> None:
    file = cluster_file(tmp_path, script, **changes)
    result = call("run", str(file), "--state", str(tmp_path / "none"))
    assert result.code == 2
    assert expected in result.err
    assert not (tmp_path / "none").exists()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("status",), "--state: expected the state folder"),
        (("submit", "--name", "x"), "--command: expected a command"),
        (("submit", "some.yaml", "--gpus", "2"), "--gpus: expected to be left out beside a file"),
        (("submit", "--command", "x", "--gpus", "0"), "app.gpus"),
        (
            ("submit", "--command", "x", "--name", "a/../../b"),
            "app.name: expected text that could name a file",
        ),
        (("submit", "--command", "x", "--name", ""), "app.name: expected text that could name a file"),
        (("logs", "x", "--state", "nowhere"), "--state"),
        (("submit", "--command", "x", "--on-stop", "y"), "app.on_stop"),
        (("submit", "--command", "x", "--length", "5"), "app.length"),
        (("withdraw", "x", "--state", "nowhere"), "--state"),
    ],
)
def test_questions_that_cannot_be_answered(call: Any, elsewhere: None, arguments: Any, expected: str) -> None:
    result = call("cluster", *arguments)
    assert result.code == 2
    assert expected in result.err
