"""Themis as a policy: what it keeps on random workloads, and what it says of its grants."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from astrarium.cluster.agents.participants import Participants
from astrarium.cluster.agents.self_report import HONEST
from astrarium.cluster.contract import App, AppArrived, Event, Grant, Job, MachineJoined, MachineLost, single
from astrarium.cluster.demand import GpuDemand
from astrarium.cluster.machines import Machine
from astrarium.cluster.policies import Arbiter
from astrarium.cluster.policies._lease_ends import lease_end
from astrarium.cluster.policies.themis import Themis
from astrarium.cluster.policies.themis.round import Round
from astrarium.cluster.state import ClusterState, Outcome
from astrarium.cluster.world import ClusterWorld
from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND, Duration
from astrarium.core.trace import Step
from astrarium.run.simulate import simulate

LEASE = Duration(10 * SECOND)
Timed = tuple[int, Event]


def played(
    machines: list[Machine],
    apps: list[tuple[int, App]],
    later: list[Timed] | None = None,
    watch: Callable[[ClusterState, Step], None] | None = None,
    **chosen: Any,
) -> tuple[ClusterState, list[Step]]:
    state = ClusterState()
    steps = list[Step]()

    def record(step: Step) -> None:
        steps.append(step)
        if watch is not None:
            watch(state, step)

    parameters = Themis.Parameters(**{"lease": LEASE, **chosen})
    engine = Engine(state, Arbiter(Themis(parameters)), validate=True, record=record)
    events: list[Timed] = [(0, MachineJoined(machine)) for machine in machines]
    events += [(at, AppArrived(app)) for at, app in apps] + (later or [])
    simulate(engine, sorted(events, key=lambda timed: timed[0]), ClusterWorld(startup=SECOND // 10))
    return state, steps


def grants(steps: list[Step]) -> list[Grant]:
    return [action for step in steps for action in step.actions if isinstance(action, Grant)]


def some_machines(chance: random.Random) -> list[Machine]:
    return [Machine(n, chance.choice((1, 2, 4, 8)), n % 2, 2) for n in range(chance.randint(2, 6))]


def some_app(id_: int, chance: random.Random, room: int) -> App:
    kind = chance.choice(("gang", "sweep", "halving", "mixed"))
    if kind == "gang":
        return single(id_, "gang", chance.randint(1, 60) * SECOND, chance.randint(1, room), "vgg")
    if kind == "sweep":
        jobs = tuple(Job(n, chance.randint(1, 40) * SECOND) for n in range(chance.randint(1, 12)))
        return App(id_, "sweep", (jobs,), kind="curve")
    if kind == "mixed":
        sizes = [chance.randint(1, min(4, room)) for _ in range(chance.randint(1, 4))]
        jobs = tuple(Job(n, 9 * size * SECOND, size, size + n % 3) for n, size in enumerate(sizes))
        return App(id_, "mixed", (jobs,))
    phases = tuple(
        tuple(Job(n, (8 << phase) * SECOND, 1, 1 << phase, iterations=8 << phase) for n in range(4 >> phase))
        for phase in range(3)
    )
    return App(id_, "halving", phases, kind="halving")


def some_apps(chance: random.Random, room: int) -> list[tuple[int, App]]:
    return [
        (chance.randint(0, 60) * SECOND, some_app(number, chance, room))
        for number in range(chance.randint(2, 14))
    ]


def nobody_could_use_more(state: ClusterState, step: Step) -> None:
    for row in state.apps.values():
        assert GpuDemand(row).more(len(state.free)) == 0, (
            f"at {step.now}: {row.app.name} could use some of {state.free}"
        )


RARE: list[dict[str, Any]] = [{"f": 0.0}, {"f": 1.0, "grid": 1}, {"leftovers": "worst"}]


@pytest.mark.parametrize(
    "chosen", [{}, {"grid": 0}, *(pytest.param(case, marks=pytest.mark.thorough) for case in RARE)], ids=str
)
def test_on_random_workloads_nothing_is_shared_wasted_or_starved(chosen: dict[str, Any]) -> None:
    """Leases are checked by the books at every step; gangs by the books at every run."""
    for seed in range(8):
        chance = random.Random(seed)
        machines = some_machines(chance)
        apps = some_apps(chance, sum(machine.gpus for machine in machines))
        state, steps = played(machines, apps, watch=nobody_could_use_more, **chosen)
        assert {row.outcome for row in state.ledger.rows.values()} == {Outcome.FINISHED}
        assert played(machines, apps, **chosen)[1] == steps  # the same again


def test_a_machine_that_dies_leaves_the_others_at_work() -> None:
    apps = [(0, App(number, "sweep", (tuple(Job(n, 20 * SECOND) for n in range(6)),))) for number in range(4)]
    machines = [Machine(number, 4) for number in range(3)]
    state, _ = played(machines, apps, later=[(13 * SECOND, MachineLost(1))], watch=nobody_could_use_more)
    assert {row.outcome for row in state.ledger.rows.values()} == {Outcome.FINISHED}
    assert state.floor.size == 8


def test_a_large_gang_is_served_though_small_ones_keep_coming() -> None:
    """At no time are all GPUs free by themselves."""
    small = [(SECOND * n, single(n, "small", 12 * SECOND, 1)) for n in range(100)]
    gang = [(20 * SECOND + 1, single(100, "gang", 5 * SECOND, 8))]
    state, steps = played([Machine(0, 8)], small + gang, grid=0, patience=3)
    row = state.ledger.rows[100]
    assert row.started - row.arrived <= 6 * LEASE
    assert row.ended < max(other.ended for other in state.ledger.rows.values())
    assert next(grant.why for grant in grants(steps) if grant.app == 100).startswith("it had nothing for 3")


def test_a_grant_says_what_decided() -> None:
    apps = [(0, App(number, "a", ((Job(0, (9 - number) * SECOND * 60, 1, 8),),))) for number in range(5)]
    _, steps = played([Machine(0, 8)], apps)
    first = {grant.app: grant.why for grant in grants(steps[:1])}
    assert first[0] == "its rho is 16.00, the worst of 5; the auction gave it 8 of 8 GPUs"
    _, steps = played([Machine(0, 8)], apps, f=0.5)
    first = {grant.app: grant.why for grant in grants(steps[:1])}
    assert first[1].startswith(
        "its rho is 16.00, number 2 from the worst of 5; the auction gave it 3 of 8 GPUs"
    )
    assert first[1].endswith("as payment")
    assert any("chance gave it" in why for why in first.values())


def test_the_worst_bid_and_at_least_one_does() -> None:
    apps = [(0, App(number, "a", ((Job(0, 60 * SECOND, 1, 8),),))) for number in range(10)]

    def auctioned(f: float) -> set[int]:
        _, steps = played([Machine(0, 8)], apps, f=f)
        return {grant.app for grant in grants(steps[:1]) if "auction gave" in grant.why}

    assert [len(auctioned(f)) for f in (1.0, 0.9, 0.8, 0.5)] == [1, 1, 2, 5]


def test_with_f_0_every_app_bids_however_many_there_are() -> None:
    apps = [(0, single(number, "a", 60 * SECOND)) for number in range(40)]
    _, steps = played([Machine(number, 8) for number in range(4)], apps, f=0.0)
    reasons = [grant.why for grant in grants(steps[:1])]
    assert sum("of 40; the auction gave" in why for why in reasons) == 32


def test_payments_are_rounded_by_chance_so_that_on_average_all_that_is_due_is_kept() -> None:
    """Six alike hold one GPU each and bid for the other six: rounded down, none would keep what it won."""
    chances = [(step + 0.5) / 20 for step in range(20)]
    kept = 0
    due = 0.0
    for chance in chances:
        state = ClusterState()
        state.apply(0, MachineJoined(Machine(0, 12)))
        for number in range(6):
            state.apply(0, AppArrived(App(number, "a", ((Job(0, 600 * SECOND, 1, 8),),))))
            state.commit(0, Grant(number, (number,), 9))
        wanting = Participants("share", lambda app: HONEST).wanting(0, state)
        one = Round(0, state, wanting, Themis.Parameters(f=0.0), range(6), iter([chance] * 6))
        for grant in one.grants():
            state.commit(0, grant)
            kept += len(grant.gpus) if "auction" in grant.why and "left" not in grant.why else 0
        assert one.outcome is not None
        due += sum(share.fraction * len(share.won) for share in one.outcome.shares)
    assert 0 < due < 6 * len(chances)
    assert kept == pytest.approx(due, abs=6)


def test_what_is_left_over_goes_by_chance_or_to_the_worst_first() -> None:
    """Of apps alike, who came first counts as worse: two bid, and two GPUs are left over."""
    apps = [(0, App(number, "a", ((Job(0, 60 * SECOND, 1, 8),),))) for number in range(10)]

    def served(**chosen: Any) -> dict[str, list[int]]:
        _, steps = played([Machine(0, 4)], apps, **chosen)
        wins: dict[str, list[int]] = {"bid": [], "left": []}
        for grant in grants(steps[:1]):
            wins["left" if "left over" in grant.why else "bid"].append(grant.app)
        return wins

    assert served(leftovers="worst") == {"bid": [0, 1], "left": [2, 3]}
    by_chance = [served(seed=seed) for seed in range(4)]
    assert all(round_["bid"] == [0, 1] for round_ in by_chance)
    assert len({tuple(round_["left"]) for round_ in by_chance}) > 1


def test_with_enough_for_all_there_is_no_auction() -> None:
    apps = [(0, single(number, "a", 30 * SECOND, 2)) for number in range(3)]
    state, steps = played([Machine(0, 4), Machine(1, 4)], apps)
    assert {grant.why for grant in grants(steps)} == {"there were enough for all who asked"}
    assert {row.ended for row in state.ledger.rows.values()} == {30 * SECOND + SECOND // 10}  # never stopped


def test_with_enough_gpus_places_go_to_those_whom_they_help() -> None:
    """Instance 2 of Figure 5, and each would have had enough GPUs anywhere."""
    apps = [single(0, "a", 600 * SECOND, 4, "inception"), single(1, "b", 600 * SECOND, 4, "vgg")]
    state = placed(apps, Themis.Parameters())
    assert sorted(state.apps[1].leases) == [0, 1, 2, 3]
    assert len(state.apps[0].leases) == 4


def placed(apps: list[App], parameters: Any) -> ClusterState:
    """One machine of 4 and two of 2; inception does not care where it runs."""
    state = ClusterState()
    state.slowdowns.known["inception", ""] = dict.fromkeys(state.slowdowns.guess, 1.0)
    engine = Engine(state, Arbiter(Themis(parameters)), validate=True)
    machines = [MachineJoined(Machine(number, size)) for number, size in enumerate((4, 2, 2))]
    engine.step(0, [*machines, *(AppArrived(app) for app in apps)])
    return state


def test_placement_goes_to_those_whom_it_helps() -> None:
    """Instance 2 of Figure 5, with a third app, so that GPUs are not enough."""
    apps = [single(0, "a", 600 * SECOND, 4, "inception"), single(1, "b", 600 * SECOND, 4, "vgg"),
            single(2, "c", 600 * SECOND, 4, "inception")]  # fmt: skip
    state = placed(apps, Themis.Parameters(f=0.0))
    assert sorted(state.apps[1].leases) == [0, 1, 2, 3]
    assert len(state.holder) == 8


def test_errors_and_lies_are_knobs_and_chance_comes_from_the_seed() -> None:
    machines = [Machine(0, 4), Machine(1, 2), Machine(2, 2)]
    apps = [(0, App(number, "a", ((Job(0, 90 * SECOND, 2, 4, "vgg"),),))) for number in range(6)]
    wrong = [played(machines, apps, f=0.0, error=0.2, seed=seed)[1] for seed in (1, 1, 2)]
    assert wrong[0] == wrong[1] != wrong[2]
    honest, liar = (played(machines, apps, f=1.0, lies=lies, lie_near=True)[1] for lies in ({}, {0: 0.5}))
    assert grants(honest[:1])[0].why.startswith("its rho is 6.67, the worst of 6")
    assert grants(liar[:1])[0].app == 1  # it claims to fare better than it does, and is not asked first
    for near in (True, False):
        state, _ = played(machines, apps, error=0.2, lies={1: 0.9}, lie_near=near)
        assert {row.outcome for row in state.ledger.rows.values()} == {Outcome.FINISHED}


def test_leases_end_on_the_grid() -> None:
    assert [lease_end(now, 100, 1) for now in (0, 49, 51, 99)] == [100, 100, 200, 200]
    assert [lease_end(now, 100, 4) for now in (0, 10, 13, 99)] == [100, 100, 125, 200]
    assert lease_end(17, 100, 0) == 117
    with pytest.raises(InputError, match="lease"):
        Themis.Parameters(lease=Duration(0))
