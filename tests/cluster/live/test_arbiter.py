"""The arbiter and its store, with machines that are not there and a clock that is told."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.live.arbiter import PlannedApp
from astrarium.cluster.live.backend import MachineStatus
from astrarium.cluster.live.store import Store, Superseded
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.state import ClusterState
from astrarium.core.choice import Choice, chosen
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND, Duration
from astrarium.core.trace import Step
from astrarium.run.replay import replay
from tests.support.cluster.virtual_cluster import VirtualCluster


@pytest.fixture
def cluster(tmp_path: Path) -> VirtualCluster:
    return VirtualCluster(tmp_path / "state")


def test_letters_are_read_once_and_answered(cluster: VirtualCluster) -> None:
    first = cluster.submit("a")
    huge = cluster.submit("b", gpus=9)
    cluster.go(1)
    same = cluster.submit("a")
    cluster.go(1)
    answers = [cluster.arbiter.store.inbox.answer(letter) for letter in (first, huge, same)]
    assert answers[0] == "accepted"
    assert answers[1] == "refused: gpus: expected at most 4 (got 9)"
    assert answers[2] is not None
    assert "no other app has had" in answers[2]
    assert cluster.outcomes() == {"a": "open"}
    cluster.die_and_come_back()
    cluster.go(1)
    assert cluster.outcomes() == {"a": "open"}


def test_letters_that_were_left_while_nobody_read_them(cluster: VirtualCluster) -> None:
    """All are read in one turn, each as if those before it had been read before."""
    cluster.submit("a")
    same = cluster.submit("a")
    cluster.submit("b")
    gone = cluster.submit("b", kind="withdraw")
    again = cluster.submit("b", kind="withdraw")
    cluster.go(2)
    answers = [cluster.arbiter.store.inbox.answer(letter) for letter in (same, gone, again)]
    assert answers == [
        "refused: name: expected one that no other app has had here (got 'a')",
        "accepted",
        "refused: app: expected the name of an app that has not ended (got 'b')",
    ]
    assert cluster.outcomes() == {"a": "open", "b": "withdrawn"}


def test_names_of_the_file_are_taken_before_they_come(tmp_path: Path) -> None:
    cluster = VirtualCluster(
        tmp_path, planned=(PlannedApp(5 * SECOND, "later", {"name": "later", "gpus": 1}),)
    )
    letter = cluster.submit("later")
    cluster.go(8)
    answer = cluster.arbiter.store.inbox.answer(letter)
    assert answer is not None
    assert answer.startswith("refused: name")
    assert cluster.outcomes() == {"later": "open"}
    assert cluster.arbiter.known_before == []
    cluster.die_and_come_back()
    assert cluster.arbiter.known_before == ["later"]


def test_a_machine_with_other_gpus_is_another_one(cluster: VirtualCluster) -> None:
    cluster.submit("a", 2)
    cluster.go(3)
    cluster.die_and_come_back()
    cluster.backend.machines = {"left": MachineStatus(4)}
    cluster.go(100)
    assert cluster.arbiter.state.floor.size == 4
    assert cluster.outcomes() == {"a": "finished"}
    assert cluster.count("leases", "outcome = 'open'") == cluster.count("runs", "outcome = 'open'") == 0


def test_an_app_is_withdrawn_by_letter(cluster: VirtualCluster) -> None:
    cluster.submit("a")
    cluster.go(2)
    letter = cluster.submit("a", kind="withdraw")
    cluster.go(2)
    assert cluster.arbiter.store.inbox.answer(letter) == "accepted"
    assert cluster.outcomes() == {"a": "withdrawn"}
    assert cluster.count("jobs", "outcome = 'abandoned'") == 1
    assert cluster.count("runs", "outcome = 'open'") == 0
    assert cluster.count("leases", "outcome = 'returned'") == 1


def test_apps_of_the_file_come_in_time_and_once(tmp_path: Path) -> None:
    planned = tuple(PlannedApp(at * SECOND, f"at {at}", {"name": f"at {at}", "gpus": 1}) for at in (0, 5))
    cluster = VirtualCluster(tmp_path, planned=planned)
    cluster.go(3)
    assert cluster.outcomes() == {"at 0": "open"}
    cluster.die_and_come_back()
    cluster.go(3)
    assert cluster.outcomes() == {"at 0": "open", "at 5": "open"}
    assert not cluster.arbiter.idle


@pytest.mark.parametrize("policy", ["fifo", "tiresias", "themis", "srtf", "max-min", "astrarium"])
def test_killed_every_few_seconds_it_ends_as_if_it_had_lived(tmp_path: Path, policy: str) -> None:
    cluster = VirtualCluster(tmp_path, policy)
    for number in range(4):
        cluster.submit(f"app {number}", 1 + number % 3)
    for _ in range(60):
        cluster.go(4)
        cluster.die_and_come_back(policy)
        if cluster.arbiter.idle:
            break
    assert set(cluster.outcomes().values()) == {"finished"}
    assert cluster.count("leases", "outcome = 'open'") == cluster.count("runs", "outcome = 'open'") == 0
    assert len(cluster.backend.started) == len(set(cluster.backend.started))
    assert cluster.arbiter.epoch > 5


def test_what_it_decided_between_deaths_is_what_one_policy_decides(tmp_path: Path) -> None:
    """With all that it remembers: a policy that has never died says the same to the same events."""
    cluster = VirtualCluster(tmp_path)
    for number in range(4):
        cluster.submit(f"app {number}", 1 + number % 3)
    for _ in range(10):
        cluster.go(4)
        cluster.die_and_come_back()
    from astrarium.cluster.live.slowdowns import FixedSlowdowns
    from astrarium.cluster.policies import Arbiter
    from astrarium.core.engine import Engine

    fresh = Engine(
        ClusterState(FixedSlowdowns()), Arbiter(chosen(cluster_policies, Choice("tiresias", {"lease": "5s"})))
    )
    assert replay(fresh, cluster.arbiter.store.steps()) is None


def test_another_policy_takes_over(tmp_path: Path) -> None:
    cluster = VirtualCluster(tmp_path)
    for number in range(4):
        cluster.submit(f"app {number}", 1 + number % 3)
    cluster.go(6)
    cluster.die_and_come_back("fifo")
    cluster.go(200)
    assert set(cluster.outcomes().values()) == {"finished"}


def test_the_clock_of_the_wall_may_be_set_back(cluster: VirtualCluster) -> None:
    cluster.submit("a")
    cluster.go(10)
    cluster.set_back = 3600 * SECOND
    assert cluster.arbiter.now() == 10 * SECOND
    cluster.die_and_come_back()
    [last] = cluster.rows("SELECT max(now) AS now FROM steps")
    assert cluster.arbiter.now() == last["now"] > 0
    cluster.go(60)
    assert cluster.outcomes() == {"a": "finished"}


def test_time_goes_on_while_nobody_watches(cluster: VirtualCluster) -> None:
    cluster.submit("a")
    cluster.go(2)
    cluster.clock.pass_seconds(500)
    cluster.die_and_come_back()
    cluster.arbiter.turn()
    assert cluster.outcomes() == {"a": "finished"}  # its job went on by itself
    assert cluster.arbiter.now() == 502 * SECOND


def test_there_is_one_arbiter_at_a_time(cluster: VirtualCluster) -> None:
    with pytest.raises(InputError, match="no other arbiter is running"):
        cluster._open("fifo")


def test_an_arbiter_that_was_superseded_writes_nothing(cluster: VirtualCluster) -> None:
    """As when a lock does not reach over a network."""
    cluster.submit("a")
    cluster.go(1)
    old = cluster.arbiter
    steps = cluster.count("steps")
    cluster.die_and_come_back()
    assert cluster.arbiter.epoch == old.epoch + 1
    cluster.submit("b")
    with pytest.raises(Superseded, match="arbiter 1 was superseded by arbiter 2"):
        old.turn()
    assert cluster.count("steps") == steps
    cluster.go(1)
    assert cluster.outcomes() == {"a": "open", "b": "open"}


def test_a_step_is_written_whole_or_not_at_all(
    cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.submit("a")
    cluster.go(1)
    letter = cluster.submit("b")
    before = cluster.count("steps")

    def broken(step: Step, *_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(cluster.arbiter.store._rows, "write", broken)
    with pytest.raises(OSError, match="no space"):
        cluster.arbiter.turn()
    assert cluster.count("steps") == before
    cluster.die_and_come_back()
    assert cluster.outcomes() == {"a": "open"}
    cluster.go(1)
    assert cluster.arbiter.store.inbox.answer(letter) == "accepted"
    assert cluster.outcomes() == {"a": "open", "b": "open"}


def test_a_policy_that_cannot_be_kept_is_introduced_anew(tmp_path: Path) -> None:
    cluster = VirtualCluster(tmp_path)
    cluster.arbiter._allocator_now.lock = threading.Lock()  # type: ignore[attr-defined]
    cluster.submit("a", 4)
    cluster.submit("b", 4)
    cluster.go(7)
    assert cluster.arbiter.store.policy(cluster.arbiter.state) is None
    cluster.die_and_come_back()
    cluster.go(300)
    assert cluster.outcomes() == {"a": "finished", "b": "finished"}


def test_leases_tell_how_they_ended(tmp_path: Path) -> None:
    cluster = VirtualCluster(tmp_path)
    cluster.submit("a", 4)
    cluster.submit("b", 2)
    cluster.go(3)
    cluster.backend.lose("right")
    cluster.go(2)
    cluster.backend.machines["third"] = MachineStatus(2)
    cluster.go(400)
    outcomes = {row["outcome"] for row in cluster.rows("SELECT DISTINCT outcome FROM leases")}
    assert outcomes == {"expired", "lost", "returned", "revoked"}
    assert cluster.count("leases", "renewed > 0") > 0
    assert cluster.count("decisions", "what = 'lost' AND why = 'machine 1 died'") == 1
    assert cluster.count("decisions", "what = 'grant' AND why != ''") > 0


def test_the_status_says_who_waits_and_why(tmp_path: Path) -> None:
    cluster = VirtualCluster(tmp_path, "fifo")
    for name in ("a", "b"):
        cluster.submit(name, 4)
    cluster.go(3)
    shown = cluster.arbiter.status()
    first, second = shown["apps"]
    assert (first["gpus"], first["why"]) == ([0, 1, 2, 3], "it has all that it can use")
    assert second["why"] == "it needs 4 together, 0 of 4 are free; number 1 of 1 in line (by its arrival)"
    assert first["rho"] < second["rho"]
    assert shown["machines"][0]["held"] == {0: "a", 1: "a"}
    cluster.go(400)
    assert [app["outcome"] for app in cluster.arbiter.status()["apps"]] == ["finished", "finished"]


def test_a_folder_of_another_form_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store._db.execute("UPDATE meta SET value = 'another' WHERE key = 'form'")
    with pytest.raises(InputError, match="this version"):
        Store(tmp_path)


def test_leases_are_of_a_length(tmp_path: Path) -> None:
    """The policy is the one that was asked for."""
    cluster = VirtualCluster(tmp_path)
    cluster.submit("a")
    cluster.go(1)
    [lease] = cluster.rows("SELECT until - since AS length FROM leases")
    assert lease["length"] == Duration(5 * SECOND)


@pytest.mark.parametrize(
    "error",
    [InputError("name", "x", "less"), ValueError("a zero byte"), OSError(36, "too long"), TypeError()],
)
def test_a_message_that_cannot_be_read_is_refused_and_ends_nothing(
    cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(body: dict[str, Any], largest: int, owner: str) -> Any:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(cluster.arbiter, "_setup", cluster.arbiter._setup._replace(read=failing))
        letter = cluster.submit("x" * 1000)
        cluster.go(1)
    assert str(Store(cluster.home).inbox.answer(letter)) == f"refused: {error}"
    [row] = cluster.rows("SELECT name FROM events WHERE kind = 'refused'")
    assert row["name"] == "x" * 200
    cluster.submit("a")
    cluster.go(1)
    assert cluster.outcomes() == {"a": "open"}


def test_a_user_has_so_many_apps_that_have_not_ended(
    cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astrarium.cluster.live.arbiter.MOST_OPEN", 2)
    store = Store(cluster.home)
    owners = {"a": "bob", "b": "bob", "c": "bob", "d": "carol", "e": ""}
    letters = {
        name: store.inbox.send("app", {"name": name, "gpus": 1}, 0, owner) for name, owner in owners.items()
    }
    cluster.go(1)
    answers = {name: store.inbox.answer(letter) for name, letter in letters.items()}
    assert (
        answers.pop("c") == "refused: user: expected at most 2 apps of a user that have not ended (got 'bob')"
    )
    assert set(answers.values()) == {"accepted"}


def test_what_is_refused_steers_no_terminal(cluster: VirtualCluster) -> None:
    """An operator's events once held a line of its submitter's own, and escapes."""
    cluster.submit("\x1b]0;owned\x07\nv0 finished", team="\x1b[2J", gpus=9)
    cluster.go(1)
    [event] = cluster.rows("SELECT name, team, reason FROM events WHERE kind = 'refused'")
    assert event["name"] == " ]0;owned  v0 finished"
    assert all(text.isprintable() for text in event.values())
    [row] = cluster.rows("SELECT answer FROM inbox")
    assert row["answer"].isprintable()


def test_jobs_of_a_user_are_bounded_too(cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apps of 10,000 jobs each once took the arbiter's memory, and its turns."""
    monkeypatch.setattr("astrarium.cluster.live.arbiter.MOST_OPEN_JOBS", 2)
    monkeypatch.setattr(cluster.arbiter._hourly, "_most", 3)
    store = Store(cluster.home)

    def sent(name: str, owner: str, kind: str = "app") -> str | None:
        letter = store.inbox.send(kind, {"name": name, "gpus": 1, "app": name}, 0, owner)
        cluster.go(1)
        return store.inbox.answer(letter)

    assert [sent(name, "bob") for name in ("a", "b")] == ["accepted", "accepted"]
    expected = "refused: user: expected at most 2 jobs of all apps of a user that have not ended (got 'bob')"
    assert sent("c", "bob") == expected
    assert sent("d", "carol") == "accepted"
    for name in ("a", "b"):
        sent(name, "bob", "withdraw")
    cluster.go(5)
    assert sent("e", "bob") == "accepted"
    assert "at most 3 jobs of a user in an hour" in str(sent("f", "bob"))
    assert [sent(name, "") for name in ("g", "h", "i", "j")] == ["accepted"] * 4
