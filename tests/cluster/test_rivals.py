"""The rivals of Themis on cases whose answer can be found on paper."""

from __future__ import annotations

from typing import Any

import pytest

from astrarium.cluster.contract import (
    App,
    AppArrived,
    Grant,
    Job,
    JobFinished,
    LeaseExpired,
    MachineJoined,
    Run,
    Stop,
    single,
)
from astrarium.cluster.machines import Machine, Spread
from astrarium.cluster.policies import Allocator, cluster_policies
from astrarium.cluster.slowdowns import Slowdowns
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.cluster.world import ClusterWorld
from astrarium.core.errors import InputError
from astrarium.core.quantities import FOREVER, SECOND
from astrarium.testing.cluster import Played, play

ONE = [Machine(0, 1)]
TWO = [Machine(0, 2)]
FOUR = [Machine(0, 4)]
LEASED = ["gandiva", "optimus", "slaq", "srsf", "srtf", "tiresias"]


def policy(name: str, **parameters: Any) -> Allocator:
    factory: Any = cluster_policies.get(name)
    return factory(factory.Parameters(**parameters))  # type: ignore[no-any-return]


def run(allocator: Allocator, machines: list[Machine], *apps: tuple[float, App],
        world: ClusterWorld | None = None, state: ClusterState | None = None) -> Played:  # fmt: skip
    later = [(round(at * SECOND), AppArrived(app)) for at, app in apps]
    return play(allocator, machines, later, world or ClusterWorld(), state)


def ends(played: Played) -> dict[str, float]:
    return {row.app.name: row.ended / SECOND for row in played.state.ledger.rows.values()}


def first_grants(played: Played) -> list[tuple[str, int]]:
    """Of the first step in which there are any: to whom, how many."""
    rows = played.state.ledger.rows
    grants = [[action for action in step.actions if isinstance(action, Grant)] for step in played.steps]
    return [(rows[grant.app].app.name, len(grant.gpus)) for grant in next(filter(None, grants))]


def many(id_: int, name: str, count: int, seconds: float) -> App:
    return App(id_, name, (tuple(Job(n, round(seconds * SECOND)) for n in range(count)),))


@pytest.mark.parametrize("name", LEASED)
def test_a_lease_is_renewed_where_nobody_else_wants_the_gpu(name: str) -> None:
    played = run(policy(name, lease=10 * SECOND), ONE, (0, single(0, "a", 35 * SECOND)))
    assert ends(played) == {"a": 35}
    grants = [action.until for action in played.actions if isinstance(action, Grant)]
    assert grants == [seconds * SECOND for seconds in (10, 20, 30, 40)]
    assert not any(isinstance(action, Stop) for action in played.actions)


@pytest.mark.parametrize("name", LEASED)
def test_a_lease_must_last(name: str) -> None:
    with pytest.raises(InputError, match="lease"):
        policy(name, lease=0)


def test_tiresias_takes_turns_by_gpu_time() -> None:
    """b has had nothing when the first lease ends; then they take turns of 10 s."""
    a = single(0, "a", 30 * SECOND)
    b = single(1, "b", 20 * SECOND)
    assert ends(run(policy("tiresias", lease=10 * SECOND), ONE, (0, a), (1, b))) == {"b": 40, "a": 50}


def test_tiresias_counts_all_gpus_of_an_app() -> None:
    """After 10 s the two jobs of `wide` have had 20 GPU seconds, the one of `thin` 10."""
    wide = many(0, "wide", 2, 30)
    thin = many(1, "thin", 1, 30)
    late = many(2, "late", 2, 10)
    played = run(policy("tiresias", lease=10 * SECOND), [Machine(0, 3)], (0, wide), (0, thin), (10, late))
    at_10 = next(step for step in played.steps if step.now == 10 * SECOND)
    assert [(a.app, len(a.gpus)) for a in at_10.actions if isinstance(a, Grant)] == [(2, 2), (1, 1)]


def test_gpus_wait_for_the_gang_of_the_first_in_line_or_not() -> None:
    """The gang has had nothing, so that the GPU that is free at 10 s waits until the other is at 15 s."""
    one = many(0, "one", 1, 100)
    two = many(1, "two", 1, 100)
    gang = single(2, "gang", 10 * SECOND, 2)
    apps = (0, one), (5, two), (6, gang)
    waits = run(policy("tiresias", lease=10 * SECOND), TWO, *apps)
    assert ends(waits)["gang"] == 25
    skips = run(policy("tiresias", lease=10 * SECOND, gangs="skip"), TWO, *apps)
    assert ends(skips)["gang"] > 100


def test_srsf_goes_by_gpu_time_and_srtf_by_time() -> None:
    """Four jobs of 10 s are done in 10 s on 4 GPUs, but need 40 GPU seconds; the other needs 30 in 30 s."""
    wide = many(0, "wide", 4, 10)
    long = single(1, "long", 30 * SECOND)
    assert first_grants(run(policy("srtf"), FOUR, (0, wide), (0, long)))[0] == ("wide", 4)
    assert first_grants(run(policy("srsf"), FOUR, (0, wide), (0, long))) == [("long", 1), ("wide", 3)]


def test_srtf_takes_the_short_one_at_the_end_of_the_lease() -> None:
    long = single(0, "long", 60 * SECOND)
    short = single(1, "short", 5 * SECOND)
    played = run(policy("srtf", lease=10 * SECOND), ONE, (0, long), (1, short))
    assert ends(played) == {"short": 15, "long": 65}


def test_srtf_counts_phases_to_come() -> None:
    halving = App(0, "halving", ((Job(0, 5 * SECOND),), (Job(0, 60 * SECOND),)), kind="halving")
    played = run(policy("srtf"), ONE, (0, halving), (0, single(1, "one", 20 * SECOND)))
    assert first_grants(played) == [("one", 1)]


def test_optimus_evens_out_throughput() -> None:
    """From 1 to 2 doubles, from 2 to 3 is half as much again: they get equal parts."""
    apps = [App(n, name, ((Job(0, 80 * SECOND, 1, 4),),)) for n, name in enumerate(("a", "b"))]
    assert first_grants(run(policy("optimus"), FOUR, *((0, app) for app in apps))) == [("a", 2), ("b", 2)]


def test_optimus_does_not_spread_what_does_not_gain() -> None:
    """On two machines vgg is three times as slow: the second GPU is worth less than nothing to it."""
    truth = Slowdowns({("vgg", ""): {Spread.RACK: 3.0}})
    machines = [Machine(0, 1), Machine(1, 1), Machine(2, 1)]
    vgg = App(0, "vgg", ((Job(0, 80 * SECOND, 1, 2, "vgg"),),))
    many_ = many(1, "many", 2, 80)
    state = ClusterState(Slowdowns({("vgg", ""): {Spread.RACK: 3.0}}))
    played = run(policy("optimus"), machines, (0, vgg), (0, many_), world=ClusterWorld(truth), state=state)
    assert first_grants(played) == [("vgg", 1), ("many", 2)]


def test_slaq_prefers_the_beginning_of_a_curve() -> None:
    """Losses fall fastest at first: who has half behind it waits for one that begins."""
    old = single(0, "old", 100 * SECOND)
    new = single(1, "new", 100 * SECOND)
    played = run(policy("slaq", lease=50 * SECOND), ONE, (0, old), (10, new))
    assert ends(played)["old"] == 150  # 0-50, then new until both have done 50, and old comes first
    assert ends(played)["new"] == 200


def test_gandiva_serves_who_fits_best_and_moves_to_better_places() -> None:
    """Two GPUs are free on two machines: the single job lies as well as can be, the pair does not."""
    machines = [Machine(0, 1), Machine(1, 1)]
    pair = single(0, "pair", 20 * SECOND, 2)
    alone = single(1, "alone", 10 * SECOND)
    played = run(policy("gandiva"), machines, (0, pair), (0, alone))
    assert first_grants(played)[0] == ("alone", 1)
    state = ClusterState()
    for machine in (Machine(0, 1), Machine(1, 1), Machine(2, 2)):
        state.apply(0, MachineJoined(machine))
    allocator = policy("gandiva")
    state.apply(0, AppArrived(single(7, "moved", 100 * SECOND, 2)))
    state.commit(0, Grant(7, (0, 1), 10))
    state.apps[7].jobs[0].gpus = (0, 1)
    state.apply(10, LeaseExpired(7, (0, 1), 10))
    (grant,) = list(allocator.decide(10, [LeaseExpired(7, (0, 1), 10)], state))
    assert isinstance(grant, Grant)
    assert grant.gpus == (2, 3)


@pytest.mark.parametrize("name", ["gandiva", "drf"])
def test_the_standing_puts_who_has_waited_longer_before_equals(name: str) -> None:
    """Both came with equal claims; the one that came first has just had its turn."""
    state = ClusterState()
    state.apply(0, MachineJoined(Machine(0, 1)))
    for number in range(2):
        state.apply(0, AppArrived(single(number, f"{number}", 100 * SECOND)))
    state.commit(0, Grant(0, (0,), 10))
    state.apply(10, LeaseExpired(0, (0,), 10))
    rival: Any = policy(name)
    assert [app for app, _ in rival.standing(10, state)] == [1, 0]


def test_gandiva_lets_equals_take_turns() -> None:
    """Both lie as well as can be: by arrival, the second would wait until the first has ended."""
    apps = [(0, single(number, f"{number}", 100 * SECOND)) for number in range(2)]
    played = run(policy("gandiva", lease=10 * SECOND), ONE, *apps)
    assert ends(played) == {"0": 190, "1": 200}


def test_drf_evens_out_shares_and_stops_nobody() -> None:
    early = many(0, "early", 4, 1000)
    played = run(policy("drf"), FOUR, (0, early), (1, many(1, "late", 2, 10)))
    assert ends(played) == {"early": 1000, "late": 1010}
    assert {action.until for action in played.actions if isinstance(action, Grant)} == {FOREVER}
    both = run(policy("drf"), FOUR, (0, many(0, "a", 4, 10)), (0, many(1, "b", 4, 10)))
    assert sorted(first_grants(both)) == [("a", 2), ("b", 2)]


def test_gpus_that_an_app_cannot_use_any_more_go_to_others() -> None:
    """At 10 s one of a's jobs ends long before the lease."""
    a = App(0, "a", ((Job(0, 10 * SECOND), Job(1, 100 * SECOND)),))
    for name in LEASED:
        ended = ends(run(policy(name), TWO, (0, a), (1, single(1, "b", 5 * SECOND))))
        assert ended["b"] == 15, name


def test_tiresias_2d_moves_down_by_gpu_time() -> None:
    """Two GPUs for 50 s are 100 GPU seconds: then b, which waits in the first queue, comes first."""
    a = single(0, "a", 80 * SECOND, 2)
    b = single(1, "b", 20 * SECOND, 2)
    played = run(policy("tiresias-2d", limits=(100.0,), queues=2), TWO, (0, a), (10, b))
    assert ends(played) == {"b": 70, "a": 100}


def test_tiresias_2d_is_first_come_first_served_in_a_queue_for_those_who_fit() -> None:
    a = single(0, "a", 50 * SECOND)
    wide = single(1, "wide", 10 * SECOND, 2)
    small = single(2, "small", SECOND)
    played = run(policy("tiresias-2d"), TWO, (0, a), (1, wide), (2, small))
    assert ends(played) == {"small": 3, "a": 50, "wide": 60}


def test_tiresias_2d_lets_who_has_waited_too_long_begin_again() -> None:
    """a has run for 20 s and waits since 20 s while others come: at 40 s it has waited for as long, and goes
    to the end of the first queue, before the last of them."""
    others = [(at, single(1 + at, f"at {at}", 15 * SECOND)) for at in (5, 20, 35, 50)]
    apps = [(0, single(0, "a", 40 * SECOND)), *others]
    limits: dict[str, Any] = {"limits": (20.0,), "queues": 2}
    never = ends(run(policy("tiresias-2d", **limits), ONE, *apps))
    again = ends(run(policy("tiresias-2d", promote=1.0, **limits), ONE, *apps))
    assert (never["a"], never["at 50"]) == (100, 80)
    assert (again["a"], again["at 50"]) == (85, 100)


@pytest.mark.parametrize(
    "wrong", [{"limits": (5.0, 1.0)}, {"limits": (5.0,), "queues": 3}, {"limits": (0.0,)}]
)
def test_queues_have_limits_that_rise(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"limits|queues"):
        policy("tiresias-2d", **wrong)


def test_a_job_that_was_stopped_does_not_end_by_late_news() -> None:
    state = ClusterState()
    state.apply(0, MachineJoined(Machine(0, 1)))
    state.apply(0, AppArrived(single(0, "a", 100)))
    state.commit(0, Grant(0, (0,), 50))
    state.commit(0, Run(0, 0, (0,)))
    state.commit(10, Stop(0, 0))
    state.apply(100, JobFinished(0, 0, 1))
    row: AppRow = state.apps[0]
    assert not row.jobs[0].finished
    assert row.ran == 10
