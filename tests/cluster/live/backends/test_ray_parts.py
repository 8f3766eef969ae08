"""Agents on Ray and what the arbiter knows of them, without a Ray."""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from astrarium.cluster.live.backend import (
    Ending,
    Fenced,
    JobCommand,
    MachineStatus,
    RunKey,
    RunStatus,
    Snapshot,
)
from astrarium.cluster.live.backends.ray import RayAgent, RayAgentHandle, RayBackend
from astrarium.cluster.live.machine.parts import PartOrder
from tests.support.cluster.backend import order, words

pytest_plugins = ("tests.support.cluster.fixtures",)
NODE = {"NodeID": "n", "NodeManagerAddress": "127.0.0.1", "Resources": {"GPU": 2.0, "rack-3": 1.0}}


HERE = MachineStatus(2)


class RayError(Exception):
    """As Ray raises an error of an actor: it is both."""


class FencedThere(RayError, Fenced):
    cause = Fenced("arbiter 1 was superseded by arbiter 2")


class FakeRay:
    """Its actor answers with what it is given."""

    class exceptions:  # noqa: N801 (as Ray calls it)
        RayError = RayError

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.ended = list[str]()
        self.look = self

    def remote(self, *_: object) -> str:
        return "asked"

    def get(self, _: object) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def shutdown(self) -> None:
        self.ended.append("shutdown")


def reach(ray: FakeRay) -> RayAgentHandle:
    return RayAgentHandle(ray, ray, NODE, 1)


def test_orders_of_an_arbiter_that_was_superseded_are_refused(home: Path, script: Path) -> None:
    agent = RayAgent(str(home), "left", "127.0.0.1")
    part = PartOrder(order(1, JobCommand(words(script))), 0)
    agent.look(2, HERE)
    for late in (lambda: agent.look(1, HERE), lambda: agent.order(1, "start", part)):
        with pytest.raises(Fenced, match="arbiter 1 was superseded by arbiter 2"):
            late()
    assert agent.look(2, HERE)[0] == {}


def test_ports_of_gangs_are_not_the_same(home: Path) -> None:
    ports = RayAgent(str(home), "left", "127.0.0.1").look(1, HERE)[1]
    assert len(set(ports)) == len(ports) > 1


def test_gangs_that_begin_at_once_have_ports_of_their_own() -> None:
    one = reach(FakeRay(({}, [7, 8, 9], HERE)))
    one.hear()
    assert [one.port() for _ in range(4)] == [9, 8, 7, 7]


def test_a_machine_whose_agent_cannot_look_is_of_no_use() -> None:
    """Its folder may be gone: that is no reason for the arbiter to end."""
    one = reach(FakeRay(RayError("stale file handle")))
    one.hear()
    assert one.failed
    assert one.machine.rack == 3


def test_an_arbiter_that_was_superseded_hears_it() -> None:
    with pytest.raises(Fenced, match="arbiter 1 was superseded by arbiter 2"):
        reach(FakeRay(FencedThere())).hear()


@pytest.mark.parametrize(
    ("ended", "expected"), [("", ["shutdown"]), ("finished", ["shutdown"]), (None, ["dismiss", "shutdown"])]
)
def test_agents_stay_until_all_has_been_told(
    monkeypatch: pytest.MonkeyPatch, ended: Ending | None, expected: list[str]
) -> None:
    """After a drain, the next arbiter must learn who has finished meanwhile."""
    one = RayBackend.__new__(RayBackend)
    ray = FakeRay()
    runs = {} if ended is None else {RunKey(0, 0, 1): RunStatus((0,), ended)}
    monkeypatch.setattr(one, "_ray", ray, raising=False)
    monkeypatch.setattr(one, "look", lambda: Snapshot({}, runs))
    monkeypatch.setattr(one, "dismiss", lambda: ray.ended.append("dismiss"))
    one.close()
    assert ray.ended == expected


def test_whoever_is_agent_next_respects_the_locks_of_the_last(home: Path, script: Path) -> None:
    """On the same machine it has another name; GPUs are the same."""
    task = JobCommand(words(script))
    locks = []
    for name in ("host-1234.1", "host-1234.2"):
        taken = RayAgent(str(home), name, "127.0.0.1")._agent._locks(PartOrder(order(1, task), 0), (0,))
        locks.append([os.path.basename(path) for path in taken])
    assert locks[0] == locks[1] == ["gpu-host-1234-0", "job-0-0-0"]


def test_an_agent_whose_disk_is_slow_is_not_silent(
    home: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what it saw last, takes orders, and carries them out when the disk answers."""
    monkeypatch.setattr("astrarium.cluster.live.machine.disk_thread.SOON", 0.1)
    agent = RayAgent(str(home), "left", "127.0.0.1")
    disk = Event()
    key = RunKey(0, 0, 1)
    assert agent.look(1, MachineStatus(2))[0] == {}
    look = agent._agent.look
    monkeypatch.setattr(agent._agent, "look", lambda: look() if disk.wait(60) else {})
    assert agent.look(1, MachineStatus(2))[0] == {}
    agent.order(1, "start", PartOrder(order(1, JobCommand(words(script))), 0))
    assert agent.look(1, MachineStatus(2))[0] == {}
    assert not disk.is_set()
    disk.set()
    ends = time.monotonic() + 60
    while (
        agent.look(1, MachineStatus(2))[0].get(key) is None
        or not agent.look(1, MachineStatus(2))[0][key].ended
    ):
        assert time.monotonic() < ends
    assert agent.look(1, MachineStatus(2))[0][key].ended == "finished"


def test_an_order_that_cannot_be_carried_out_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = RayAgent(str(home), "left", "127.0.0.1")
    monkeypatch.setattr(agent._agent, "stop", lambda _: (home / "nowhere" / "stop").touch())
    agent.order(1, "stop", RunKey(0, 0, 1))
    with pytest.raises(FileNotFoundError):
        agent.look(1, HERE)
