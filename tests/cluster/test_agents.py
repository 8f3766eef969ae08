"""Agents of Themis: what rho would be with the GPUs that an app is offered."""

from __future__ import annotations

import random

import pytest

from astrarium.cluster.agents.agent import AppAgent
from astrarium.cluster.agents.layouts import MachineGpus, gpu_layout, spreads
from astrarium.cluster.agents.remaining_work import RemainingJob, in_turns, sizes
from astrarium.cluster.agents.self_report import HONEST, SelfReport, erring, lying
from astrarium.cluster.arrange import arrangements
from astrarium.cluster.auction.bids import Bid
from astrarium.cluster.auction.goods import free_machines
from astrarium.cluster.contract import App, AppArrived, Grant, Job, JobFinished, MachineJoined, Run, single
from astrarium.cluster.demand import GpuDemand, spare, usable
from astrarium.cluster.fairness import Definition, Ideal
from astrarium.cluster.machines import Machine, Spread
from astrarium.cluster.slowdowns import Slowdowns
from astrarium.cluster.state import ClusterState, Contention
from astrarium.core.quantities import SECOND

ITERATION_TIMES = (80, 100, 100, 120)
FLAT = dict.fromkeys(Spread, 1.0)


def cluster(*gpus: int, racks: int = 1, guess: dict[Spread, float] | None = None) -> ClusterState:
    state = ClusterState(Slowdowns(guess=guess) if guess else None)
    for number, size in enumerate(gpus):
        state.apply(0, MachineJoined(Machine(number, size, number % racks)))
    return state


def with_apps(state: ClusterState, *apps: App) -> ClusterState:
    for app in apps:
        state.apply(0, AppArrived(app))
    return state


def bid_of(state: ClusterState, app: int = 0, now: int = 0, definition: Definition = "equation-1",
           report: SelfReport = HONEST) -> Bid:  # fmt: skip
    row = state.apps[app]
    return AppAgent(row.app, definition, report).bid(now, row, state, free_machines(state.floor, state.free))


def halving_of_the_paper() -> App:
    """Section 4.3.3: 4, 2 and 1 jobs of 8, 16 and 36 iterations, on up to 8 GPUs each."""

    def job(number: int, seconds: int, iterations: int) -> Job:
        return Job(number, seconds * iterations * SECOND, 1, 8, iterations=iterations)

    first = tuple(job(number, seconds, 8) for number, seconds in enumerate(ITERATION_TIMES))
    later = ((job(4, 100, 16), job(5, 100, 16)), (job(6, 100, 36),))
    return App(0, "halving", (first, *later), kind="halving")


def rhos(bid: Bid) -> dict[int, float]:
    return {option.gpus: option.rho for option in bid.options}


def test_the_example_of_section_4_3_3() -> None:
    """The paper rounds to 4, 2, 1, 0.5 and 0.34."""
    others = [single(number, "other", SECOND) for number in (1, 2, 3)]
    bid = rhos(bid_of(with_apps(cluster(16, guess=FLAT), halving_of_the_paper(), *others)))
    expected = {1: 4.0, 2: 2.0, 4: 1.064, 8: 0.532, 16: 0.356}
    assert {count: bid[count] for count in expected} == pytest.approx(expected)


def test_the_median_job_is_found_anew_in_every_phase() -> None:
    """Where the jobs of 120 and 100 seconds go on, the last phase is taken to have one of 120."""
    jobs = [Job(n, seconds * 8 * SECOND, 1, 8, iterations=8) for n, seconds in enumerate(ITERATION_TIMES)]
    second = (Job(4, 120 * 16 * SECOND, 1, 8, iterations=16), Job(5, 100 * 16 * SECOND, 1, 8, iterations=16))
    last = (Job(6, 100 * 36 * SECOND, 1, 8, iterations=36),)
    app = App(0, "halving", (tuple(jobs), second, last), kind="halving")
    state = with_apps(cluster(4, guess=FLAT), app)
    state.commit(0, Grant(0, (0, 1, 2, 3), 10**15))
    for number in range(4):
        state.commit(0, Run(0, number, (number,)))
    for number in range(4):
        state.apply(1, JobFinished(0, number, 1))
    row = state.apps[0]
    left = (
        AppAgent(app, "equation-1").rho(1, row, state) * Ideal(app, "equation-1")(4, Contention(1.0, 1.0)) - 1
    )
    assert row.phase == 1
    assert left == pytest.approx((120 * 16 / 2 + 120 * 36 / 4) * SECOND)


def test_table_2() -> None:
    """One GPU of two halves the finish time, whichever it is; nothing leaves rho as it was."""
    job = App(0, "a", ((Job(0, 200 * SECOND, 1, 2),),))
    bid = bid_of(with_apps(cluster(2), job, *(single(number, "b", SECOND) for number in (1, 2, 3))))
    assert rhos(bid) == pytest.approx({1: 200 / 400, 2: 100 / 400})
    assert bid.rho_old == pytest.approx(10 * 200 / 400)


def test_a_single_job_as_in_equation_1() -> None:
    """4 GPUs on two machines of different racks: 1.3 times as slow, after 50 seconds of waiting."""
    state = with_apps(cluster(2, 2, racks=2), single(0, "a", 100 * SECOND, 4), single(1, "b", SECOND))
    bid = bid_of(state, now=50 * SECOND)
    assert rhos(bid) == pytest.approx({4: (50 + 130) / (100 * 2)})


def test_what_an_app_has_counts() -> None:
    app = App(0, "a", ((Job(0, 80 * SECOND, 1, 4),),))
    state = with_apps(cluster(4, 4, guess=FLAT), app)
    state.commit(0, Grant(0, (0, 1), 10**15))
    bid = bid_of(state)
    assert bid.rho_old == pytest.approx(40 / 20)
    assert rhos(bid) == pytest.approx({1: (80 / 3) / 20, 2: 20 / 20})


def test_gpus_beside_those_it_has_are_worth_more() -> None:
    app = App(0, "a", ((Job(0, 80 * SECOND, 1, 4, "vgg"),),))
    state = with_apps(cluster(4, 4), app)
    state.commit(0, Grant(0, (0, 1), 10**15))
    of = {option.pieces: option.rho for option in bid_of(state).options if option.gpus == 2}
    named = [rho for pieces, rho in of.items() if pieces[0].machine == 0]
    anywhere = [rho for pieces, rho in of.items() if pieces[0].machine is None]
    assert named == [pytest.approx(1.0)]
    assert anywhere == [pytest.approx(1.1)]


def test_nothing_is_bid_that_is_no_better_than_what_is_easier_to_have() -> None:
    state = with_apps(cluster(8, 4, 4, racks=2), single(0, "a", 100 * SECOND, 8, "vgg"))
    options = bid_of(state).options
    assert [option.rho for option in options] == sorted((option.rho for option in options), reverse=True)
    assert min(options, key=lambda option: option.rho).pieces[0].gpus == 8
    indifferent = Slowdowns(guess=FLAT)
    state.slowdowns = indifferent
    assert [len(option.pieces) for option in bid_of(state).options] == [8]


def some_jobs(chance: random.Random) -> tuple[Job, ...]:
    return tuple(
        Job(number, chance.randrange(1, 99) * SECOND, 1, chance.randint(1, 9))
        for number in range(chance.randint(1, 6))
    )


@pytest.mark.parametrize("definition", ["share", "equation-1", "demand"])
def test_a_report_of_more_work_makes_the_ideal_as_much_longer(definition: Definition) -> None:
    chance = random.Random(4)
    for _ in range(50):
        phases = tuple(some_jobs(chance) for _ in range(chance.randint(1, 3)))
        app = App(0, "a", phases)
        size = chance.randint(1, 64)
        crowd = Contention(chance.uniform(1, 20), chance.uniform(1, 200))
        plain = Ideal(app, definition)(size, crowd)
        assert Ideal(app, definition, lambda job: 1.5 * job.work)(size, crowd) == pytest.approx(1.5 * plain)


def test_a_curve_is_taken_for_as_long_as_it_may_get() -> None:
    jobs = (Job(0, 10 * SECOND, expected=40 * SECOND), Job(1, 20 * SECOND, expected=30 * SECOND))
    bid = rhos(bid_of(with_apps(cluster(2), App(0, "a", (jobs,), kind="curve"))))
    assert bid == pytest.approx({1: 70 / 35, 2: 40 / 35})


def test_jobs_take_turns_where_gpus_are_few() -> None:
    jobs = [RemainingJob(9.0, 2, 2), RemainingJob(8.0, 1, 1), RemainingJob(3.0, 1, 1)]
    assert in_turns(jobs, 2, lambda model, size: 1.0) == 4.5 + 8.0
    assert in_turns(jobs, 3, lambda model, size: 1.0) == 8.0
    assert sizes(jobs, 3) is None
    assert sizes([RemainingJob(9.0, 1, 8), RemainingJob(8.0, 1, 2), RemainingJob(3.0, 3, 4)], 9) == [4, 2, 3]
    assert sizes([RemainingJob(9.0, 1, 4), RemainingJob(8.0, 1, 4)], 3) == [2, 1]


def test_where_jobs_lie_in_a_shape() -> None:
    whole = gpu_layout([MachineGpus(4, 0), MachineGpus(2, 0), MachineGpus(2, 1)], slot=2)
    assert spreads([4, 2, 2], whole) == [Spread.MACHINE, Spread.SLOT, Spread.SLOT]
    assert spreads([2, 6], whole) == [Spread.SLOT, Spread.RACK]
    assert spreads([8], whole) == [Spread.CLUSTER]
    assert whole.spread(5) is Spread.CLUSTER


def test_errors_are_as_large_as_they_are_said_to_be() -> None:
    assert erring(0.2, iter([0.0, 1.0])) == SelfReport(work=0.8, apart=1.2)
    assert erring(0.2, iter([0.5, 0.5])) == HONEST
    state = with_apps(cluster(2, 2), App(0, "a", ((Job(0, 100 * SECOND, 1, 4),),)))
    state.commit(0, Grant(0, (0,), 10**15))
    state.commit(0, Run(0, 0, (0,)))
    now = 50 * SECOND
    longer = AppAgent(state.apps[0].app, "equation-1", SelfReport(work=1.2)).rho(now, state.apps[0], state)
    assert longer == pytest.approx((50 + 70) / 30)


def test_a_liar_says_that_it_suffers_more_than_it_does() -> None:
    state = with_apps(cluster(4, 2, 2), single(0, "a", 100 * SECOND, 4, "vgg"))
    honest, liar = (bid_of(state, report=report) for report in (HONEST, lying(HONEST, 0.5)))
    assert [option.rho for option in liar.options] == pytest.approx([1.1 * 1.5, 1.0])
    assert [option.rho for option in honest.options] == pytest.approx([1.1, 1.0])
    dense = bid_of(state, report=lying(HONEST, 0.5, near=True))
    assert min(option.rho for option in dense.options) == pytest.approx(0.5)


def test_before_and_after_an_offer_an_app_is_seen_by_what_it_reported() -> None:
    state = with_apps(cluster(4), App(0, "a", ((Job(0, 100 * SECOND, 1, 4),),)))
    row = state.apps[0]
    goods = free_machines(state.floor, state.free)
    agent = AppAgent(row.app, report=SelfReport(work=2.0))
    assert agent.rho(0, row, state) == pytest.approx(10 * 200 / 50)
    assert agent.bid(0, row, state, goods).options == agent.bid(0, row, state, goods).options
    assert agent.rho(10 * SECOND, row, state) == pytest.approx(10 * (200 + 10) / 50)


def test_how_many_more_gpus_are_of_use() -> None:
    jobs = (Job(0, SECOND, 4, 4), Job(1, SECOND, 2, 4))
    state = with_apps(cluster(16), App(0, "a", (jobs,)))
    row = state.apps[0]
    assert [GpuDemand(row).more(offered) for offered in range(1, 10)] == [0, 2, 3, 4, 4, 6, 7, 8, 8]
    state.commit(0, Grant(0, (0, 1, 2), 10**15))
    for action in list(arrangements(state)):
        state.commit(0, action)
    demand = GpuDemand(row)
    assert (demand.usable(3), demand.more(1), demand.more(3), spare(row)) == (3, 1, 1, ())
    state.commit(0, Grant(0, (3, 4), 10**15))
    assert spare(row) == (3,)


def test_what_is_of_use_is_what_is_arranged() -> None:
    chance = random.Random(3)
    for _ in range(200):
        jobs = tuple(Job(n, SECOND, least, chance.randint(least, 5)) for n in range(chance.randint(1, 5))
                     for least in (chance.randint(1, 4),))  # fmt: skip
        state = with_apps(cluster(16), App(0, "a", (jobs,)))
        idle = state.apps[0]
        assert [GpuDemand(idle).usable(gpus) for gpus in range(17)] == [
            usable(idle, gpus) for gpus in range(17)
        ]
        for first, last in ((0, chance.randint(1, 8)), (8, chance.randint(9, 16))):
            expected = GpuDemand(state.apps[0]).usable(len(state.apps[0].leases) + last - first)
            state.commit(0, Grant(0, tuple(range(first, last)), 10**15))
            for action in arrangements(state):
                state.commit(0, action)
            assert sum(len(job.gpus) for job in state.apps[0].jobs.values()) == expected
