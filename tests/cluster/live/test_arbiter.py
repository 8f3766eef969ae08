"""The arbiter and its store, with machines that are not there and a clock that is told."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.contract import App, single
from astrarium.cluster.live.arbiter import ArbiterProcess, ArbiterSetup, ChosenPolicy, PlannedApp
from astrarium.cluster.live.backend import JobCommand, MachineStatus
from astrarium.cluster.live.store import FILE, Store, Superseded, open_database, rows
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.state import ClusterState
from astrarium.core.choice import Choice, chosen
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND, Duration
from astrarium.core.trace import Step
from astrarium.run.replay import replay
from tests.support.cluster.live_fakes import Clock, FakeBackend

START = 1_700_000_000 * SECOND  # of the wall clock
TASK = JobCommand(("train",))


def read(body: dict[str, Any], largest: int, owner: str) -> list[tuple[App, JobCommand]]:
    if body["gpus"] > largest:
        raise InputError("gpus", body["gpus"], f"at most {largest}")
    return [(single(0, body["name"], 20 * SECOND, body["gpus"], team=body.get("team", "")), TASK)]


class House:
    """An office that can be closed as a process ends: without a word."""

    def __init__(
        self, home: Path, policy: str = "tiresias", planned: tuple[PlannedApp, ...] = (), **more: Any
    ) -> None:
        self.home = home
        self.clock = Clock()
        self.set_back = 0
        lengths = dict.fromkeys(range(20), 40 * SECOND)
        machines = {name: MachineStatus(2) for name in ("left", "right")}
        self.backend = FakeBackend(self.clock, machines, lengths, leaving=SECOND)
        self.planned = planned
        self.more = more
        self.office = self._open(policy)

    def wall(self) -> int:
        return START + self.clock.now - self.set_back

    def _open(self, name: str) -> ArbiterProcess:
        parameters = {"fifo": {}, "max-min": {"round": "5s"}}.get(name, {"lease": "5s"})
        policy = ChosenPolicy(f"{name}{parameters}", chosen(cluster_policies, Choice(name, parameters)))
        setup = ArbiterSetup(policy, read, self.wall, self.clock, planned=self.planned, **self.more)
        return ArbiterProcess(self.home, setup, self.backend)

    def die_and_come_back(self, policy: str = "tiresias") -> None:
        os.close(self.office._lock)
        self.office = self._open(policy)

    def submit(self, name: str, gpus: int = 1, kind: str = "app", team: str = "", **more: Any) -> int:
        body = {"name": name, "gpus": gpus, "app": name, "team": team, **more}
        return Store(self.home).send(kind, body, self.clock.now)

    def go(self, seconds: float, every: float = 0.5) -> None:
        for _ in range(round(seconds / every)):
            self.clock.pass_seconds(every)
            self.office.turn()

    def outcomes(self) -> dict[str, str]:
        return {row["name"]: row["outcome"] for row in self.rows("SELECT * FROM apps")}

    def rows(self, query: str) -> list[dict[str, Any]]:
        return rows(open_database(self.home / FILE, read_only=True), query)

    def count(self, table: str, where: str = "1") -> int:
        return int(self.rows(f"SELECT count(*) AS n FROM {table} WHERE {where}")[0]["n"])


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "state")


def test_letters_are_read_once_and_answered(house: House) -> None:
    first = house.submit("a")
    huge = house.submit("b", gpus=9)
    house.go(1)
    same = house.submit("a")
    house.go(1)
    answers = [house.office.store.answer(letter) for letter in (first, huge, same)]
    assert answers[0] == "accepted"
    assert answers[1] == "refused: gpus: expected at most 4 (got 9)"
    assert answers[2] is not None
    assert "no other app has had" in answers[2]
    assert house.outcomes() == {"a": "open"}
    house.die_and_come_back()
    house.go(1)
    assert house.outcomes() == {"a": "open"}


def test_letters_that_were_left_while_nobody_read_them(house: House) -> None:
    """All are read in one turn, each as if those before it had been read before."""
    house.submit("a")
    same = house.submit("a")
    house.submit("b")
    gone = house.submit("b", kind="withdraw")
    again = house.submit("b", kind="withdraw")
    house.go(2)
    answers = [house.office.store.answer(letter) for letter in (same, gone, again)]
    assert answers == [
        "refused: name: expected one that no other app has had here (got 'a')",
        "accepted",
        "refused: app: expected the name of an app that has not ended (got 'b')",
    ]
    assert house.outcomes() == {"a": "open", "b": "withdrawn"}


def test_names_of_the_file_are_taken_before_they_come(tmp_path: Path) -> None:
    house = House(tmp_path, planned=(PlannedApp(5 * SECOND, "later", {"name": "later", "gpus": 1}),))
    letter = house.submit("later")
    house.go(8)
    answer = house.office.store.answer(letter)
    assert answer is not None
    assert answer.startswith("refused: name")
    assert house.outcomes() == {"later": "open"}
    assert house.office.known_before == []
    house.die_and_come_back()
    assert house.office.known_before == ["later"]


def test_a_machine_with_other_gpus_is_another_one(house: House) -> None:
    house.submit("a", 2)
    house.go(3)
    house.die_and_come_back()
    house.backend.machines = {"left": MachineStatus(4)}
    house.go(100)
    assert house.office.state.floor.size == 4
    assert house.outcomes() == {"a": "finished"}
    assert house.count("leases", "outcome = 'open'") == house.count("runs", "outcome = 'open'") == 0


def test_an_app_is_withdrawn_by_letter(house: House) -> None:
    house.submit("a")
    house.go(2)
    letter = house.submit("a", kind="withdraw")
    house.go(2)
    assert house.office.store.answer(letter) == "accepted"
    assert house.outcomes() == {"a": "withdrawn"}
    assert house.count("jobs", "outcome = 'abandoned'") == 1
    assert house.count("runs", "outcome = 'open'") == 0
    assert house.count("leases", "outcome = 'returned'") == 1


def test_apps_of_the_file_come_in_time_and_once(tmp_path: Path) -> None:
    planned = tuple(PlannedApp(at * SECOND, f"at {at}", {"name": f"at {at}", "gpus": 1}) for at in (0, 5))
    house = House(tmp_path, planned=planned)
    house.go(3)
    assert house.outcomes() == {"at 0": "open"}
    house.die_and_come_back()
    house.go(3)
    assert house.outcomes() == {"at 0": "open", "at 5": "open"}
    assert not house.office.idle


@pytest.mark.parametrize("policy", ["fifo", "tiresias", "themis", "srtf", "max-min", "astrarium"])
def test_killed_every_few_seconds_it_ends_as_if_it_had_lived(tmp_path: Path, policy: str) -> None:
    house = House(tmp_path, policy)
    for number in range(4):
        house.submit(f"app {number}", 1 + number % 3)
    for _ in range(60):
        house.go(4)
        house.die_and_come_back(policy)
        if house.office.idle:
            break
    assert set(house.outcomes().values()) == {"finished"}
    assert house.count("leases", "outcome = 'open'") == house.count("runs", "outcome = 'open'") == 0
    assert len(house.backend.started) == len(set(house.backend.started))
    assert house.office.epoch > 5


def test_what_it_decided_between_deaths_is_what_one_policy_decides(tmp_path: Path) -> None:
    """With all that it remembers: a policy that has never died says the same to the same events."""
    house = House(tmp_path)
    for number in range(4):
        house.submit(f"app {number}", 1 + number % 3)
    for _ in range(10):
        house.go(4)
        house.die_and_come_back()
    from astrarium.cluster.live.slowdowns import FixedSlowdowns
    from astrarium.cluster.policies import Arbiter
    from astrarium.core.engine import Engine

    fresh = Engine(
        ClusterState(FixedSlowdowns()), Arbiter(chosen(cluster_policies, Choice("tiresias", {"lease": "5s"})))
    )
    assert replay(fresh, house.office.store.steps()) is None


def test_another_policy_takes_over(tmp_path: Path) -> None:
    house = House(tmp_path)
    for number in range(4):
        house.submit(f"app {number}", 1 + number % 3)
    house.go(6)
    house.die_and_come_back("fifo")
    house.go(200)
    assert set(house.outcomes().values()) == {"finished"}


def test_the_clock_of_the_wall_may_be_set_back(house: House) -> None:
    house.submit("a")
    house.go(10)
    house.set_back = 3600 * SECOND
    assert house.office.now() == 10 * SECOND
    house.die_and_come_back()
    [last] = house.rows("SELECT max(now) AS now FROM steps")
    assert house.office.now() == last["now"] > 0
    house.go(60)
    assert house.outcomes() == {"a": "finished"}


def test_time_goes_on_while_nobody_watches(house: House) -> None:
    house.submit("a")
    house.go(2)
    house.clock.pass_seconds(500)
    house.die_and_come_back()
    house.office.turn()
    assert house.outcomes() == {"a": "finished"}  # its job went on by itself
    assert house.office.now() == 502 * SECOND


def test_there_is_one_arbiter_at_a_time(house: House) -> None:
    with pytest.raises(InputError, match="no other arbiter is running"):
        house._open("fifo")


def test_an_arbiter_that_was_superseded_writes_nothing(house: House) -> None:
    """As when a lock does not reach over a network."""
    house.submit("a")
    house.go(1)
    old = house.office
    steps = house.count("steps")
    house.die_and_come_back()
    assert house.office.epoch == old.epoch + 1
    house.submit("b")
    with pytest.raises(Superseded, match="arbiter 1 was superseded by arbiter 2"):
        old.turn()
    assert house.count("steps") == steps
    house.go(1)
    assert house.outcomes() == {"a": "open", "b": "open"}


def test_a_step_is_written_whole_or_not_at_all(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.submit("a")
    house.go(1)
    letter = house.submit("b")
    before = house.count("steps")

    def broken(step: Step, *_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(house.office.store._rows, "write", broken)
    with pytest.raises(OSError, match="no space"):
        house.office.turn()
    assert house.count("steps") == before
    house.die_and_come_back()
    assert house.outcomes() == {"a": "open"}
    house.go(1)
    assert house.office.store.answer(letter) == "accepted"
    assert house.outcomes() == {"a": "open", "b": "open"}


def test_a_policy_that_cannot_be_kept_is_introduced_anew(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.office._allocator_now.lock = threading.Lock()  # type: ignore[attr-defined]
    house.submit("a", 4)
    house.submit("b", 4)
    house.go(7)
    assert house.office.store.policy(house.office.state) is None
    house.die_and_come_back()
    house.go(300)
    assert house.outcomes() == {"a": "finished", "b": "finished"}


def test_leases_tell_how_they_ended(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.submit("a", 4)
    house.submit("b", 2)
    house.go(3)
    house.backend.lose("right")
    house.go(2)
    house.backend.machines["third"] = MachineStatus(2)
    house.go(400)
    found = {row["outcome"] for row in house.rows("SELECT DISTINCT outcome FROM leases")}
    assert found == {"expired", "lost", "returned", "revoked"}
    assert house.count("leases", "renewed > 0") > 0
    assert house.count("decisions", "what = 'lost' AND why = 'machine 1 died'") == 1
    assert house.count("decisions", "what = 'grant' AND why != ''") > 0


def test_the_status_says_who_waits_and_why(tmp_path: Path) -> None:
    house = House(tmp_path, "fifo")
    for name in ("a", "b"):
        house.submit(name, 4)
    house.go(3)
    told = house.office.status()
    first, second = told["apps"]
    assert (first["gpus"], first["why"]) == ([0, 1, 2, 3], "it has all that it can use")
    assert second["why"] == "it needs 4 together, 0 of 4 are free; number 1 of 1 in line (by its arrival)"
    assert first["rho"] < second["rho"]
    assert told["machines"][0]["held"] == {0: "a", 1: "a"}
    house.go(400)
    assert [app["outcome"] for app in house.office.status()["apps"]] == ["finished", "finished"]


def test_a_folder_of_another_form_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store._db.execute("UPDATE meta SET value = 'another' WHERE key = 'form'")
    with pytest.raises(InputError, match="this version"):
        Store(tmp_path)


def test_leases_are_of_a_length(tmp_path: Path) -> None:
    """The policy is the one that was asked for."""
    house = House(tmp_path)
    house.submit("a")
    house.go(1)
    [lease] = house.rows("SELECT until - since AS length FROM leases")
    assert lease["length"] == Duration(5 * SECOND)


@pytest.mark.parametrize(
    "error",
    [InputError("name", "x", "less"), ValueError("a zero byte"), OSError(36, "too long"), TypeError()],
)
def test_a_message_that_cannot_be_read_is_refused_and_ends_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing(body: dict[str, Any], largest: int, owner: str) -> Any:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(house.office, "_setup", house.office._setup._replace(read=failing))
        letter = house.submit("x" * 1000)
        house.go(1)
    assert str(Store(house.home).answer(letter)) == f"refused: {error}"
    [told] = house.rows("SELECT name FROM events WHERE kind = 'refused'")
    assert told["name"] == "x" * 200
    house.submit("a")
    house.go(1)
    assert house.outcomes() == {"a": "open"}


def test_a_user_has_so_many_apps_that_have_not_ended(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astrarium.cluster.live.arbiter.MOST_OPEN", 2)
    store = Store(house.home)
    owners = {"a": "bob", "b": "bob", "c": "bob", "d": "carol", "e": ""}
    letters = {name: store.send("app", {"name": name, "gpus": 1}, 0, owner) for name, owner in owners.items()}
    house.go(1)
    answers = {name: store.answer(letter) for name, letter in letters.items()}
    assert (
        answers.pop("c") == "refused: user: expected at most 2 apps of a user that have not ended (got 'bob')"
    )
    assert set(answers.values()) == {"accepted"}


def test_what_is_refused_steers_no_terminal(house: House) -> None:
    """An operator's events once held a line of its submitter's own, and escapes."""
    house.submit("\x1b]0;owned\x07\nv0 finished", team="\x1b[2J", gpus=9)
    house.go(1)
    [event] = house.rows("SELECT name, team, reason FROM events WHERE kind = 'refused'")
    assert event["name"] == " ]0;owned  v0 finished"
    assert all(text.isprintable() for text in event.values())
    [row] = house.rows("SELECT answer FROM inbox")
    assert row["answer"].isprintable()


def test_jobs_of_a_user_are_bounded_too(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apps of 10,000 jobs each once took the arbiter's memory, and its turns."""
    monkeypatch.setattr("astrarium.cluster.live.arbiter.MOST_OPEN_JOBS", 2)
    monkeypatch.setattr(house.office._hourly, "_most", 3)
    store = Store(house.home)

    def sent(name: str, owner: str, kind: str = "app") -> str | None:
        letter = store.send(kind, {"name": name, "gpus": 1, "app": name}, 0, owner)
        house.go(1)
        return store.answer(letter)

    assert [sent(name, "bob") for name in ("a", "b")] == ["accepted", "accepted"]
    told = "refused: user: expected at most 2 jobs of all apps of a user that have not ended (got 'bob')"
    assert sent("c", "bob") == told
    assert sent("d", "carol") == "accepted"
    for name in ("a", "b"):
        sent(name, "bob", "withdraw")
    house.go(5)
    assert sent("e", "bob") == "accepted"
    assert "at most 3 jobs of a user in an hour" in str(sent("f", "bob"))
    assert [sent(name, "") for name in ("g", "h", "i", "j")] == ["accepted"] * 4
