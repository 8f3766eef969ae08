"""The books of the cluster level, and the simulated world that they follow."""

from __future__ import annotations

import pytest

from astrarium.cluster.arrange import arrangements, planned
from astrarium.cluster.contract import (
    App,
    AppArrived,
    Grant,
    Job,
    JobFinished,
    LeaseExpired,
    MachineJoined,
    MachineLost,
    Revoke,
    Run,
    Stop,
    single,
)
from astrarium.cluster.fairness import Ideal, rho
from astrarium.cluster.machines import Floor, Machine, Spread
from astrarium.cluster.policies import Arbiter, cluster_policies
from astrarium.cluster.slowdowns import Slowdowns
from astrarium.cluster.state import AppRow, ClusterState, Contention, JobRow, Outcome
from astrarium.cluster.world import ClusterWorld
from astrarium.core.engine import Engine
from astrarium.core.errors import InvalidAction
from astrarium.core.quantities import SECOND
from astrarium.run.simulate import simulate

MACHINES = [(0, MachineJoined(Machine(0, 4))), (0, MachineJoined(Machine(1, 4, rack=1)))]


def played(apps: list[tuple[int, App]], policy: str = "fifo", later: list[tuple[int, object]] | None = None,
           world: ClusterWorld | None = None) -> ClusterState:  # fmt: skip
    factory = cluster_policies.get(policy)
    state = ClusterState()
    engine = Engine(state, Arbiter(factory(factory.Parameters())), validate=True)  # type: ignore[attr-defined]
    events = [*MACHINES, *((at, AppArrived(app)) for at, app in apps), *(later or [])]
    simulate(engine, sorted(events, key=lambda timed: timed[0]), world or ClusterWorld())
    return state


def test_how_far_gpus_are_apart() -> None:
    floor = Floor()
    floor.join(Machine(7, 4, slot=2))
    floor.join(Machine(8, 2))
    floor.join(Machine(9, 2, rack=1))
    apart = [floor.spread(gpus) for gpus in ((0,), (0, 1), (1, 2), (3, 4), (0, 7))]
    assert apart == [Spread.SLOT, Spread.SLOT, Spread.MACHINE, Spread.RACK, Spread.CLUSTER]


def test_a_job_lies_well_where_it_would_be_no_faster_elsewhere() -> None:
    state = ClusterState()
    job = Job(0, SECOND, 4, 8)
    for machine in (Machine(7, 4, slot=2), Machine(8, 4), Machine(9, 4, rack=1)):
        state.apply(0, MachineJoined(machine))
    assert state.lies_well(job, (0, 1, 2, 3))
    assert not state.lies_well(job, (0, 1, 2, 4))  # a machine could hold all four
    assert state.lies_well(job, (0, 1, 2, 3, 4))  # and none all five
    assert not state.lies_well(job, (0, 1, 2, 3, 8))  # but a rack could
    state.slowdowns.known["", ""] = {Spread.CLUSTER: 1.0}
    assert not state.lies_well(job, (0, 1, 2, 3, 4))  # by what was learnt, being in two racks costs less
    state.slowdowns.known.clear()
    state.apply(0, MachineJoined(Machine(10, 4, network="fast")))
    assert not state.lies_well(job, (0, 1, 2, 3, 4))  # another network may be better


def test_a_gang_runs_whole_and_the_next_waits_for_it() -> None:
    state = played([(0, single(0, "a", 10 * SECOND, 8)), (SECOND, single(1, "b", 5 * SECOND, 2))])
    rows = state.ledger.rows
    assert rows[0].ended == 13 * SECOND  # two racks: 1.3 times as slow
    assert (rows[1].started, rows[1].ended) == (13 * SECOND, 18 * SECOND)
    assert rows[0].service == 8 * 13 * SECOND
    assert {row.outcome for row in rows.values()} == {Outcome.FINISHED}


def test_phases_follow_one_another_on_the_same_gpus() -> None:
    phases = (tuple(Job(n, 8 * SECOND) for n in range(4)), (Job(0, 8 * SECOND, 1, 4),))
    row = played([(0, App(0, "halving", phases, kind="halving"))]).ledger.rows[0]
    assert row.ended == 8 * SECOND + 2 * SECOND


def test_growth_is_shared_out_and_contention_is_counted() -> None:
    apps = [(0, App(number, f"app {number}", ((Job(0, 40 * SECOND, 1, 8),),))) for number in range(2)]
    rows = played(apps).ledger.rows
    assert rows[0].ended < rows[1].ended
    assert rows[0].contention.apps == 2.0
    assert 1.0 < rows[1].contention.apps < 2.0


def test_jobs_that_grow_lie_together() -> None:
    """Two jobs of up to two GPUs start on two machines of two: each has a machine of its own."""
    floor = Floor()
    for machine in (Machine(0, 2), Machine(1, 2)):
        floor.join(machine)
    row = AppRow(App(0, "two", ()), 0, {n: JobRow(Job(n, 10 * SECOND, 1, 2)) for n in range(2)})
    assert sorted(planned(row, range(4), floor).values()) == [(0, 1), (2, 3)]


def test_a_machine_that_dies_takes_what_was_done_since_the_checkpoint() -> None:
    world = ClusterWorld(checkpoints=4 * SECOND)
    state = played([(0, single(0, "a", 10 * SECOND, 4))], later=[(6 * SECOND, MachineLost(0))], world=world)
    assert state.ledger.rows[0].ended == 6 * SECOND + 6 * SECOND
    assert state.floor.size == 4


def test_a_lease_that_was_renewed_does_not_expire() -> None:
    state = ClusterState()
    state.apply(0, MachineJoined(Machine(0, 2)))
    state.apply(0, AppArrived(single(0, "a", 100)))
    state.commit(0, Grant(0, (0,), 50))
    state.commit(10, Grant(0, (0,), 90))
    state.apply(50, LeaseExpired(0, (0,), 50))
    assert state.apps[0].leases == {0: 90}
    state.apply(90, LeaseExpired(0, (0,), 90))
    assert (state.apps[0].leases, state.free) == ({}, {0, 1})


def test_what_cannot_be_is_refused() -> None:
    state = ClusterState()
    state.apply(0, MachineJoined(Machine(0, 4)))
    for number in range(2):
        state.apply(0, AppArrived(single(number, f"app {number}", 100, 2)))
    state.commit(0, Grant(0, (0, 1), 50))
    for action, expected in (
        (Grant(1, (1, 2), 50), "not free"),
        (Grant(1, (2,), 0), "later than now"),
        (Grant(5, (2,), 50), "no such app"),
        (Run(0, 0, (0,)), "2 to 2 GPUs"),
        (Run(0, 0, (0, 2)), "not all of them are the app's"),
        (Run(0, 9, (0, 1)), "no such job"),
    ):
        with pytest.raises(InvalidAction, match=expected):
            state.commit(0, action)


def test_slowdowns_are_learnt_from_how_jobs_run() -> None:
    truth = Slowdowns({("vgg", ""): {Spread.CLUSTER: 2.0}})
    state = played([(0, single(0, "a", 10 * SECOND, 8, "vgg"))], world=ClusterWorld(truth))
    assert state.ledger.rows[0].ended == 20 * SECOND
    assert state.slowdowns.of("vgg", "", Spread.CLUSTER) == pytest.approx(2.0)


def test_by_itself_an_app_is_as_fast_as_its_part_of_the_cluster() -> None:
    """A gang of 8 with 4 GPUs runs half of the time; 4 jobs of one GPU cannot use 8."""
    gang = single(0, "gang", 10 * SECOND, 8)
    many = App(1, "many", (tuple(Job(n, SECOND) for n in range(4)),))
    assert Ideal(gang, "share")(8, Contention(1.0, 8.0)) == 10 * SECOND
    two = Contention(apps=2.0, gpus=12.0)
    assert Ideal(gang, "share")(8, two) == 20 * SECOND
    assert Ideal(many, "share")(8, two) == SECOND
    assert Ideal(many, "equation-1")(8, two) == 2 * SECOND


def test_by_demand_all_are_slowed_down_as_much_as_the_cluster_is_too_small() -> None:
    gang = single(0, "gang", 10 * SECOND, 8)
    many = App(1, "many", (tuple(Job(n, SECOND) for n in range(4)),))
    assert Ideal(gang, "demand")(8, Contention(2.0, 12.0)) == 15 * SECOND
    assert Ideal(many, "demand")(8, Contention(2.0, 12.0)) == 1.5 * SECOND
    assert Ideal(many, "demand")(16, Contention(2.0, 12.0)) == SECOND  # at least 1
    assert rho(30 * SECOND, gang, 8, Contention(2.0, 12.0), "demand") == 2.0


def test_gpus_that_apps_could_use_are_counted_over_their_lives() -> None:
    """On 8 GPUs: 4 jobs of 8 s, then one of up to 4 GPUs that takes 2 s; beside it 4 GPUs from 4 s to 9 s."""
    phases = (tuple(Job(n, 8 * SECOND) for n in range(4)), (Job(0, 8 * SECOND, 1, 4),))
    halving = App(0, "halving", phases, kind="halving")
    gang = single(1, "gang", 5 * SECOND, 4)
    rows = played([(0, halving), (4 * SECOND, gang)]).ledger.rows
    assert rows[0].ended == 10 * SECOND
    assert rows[0].contention.gpus == pytest.approx((4 * 10 + 4 * 5) / 10)
    assert rows[1].contention.gpus == pytest.approx(8)
    short = App(0, "short", ((Job(0, 4 * SECOND), Job(1, 8 * SECOND)),))
    assert played([(0, short)]).ledger.rows[0].contention.gpus == pytest.approx((2 * 4 + 1 * 4) / 8)


def granted(app: App, gpus: tuple[int, ...], until: int = 50) -> ClusterState:
    state = ClusterState()
    state.apply(0, MachineJoined(Machine(0, 4)))
    state.apply(0, AppArrived(app))
    state.commit(0, Grant(app.id, gpus, until))
    arranged(state, 0)
    return state


def arranged(state: ClusterState, now: int) -> None:
    for action in arrangements(state):
        state.commit(now, action)
    state.validate()


def test_a_job_that_was_stopped_does_not_end_by_old_news() -> None:
    state = granted(single(0, "a", 100, 2), (0, 1))
    run = state.apps[0].jobs[0].run
    state.commit(10, Stop(0, 0))
    state.apply(20, JobFinished(0, 0, run))
    assert state.apps[0].unfinished()


def test_a_gang_that_loses_a_part_makes_room_for_a_job_that_fits() -> None:
    state = granted(App(0, "a", ((Job(0, 1000, 2, 2), Job(1, 1000)),)), (0, 1))
    jobs = state.apps[0].jobs
    assert [jobs[0].gpus, jobs[1].gpus] == [(0, 1), ()]
    state.commit(10, Revoke(0, (1,)))
    arranged(state, 10)
    assert [jobs[0].gpus, jobs[1].gpus] == [(), (0,)]
