"""Those who wait in line: found once, they are served as if all had been ranked anew at every step."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from astrarium.cluster.contract import App, AppArrived, AppWithdrawn, Job, single
from astrarium.cluster.machines import Machine, Spread
from astrarium.cluster.policies import _leased, cluster_policies
from astrarium.cluster.policies._queue import QueueEntry, RankedQueue, WaitingApps, idle, kind
from astrarium.cluster.slowdowns import Slowdowns
from astrarium.cluster.state import AppRow, ClusterState, JobRow
from astrarium.cluster.world import ClusterWorld
from astrarium.core.quantities import SECOND
from astrarium.testing.cluster import play

# With less that is free, a rank may fall: the line then has it as it is, and an early look as it was.
PLACES_CHANGE_RANKS = ("slaq", "srtf")
# (For SLAQ nobody grows: it would gain nothing in its last lease, as who does not fit, and such ties differ.)
MACHINES = [Machine(0, 4), Machine(1, 2), Machine(2, 2, rack=1)]


def row(app: int, gpus: int = 1, arrived: int = 0, model: str = "") -> AppRow:
    app_row = single(app, f"app {app}", 10 * SECOND, gpus, model)
    return AppRow(app_row, arrived, {job.id: JobRow(job) for job in app_row.phases[0]})


def crowded(rng: Random, most: int) -> list[tuple[int, Any]]:
    """More than the machines can take, of few kinds; one is of many jobs, and one is withdrawn."""
    arrivals: list[tuple[int, Any]] = []
    for number in range(14):
        at = rng.randrange(2000) * SECOND
        gpus = rng.choice([1, 1, 2, 2, 4])
        arrivals.append(
            (at, AppArrived(single(number, f"app {number}", rng.randint(100, 3000) * SECOND, gpus)))
        )
    jobs = tuple(Job(number, 900 * SECOND, 1, most) for number in range(4))
    arrivals += [(500 * SECOND, AppArrived(App(14, "many", (jobs,)))), (2500 * SECOND, AppWithdrawn(3))]
    return sorted(arrivals, key=lambda timed: timed[0])


@pytest.mark.parametrize("name", ["tiresias", "srsf", "drf", "gandiva", "optimus", "slaq", "srtf"])
@pytest.mark.parametrize("gangs", ["wait", "skip"])
def test_it_is_as_if_all_were_ranked_at_every_step(
    name: str, gangs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(seed: int) -> list[tuple[int, int]]:
        factory: Any = cluster_policies.get(name)
        parameters = factory.Parameters() if name == "drf" else factory.Parameters(gangs=gangs)
        truth = (
            Slowdowns() if name not in PLACES_CHANGE_RANKS else Slowdowns(guess=dict.fromkeys(Spread, 1.0))
        )
        startup = 0 if name == "srtf" else 5 * SECOND  # by which SRTF's bound is a little wrong
        state = ClusterState(truth, startup)
        world = ClusterWorld(truth, startup)
        played = play(
            factory(parameters), MACHINES, crowded(Random(seed), 1 if name == "slaq" else 2), world, state
        )
        return [(row.started, row.ended) for row in played.state.ledger.rows.values()]

    in_line = [ends(seed) for seed in range(6)]
    monkeypatch.setattr(_leased, "idle", lambda row: False)  # nobody gets into the line
    assert in_line == [ends(seed) for seed in range(6)]


def test_apps_are_alike_if_their_only_job_is() -> None:
    assert kind(row(1, gpus=2)) == kind(row(2, gpus=2, arrived=7))
    assert kind(row(1, gpus=2)) != kind(row(2, gpus=1))
    assert kind(row(1, model="VGG16")) != kind(row(2))


def test_who_stands_on_a_gpu_does_not_wait() -> None:
    waiting = row(1)
    assert idle(waiting)
    waiting.jobs[0].gpus = (3,)
    assert not idle(waiting)


def test_the_first_of_each_kind_is_asked_and_others_follow() -> None:
    waiting = WaitingApps()
    for rank, app in ((3.0, row(1)), (1.0, row(2)), (1.0, row(3)), (2.0, row(4, gpus=2))):
        waiting.put(rank, app)
    queue = RankedQueue(waiting, [QueueEntry(1.5, 0, 0, 9)])
    assert len(queue) == 3
    assert queue.pop()[-1] == 2
    queue.follow(2)
    queue.follow(2)  # once
    assert [queue.pop()[-1] for _ in range(len(queue))] == [3, 9, 4]


def test_who_leaves_the_line_is_not_asked() -> None:
    waiting = WaitingApps()
    waiting.put(1.0, row(1))
    waiting.put(2.0, row(2))
    waiting.drop(1)
    waiting.drop(7)  # was never in it
    assert [entry[-1] for entry in waiting.heads()] == [2]
    assert 1 not in waiting
    assert len(waiting) == 1
    waiting.drop(2)
    assert not list(waiting.heads())
