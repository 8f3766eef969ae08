"""What being apart costs, learnt from jobs whose owners guess wrong."""

from __future__ import annotations

import random

import pytest

from astrarium.cluster.contract import (
    App,
    AppArrived,
    Grant,
    Job,
    JobFinished,
    JobProgressed,
    MachineJoined,
    Revoke,
    Run,
    Stop,
)
from astrarium.cluster.live.backend import MachineStatus, Order
from astrarium.cluster.live.cluster import Options
from astrarium.cluster.live.slowdowns import ENOUGH, RelativeSlowdowns
from astrarium.cluster.machines import Machine, Spread
from astrarium.cluster.slowdowns import Slowdowns
from astrarium.cluster.state import ClusterState
from astrarium.core.quantities import FOREVER, SECOND
from tests.support.cluster.play import Play, leased

TRUTH = Slowdowns(
    {("net", ""): {Spread.SLOT: 1.0, Spread.MACHINE: 1.2, Spread.RACK: 1.6, Spread.CLUSTER: 2.5}}
)
PLACES = {Spread.SLOT: (0, 1), Spread.MACHINE: (0, 2), Spread.RACK: (0, 4), Spread.CLUSTER: (0, 8)}
HOUR = 3600 * SECOND


class Told:
    """Books of three machines in two racks, and jobs whose owners are wrong by a factor."""

    def __init__(self, wrong: float, noise: float = 0.0, startup: int = 0) -> None:
        self.slowdowns = RelativeSlowdowns()
        self.now = 0
        self.state = ClusterState(self.slowdowns)
        for machine in (Machine(0, 4, 0, 2), Machine(1, 4, 0, 2), Machine(2, 4, 1, 2)):
            self.state.apply(0, MachineJoined(machine))
        self.wrong = wrong
        self.chance = random.Random(3)
        self.noise = noise
        self.startup = startup

    def arrive(self, app: int, gpus: int = 2) -> None:
        work = round(gpus * HOUR * self.wrong)
        self.state.apply(self.now, AppArrived(App(app, f"{app}", ((Job(0, work, 2, 4, "net"),),))))

    def run(self, app: int, gpus: tuple[int, ...], reports: int, every: int = 5) -> None:
        """It advances as fast as is true; what its owner guesses scales what the books hear."""
        row = self.state.apps[app].jobs[0]
        self.state.commit(self.now, Grant(app, gpus, FOREVER))
        self.state.commit(self.now, Run(app, 0, gpus))
        floor = self.state.floor
        done = row.done
        pace = len(gpus) / TRUTH.of("net", "", floor.spread(gpus)) * self.wrong
        self.now += self.startup * SECOND
        for _ in range(reports):
            self.now += every * SECOND
            done += round(every * SECOND * pace * self.chance.uniform(1 - self.noise, 1 + self.noise))
            self.state.apply(self.now, JobProgressed(app, 0, row.run, done))
        self.state.commit(self.now, Stop(app, 0))
        self.state.commit(self.now, Revoke(app, gpus))

    @property
    def known(self) -> dict[Spread, float]:
        return self.slowdowns.known.get(("net", ""), {})


@pytest.mark.parametrize("wrong", [0.1, 1.0, 7.0])
def test_the_truth_is_found_whatever_the_owner_guesses(wrong: float) -> None:
    reports = Told(wrong, noise=0.2, startup=20)
    for app in range(5):
        reports.arrive(app)
        for gpus in PLACES.values():
            reports.run(app, gpus, 30)
    for spread in (Spread.MACHINE, Spread.RACK, Spread.CLUSTER):
        assert reports.known[spread] == pytest.approx(TRUTH.of("net", "", spread), rel=0.1)
    assert Spread.SLOT not in reports.known


def test_one_place_teaches_nothing() -> None:
    reports = Told(3.0)
    reports.arrive(0)
    reports.run(0, PLACES[Spread.RACK], 50)
    assert reports.slowdowns.known == {}


def test_few_reports_teach_nothing() -> None:
    reports = Told(1.0)
    reports.arrive(0)
    reports.run(0, PLACES[Spread.SLOT], 50)
    reports.run(0, PLACES[Spread.RACK], ENOUGH)  # the first is startup
    assert reports.slowdowns.known == {}
    reports.run(0, PLACES[Spread.RACK], ENOUGH + 1)
    assert reports.known == {Spread.RACK: pytest.approx(1.6, rel=0.01)}


def test_the_nearest_place_that_was_seen_is_what_others_are_measured_by() -> None:
    reports = Told(2.0)
    reports.arrive(0)
    reports.run(0, PLACES[Spread.RACK], 20)
    reports.run(0, PLACES[Spread.CLUSTER], 20)
    believed = Slowdowns().of("net", "", Spread.RACK)  # a guess, and nobody has seen better
    assert reports.known == {Spread.CLUSTER: pytest.approx(believed * 2.5 / 1.6, rel=0.01)}
    reports.run(0, PLACES[Spread.SLOT], 20)
    assert reports.known[Spread.CLUSTER] == pytest.approx(2.5, rel=0.01)


def test_more_gpus_are_another_thing() -> None:
    reports = Told(1.0)
    reports.arrive(0)
    reports.run(0, (0, 1), 20)
    reports.run(0, (0, 1, 4, 5), 20)
    assert reports.slowdowns.known == {}


def test_an_end_that_its_owner_did_not_expect_teaches_nothing() -> None:
    reports = Told(1.0)
    reports.arrive(0)
    reports.run(0, PLACES[Spread.SLOT], 20)
    reports.run(0, PLACES[Spread.RACK], 20)
    known = dict(reports.known)
    reports.state.commit(reports.now, Grant(0, (0, 4), FOREVER))
    reports.state.commit(reports.now, Run(0, 0, (0, 4)))
    reports.state.apply(reports.now + 1, JobFinished(0, 0, reports.state.apps[0].jobs[0].run))
    assert reports.known == known


def apart(order: Order) -> float:
    return 1.5 if len(order.parts) > 1 else 1.0


def test_a_live_cluster_learns_and_an_arbiter_that_dies_has_not_forgotten() -> None:
    """Two gangs, one with a GPU on each machine, which changes when the third app has ended."""
    apps = [App(n, f"{n}", ((Job(0, 4000 * SECOND, 2, 2, "net"),),)) for n in range(2)]
    small = App(2, "small", ((Job(0, 1, 1, 1), Job(1, 1, 1, 1)),))
    play = Play(leased(60), [*apps, small], options=Options(progress=2 * SECOND), learns=True)
    play.backend.slowdown, play.backend.machines["third"] = apart, MachineStatus(1)
    play.backend.length = {0: 900 * SECOND, 1: 900 * SECOND, 2: 150 * SECOND}
    play.go(400)
    learnt = play.live.state.slowdowns.known
    assert learnt == {("net", ""): {Spread.RACK: pytest.approx(1.5, rel=0.1)}}
    play.die_and_come_back()
    assert play.live.state.slowdowns.known == learnt
