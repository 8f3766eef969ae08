"""Hooks: who is told, how often, and that nobody waits for them."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.live.watching import hooks as hooks_module
from astrarium.cluster.live.watching.hooks import KEY, KINDS, Hook, HookProgress, Hooks, named, progress_of
from astrarium.cluster.scenario.live import On
from astrarium.cluster.scenario.read import parse
from astrarium.core.errors import InputError
from tests.support.cluster.virtual_cluster import VirtualCluster

PATIENCE = 60.0


class Receiver:
    """A server of this machine that is told things; *refusals* of the first calls fail."""

    def __init__(self, refusals: int = 0) -> None:
        self.heard: list[dict[str, Any]] = []
        self.refusals = refusals
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                refused = outer.refusals > 0
                outer.refusals = max(0, outer.refusals - 1)
                if not refused:
                    outer.heard.append(json.loads(body))
                    assert self.headers["X-Astrarium-Event-Id"] == outer.heard[-1]["id"]
                self.send_response(503 if refused else 204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/told"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("no_proxy", "*")
    one = Receiver()
    yield one
    one.server.shutdown()
    one.server.server_close()


@pytest.fixture
def cluster(tmp_path: Path) -> VirtualCluster:
    return VirtualCluster(tmp_path / "state")


def waited(met: Callable[[], object], what: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < ends, what
        time.sleep(0.02)


def opened(cluster: VirtualCluster, *hooks: Hook) -> Hooks:
    return Hooks(cluster.home, cluster.arbiter.store, hooks, pause=0.01)


def lived(cluster: VirtualCluster) -> None:
    cluster.submit("a", 4)
    cluster.go(1)
    cluster.submit("b", 2)
    cluster.go(100)


def test_a_url_is_told_of_each_event_once(cluster: VirtualCluster, receiver: Receiver) -> None:
    sender = opened(cluster, Hook("0", ("start", "end", "preempt", "fail"), url=receiver.url))
    lived(cluster)
    assert sender.close(cluster.arbiter.now) == 0
    received = [(event["event"], event["name"]) for event in receiver.heard]
    kinds = "('started', 'preempted', 'finished')"
    assert received == [
        (row["kind"], row["name"])
        for row in cluster.rows(f"SELECT * FROM events WHERE kind IN {kinds} ORDER BY id")
    ]
    assert ("preempted", "a") in received
    assert len({event["id"] for event in receiver.heard}) == len(received)
    [kept] = progress_of(cluster.arbiter.store.get(KEY)).values()
    assert (kept.delivered, kept.failed, kept.dropped) == (len(received), 0, 0)


def test_it_is_told_again_when_that_failed(cluster: VirtualCluster, receiver: Receiver) -> None:
    receiver.refusals = 2
    sender = opened(cluster, Hook("0", ("submit",), url=receiver.url, retries=2))
    lived(cluster)
    sender.close(cluster.arbiter.now)
    assert [event["name"] for event in receiver.heard] == ["a", "b"]


def test_who_does_not_answer_is_given_up_and_said(cluster: VirtualCluster, receiver: Receiver) -> None:
    receiver.refusals = 3
    sender = opened(cluster, Hook("0 here", ("submit",), url=receiver.url, retries=2))
    lived(cluster)
    sender.close(cluster.arbiter.now)
    assert [event["name"] for event in receiver.heard] == ["b"]
    [row] = cluster.rows("SELECT * FROM events WHERE kind = 'hook_failed'")
    assert row["name"] == "hook 0 here"
    assert row["reason"] == "event submitted of a: HTTP Error 503: Service Unavailable"
    [kept] = progress_of(cluster.arbiter.store.get(KEY)).values()
    assert (kept.delivered, kept.failed) == (1, 1)


def test_a_command_gets_the_event_on_stdin_and_in_its_environment(
    cluster: VirtualCluster, tmp_path: Path
) -> None:
    code = (
        "import json, os, sys; event = json.load(sys.stdin);"
        "assert event['id'] == os.environ['ASTRARIUM_EVENT_ID'];"
        "print(event['event'], os.environ['ASTRARIUM_EVENT'], os.environ['ASTRARIUM_APP'],"
        "file=open('told.txt', 'a'))"
    )
    command = (sys.executable, "-S", "-c", code)
    sender = opened(cluster, Hook("0", ("start",), command, directory=str(tmp_path), timeout=PATIENCE))
    cluster.submit("a")
    cluster.go(1)
    output = tmp_path / "told.txt"
    waited(lambda: output.exists() and output.stat().st_size, "the command ran")
    sender.close(cluster.arbiter.now)
    assert output.read_text() == "started started a\n"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise SystemExit('no such channel')", "exit code 1, no such channel"),
        ("import time; time.sleep(60)", "it took longer than 0.5 s"),
    ],
)
def test_a_command_that_fails_is_said_with_its_words(cluster: VirtualCluster, code: str, error: str) -> None:
    command = (sys.executable, "-S", "-c", code)
    timeout = 0.5 if "sleep" in code else PATIENCE
    sender = opened(cluster, Hook("0", ("start",), command, timeout=timeout, retries=0))
    cluster.submit("a")
    cluster.go(1)
    waited(lambda: sender.threads[0].progress.failed, "it was given up")
    sender.close(cluster.arbiter.now)
    [row] = cluster.rows("SELECT reason FROM events WHERE kind = 'hook_failed'")
    assert row["reason"] == f"event started of a: {error}"


def test_after_a_death_events_are_told_again_rather_than_not(
    cluster: VirtualCluster, receiver: Receiver
) -> None:
    """The arbiter dies after the delivery, and before it has kept the cursor: a receiver sees the same id."""
    hook = Hook("0", ("submit",), url=receiver.url)
    sender = opened(cluster, hook)
    cluster.submit("a")
    cluster.go(1)
    waited(lambda: receiver.heard, "it was told")
    sender.threads[0].close(time.monotonic())  # and keeps nothing
    cluster.submit("b")
    cluster.go(1)  # nobody is told of this one
    cluster.die_and_come_back()
    opened(cluster, hook).close(cluster.arbiter.now)
    assert [event["name"] for event in receiver.heard] == ["a", "a", "b"]
    assert len({event["id"] for event in receiver.heard}) == 2
    opened(cluster, hook).close(cluster.arbiter.now)
    assert len(receiver.heard) == 3  # what was kept is not told again


def test_a_new_hook_hears_of_nothing_that_was_before_it(cluster: VirtualCluster, receiver: Receiver) -> None:
    lived(cluster)
    opened(cluster, Hook("0", ("submit", "end"), url=receiver.url)).close(cluster.arbiter.now)
    assert receiver.heard == []


def test_a_queue_that_is_too_long_loses_its_oldest(
    cluster: VirtualCluster, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks_module, "MOST_PENDING", 2)
    hook = Hook("0", ("submit",), url=receiver.url)
    cluster.arbiter.store.put(KEY, json.dumps({hook.id: {"name": "0", "cursor": 0}}))
    for number in range(5):
        cluster.submit(f"app {number}")
    cluster.go(1)
    opened(cluster, hook).close(cluster.arbiter.now)
    assert [event["name"] for event in receiver.heard] == ["app 3", "app 4"]
    [row] = cluster.rows("SELECT reason FROM events WHERE kind = 'hook_dropped'")
    assert row["reason"] == "3 events: more than 2 were waiting"
    assert progress_of(cluster.arbiter.store.get(KEY))[hook.id].dropped == 3


def test_nobody_waits_for_a_hook_that_hangs(cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks_module, "FLUSH", 0.1)
    command = (sys.executable, "-S", "-c", "import time; time.sleep(3)")
    sender = opened(cluster, Hook("0", ("submit",), command, timeout=PATIENCE))
    lived(cluster)
    assert cluster.outcomes() == {"a": "finished", "b": "finished"}
    assert sender.close(cluster.arbiter.now) == 1
    assert progress_of(cluster.arbiter.store.get(KEY))[sender.threads[0].hook.id].delivered == 0


def test_names_hide_what_a_url_may_hold() -> None:
    assert named(1, (), "https://hooks.example.org/secret?key=1") == "1 hooks.example.org"
    assert named(0, ("./tools/notify.sh", "x"), "") == "0 notify.sh"
    assert HookProgress().error == ""


def test_every_word_stands_for_events() -> None:
    from typing import get_args

    assert set(get_args(On)) == KINDS.keys()


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        ({"on": ["begin"], "command": "true"}, r"on\[0\]: expected .*start.* \(got 'begin'\)"),
        ({"on": [], "command": "true"}, "on: expected at least one of submit, start"),
        ({"on": ["start"]}, "url: expected either a command or a url"),
        ({"on": ["start"], "url": "ftp://x"}, "url: expected an address that begins with http"),
        ({"on": ["start"], "command": "a 'b"}, "command: expected a command line"),
        ({"on": ["start"], "command": "x", "timeout": 0}, "timeout: expected a duration above 0"),
    ],
)
def test_wrong_hooks_are_refused(hook: dict[str, Any], expected: str) -> None:
    raw = {"machines": [{"gpus": 1}], "apps": [{"name": "a", "length": "1s"}], "live": {"hooks": [hook]}}
    with pytest.raises(InputError, match=rf"live.hooks\[0\].{expected}"):
        parse(raw)


@pytest.mark.parametrize("metrics", ["x", ":9100", 70_000, "host:port", -1, True])
def test_wrong_addresses_of_metrics_are_refused(metrics: Any) -> None:
    raw = {"machines": [{"gpus": 1}], "apps": [{"name": "a", "length": "1s"}], "live": {"metrics": metrics}}
    with pytest.raises(InputError, match=r"live.metrics: expected a port, such as 9100"):
        parse(raw)
