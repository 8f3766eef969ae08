"""An arbiter's turns in virtual time: when they end, and what a wish to stop or a full disk changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from astrarium.cluster.live.arbiter_loop import ArbiterLoop
from astrarium.cluster.live.machine.keeping.pauses import SELDOM
from tests.support.cluster.full_disk import database_full, failing
from tests.support.cluster.virtual_cluster import VirtualCluster

LOOK = 0.5


class Scene:
    """A cluster whose loop sleeps by moving the clock; *meanwhile* is called with the number of the sleep."""

    def __init__(self, home: Path, meanwhile: Callable[[int], None] = lambda number: None) -> None:
        self.cluster = VirtualCluster(home)
        self.meanwhile = meanwhile
        self.sleeps: list[float] = []
        self.loop = ArbiterLoop(
            home, self.cluster.arbiter, lambda what, took: None, (), LOOK, sleep=self._sleep
        )

    def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.cluster.clock.pass_seconds(seconds)
        self.meanwhile(len(self.sleeps))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_it_ends_when_all_apps_have(scene: Scene) -> None:
    scene.cluster.submit("a")
    scene.loop.run(stay=False)
    assert scene.cluster.outcomes() == {"a": "finished"}
    assert not scene.loop.draining


def test_one_that_stays_waits_for_more_until_it_is_asked(scene: Scene) -> None:
    scene.meanwhile = lambda number: scene.loop.ask_to_drain() if number == 200 else None
    scene.loop.run(stay=True)
    assert scene.loop.draining
    assert set(scene.sleeps) == {LOOK}


def test_jobs_leave_before_it_ends(scene: Scene) -> None:
    scene.cluster.submit("a", gpus=2)
    scene.meanwhile = lambda number: scene.loop.ask_to_drain() if number == 4 else None
    scene.loop.run(stay=False)
    assert len(scene.sleeps) > 4  # a job takes a while to leave
    assert scene.cluster.arbiter.drain()
    assert scene.cluster.outcomes() == {"a": "open"}


def test_who_asks_twice_leaves_at_once(scene: Scene) -> None:
    scene.cluster.submit("a")
    scene.meanwhile = lambda number: scene.loop.ask_to_drain()
    with pytest.raises(KeyboardInterrupt):
        scene.loop.run(stay=False)
    assert len(scene.sleeps) == 2


def test_it_looks_seldom_while_the_disk_is_full(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = failing(4, database_full(), scene.cluster.arbiter.turn)
    monkeypatch.setattr(scene.cluster.arbiter, "turn", turn)
    scene.cluster.submit("a")
    scene.loop.run(stay=False)
    assert scene.sleeps[:5] == [LOOK, SELDOM, SELDOM, SELDOM, LOOK]
    assert scene.cluster.outcomes() == {"a": "finished"}


def test_who_asks_while_the_disk_is_full_leaves_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scene.cluster.arbiter, "turn", failing(4, database_full(), lambda: True))
    scene.cluster.submit("a")
    scene.meanwhile = lambda number: scene.loop.ask_to_drain() if number == 2 else None
    with pytest.raises(KeyboardInterrupt):
        scene.loop.run(stay=False)
    assert not scene.loop.draining
