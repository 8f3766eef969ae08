"""Each rule of teams, in small clusters and virtual time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.cluster.contract import App, AppArrived, Grant, MachineJoined, MachineLost, Revoke, single
from astrarium.cluster.explain import view
from astrarium.cluster.machines import Machine
from astrarium.cluster.policies import Allocator, Arbiter, cluster_policies
from astrarium.cluster.state import ClusterState, Outcome
from astrarium.cluster.teams import DAY, HOUR, Budget, Reservation, Rules, Team
from astrarium.cluster.teams.claims import Claim, divided, largest_count, next_count, usable_counts
from astrarium.cluster.teams.sharing import TeamSharing
from astrarium.cluster.teams.usage import FadingUsage
from astrarium.cluster.world import ClusterWorld
from astrarium.core.choice import Choice, chosen
from astrarium.core.engine import Engine
from astrarium.core.quantities import Duration, Time
from astrarium.run.simulate import simulate
from astrarium.testing.cluster import Played, play
from astrarium.testing.conformance import BOUNDED
from tests.support.cluster.shared_cluster import MINUTE, app, follow

LEASED = ("tiresias", "fifo", "astrarium", "themis", "max-min", "tiresias-2d")


def policy(name: str = "tiresias", **parameters: Any) -> Allocator:
    allocator: Allocator = chosen(cluster_policies, Choice(name, parameters))
    return allocator


def shared(
    rules: Rules, gpus: int, apps: Iterable[tuple[float, App]], name: str = "tiresias", **parameters: Any
) -> Played:
    """Play apps that come after so many minutes on one machine."""
    arrivals = [(round(at * MINUTE), AppArrived(app)) for at, app in apps]
    return play(TeamSharing(policy(name, **parameters), rules), [Machine(0, gpus)], arrivals, ClusterWorld())


def held(played: Played, at: float) -> dict[str, int]:
    """Return how many GPUs each app holds after so many minutes, from what was decided until then."""
    state = ClusterState()
    for step in played.steps:
        if step.now <= at * MINUTE:
            follow(state, step)
    return {row.app.name: len(row.leases) for row in state.apps.values() if row.leases}


def teams_held(played: Played, at: float) -> dict[str, int]:
    gpus: dict[str, int] = {}
    for name, count in held(played, at).items():
        team = name.rpartition("-")[0]
        gpus[team] = gpus.get(team, 0) + count
    return gpus


def reasons(played: Played, kind: type[Grant] | type[Revoke], app: int) -> list[str]:
    return [
        action.why
        for step in played.steps
        for action in step.actions
        if isinstance(action, kind) and action.app == app
    ]


@BOUNDED
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), max_size=4), st.integers(0, 12))
def test_usable_counts_are_all_sums_of_jobs(sizes: list[tuple[int, int]], most: int) -> None:
    state = ClusterState()
    sums = {0}
    for number, (least, more) in enumerate(sizes):
        job = msgspec.structs.replace(single(0, "", 1, least).phases[0][0], most=least + more)
        state.apply(0, AppArrived(App(number, str(number), ((job,),))))
        sums |= {a + b for a in sums for b in range(least, least + more + 1)}
    counts = usable_counts(state.apps.values(), most)
    assert {n for n in range(most + 2) if counts >> n & 1} == {n for n in sums if n <= most}
    assert largest_count(counts, most) == max(n for n in sums if n <= most)
    assert next_count(counts, 0) == min((n for n in sums if 0 < n <= most), default=0)


@BOUNDED
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([0.5, 1.0, 3.0]), st.booleans(), st.integers(0, 16)),
        min_size=1, max_size=4,
    ),
    st.integers(1, 20),
)  # fmt: skip
def test_what_is_there_is_divided_by_right_and_then_by_weight(
    drawn: list[tuple[int, float, bool, int]], size: int
) -> None:
    claims = [
        Claim(f"team {n}", Team(guaranteed, weight, borrow), (1 << wants + 1) - 1)
        for n, (guaranteed, weight, borrow, wants) in enumerate(drawn)
    ]
    shares = divided(claims, size, MINUTE)
    wants = {claim.team: claim.wants(size) for claim in claims}
    assert all(shares[team] <= wants[team] for team in shares)
    assert sum(shares.values()) == min(size, sum(wants.values()))  # nothing is left idle that is wanted
    if sum(claim.entitled for claim in claims) <= size:
        assert all(shares[claim.team] >= min(wants[claim.team], claim.entitled) for claim in claims)
    for claim in claims:  # nobody who could have more has borrowed less, for its weight, than others by a GPU
        if shares[claim.team] < wants[claim.team] and sum(other.entitled for other in claims) <= size:
            lent = max(0, shares[claim.team] - claim.entitled)
            for other in claims:
                most = max(0, shares[other.team] - other.entitled - 1)
                assert most / other.rule.weight <= (lent / claim.rule.weight) + 1e-9


def test_a_team_has_what_it_is_guaranteed_and_others_borrow_the_rest() -> None:
    rules = Rules({"red": Team(2), "blue": Team(1)})
    played = shared(rules, 4, [(0, app(0, "red", 60, jobs=8)), (13, app(1, "blue", 30))])
    assert teams_held(played, 5) == {"red": 4}
    assert teams_held(played, 13) == {"red": 3, "blue": 1}
    assert reasons(played, Revoke, 0)[0] == "lent by blue, whose app blue-1 waits"
    assert reasons(played, Grant, 0)[0].endswith("; lent to red beyond its 2")
    assert teams_held(played, 45) == {"red": 4}  # blue has ended


def test_only_as_many_are_taken_back_as_are_needed_of_the_newest_first() -> None:
    rules = Rules({"red": Team(0), "blue": Team(4)})
    apps = [(0, app(0, "red", 600, 2)), (1, app(1, "red", 600, 2)), (20, app(2, "blue", 10, 2))]
    played = shared(rules, 4, apps)
    assert held(played, 25) == {"red-0": 2, "blue-2": 2}
    assert held(played, 31) == {"red-0": 2, "red-1": 2}


def test_what_is_left_is_lent_by_weight() -> None:
    rules = Rules({"red": Team(weight=2.0), "blue": Team()})
    played = shared(rules, 6, [(0, app(0, "red", 200, jobs=20)), (0, app(1, "blue", 200, jobs=20))])
    assert teams_held(played, 1) == teams_held(played, 61) == {"red": 4, "blue": 2}


def test_who_may_not_borrow_has_its_own_and_no_more() -> None:
    rules = Rules({"red": Team(2, borrow=False), "blue": Team(1)})
    played = shared(rules, 4, [(0, app(0, "red", 60, jobs=4))])
    assert max(teams_held(played, at)["red"] for at in range(0, 119, 10)) == 2


def test_who_has_borrowed_less_comes_first_and_is_even_in_the_end() -> None:
    rules = Rules({"red": Team(), "blue": Team()}, turn=10 * MINUTE)
    played = shared(rules, 4, [(0, app(0, "red", 300, jobs=40)), (57, app(1, "blue", 300, jobs=40))])
    assert teams_held(played, 56) == {"red": 4}
    assert teams_held(played, 58) == teams_held(played, 105) == {"blue": 4}
    assert teams_held(played, 200) == {"red": 2, "blue": 2}
    assert "blue has borrowed less for its weight (1), and its app blue-1 waits" in reasons(played, Revoke, 0)


def test_what_was_borrowed_long_ago_is_forgotten() -> None:
    rules = Rules({"red": Team(), "blue": Team()}, half_life=MINUTE)
    played = shared(rules, 4, [(0, app(0, "red", 300, jobs=40)), (60, app(1, "blue", 300, jobs=40))])
    assert teams_held(played, 75) == {"red": 2, "blue": 2}


def test_gangs_that_cannot_share_take_turns() -> None:
    rules = Rules({"red": Team(), "blue": Team()}, turn=10 * MINUTE)
    played = shared(rules, 4, [(0, app(0, "red", 100, 4)), (0, app(1, "blue", 100, jobs=8))])
    seen = [teams_held(played, at) for at in range(5, 205, 10)]
    assert {"red": 4} in seen
    assert {"blue": 4} in seen
    rows = played.state.ledger.rows
    assert (
        abs(
            rows[0].service
            - sum(min(4, sum(gpus.values()) - gpus.get("red", 0)) for gpus in seen) * 10 * MINUTE
        )
        < 100 * MINUTE
    )


def test_what_runs_is_left_alone_for_its_min_run() -> None:
    rules = Rules({"red": Team(), "blue": Team(4)})
    apps = [(0, app(0, "red", 100, 4, min_run=30 * MINUTE)), (5, app(1, "blue", 10, 4))]
    played = shared(rules, 4, apps)
    assert held(played, 29) == {"red-0": 4}
    assert held(played, 31) == {"blue-1": 4}


@pytest.mark.parametrize("name", ["tiresias-2d", "max-min", "finish-time-fair", "astrarium", "tiresias"])
def test_a_policy_that_takes_gpus_back_heeds_min_run(name: str) -> None:
    apps = [(n, app(n, "", 90, 2, min_run=40 * MINUTE)) for n in range(5)]
    played = shared(Rules(), 4, apps, name)
    starts: dict[int, Time] = {}
    for step in played.steps:
        for action in step.actions:
            if isinstance(action, Grant):
                starts.setdefault(action.app, step.now)
            elif isinstance(action, Revoke):
                assert step.now - starts.pop(action.app) >= 40 * MINUTE
    assert all(row.outcome is Outcome.FINISHED for row in played.state.ledger.rows.values())


def test_an_app_ends_with_its_max_run_of_holding() -> None:
    rules = Rules({"red": Team(), "blue": Team(1)})
    apps = [(0, app(0, "red", 100, max_run=30 * MINUTE)), (10, app(1, "blue", 20)), (0, app(2, "red", 50))]
    played = shared(rules, 2, apps)
    row = played.state.ledger.rows[0]
    assert (row.outcome, row.reason) == (Outcome.FAILED, "it has held GPUs for 30min, its max_run")
    assert row.ended >= 30 * MINUTE
    assert row.service == 30 * MINUTE
    assert played.state.ledger.rows[2].outcome is Outcome.FINISHED


@pytest.mark.parametrize("name", LEASED)
def test_a_higher_priority_goes_first_in_its_team_only(name: str) -> None:
    rules = Rules({"red": Team(2), "blue": Team(2)})
    apps = [
        (0, app(0, "red", 300, 2)),
        (0, app(1, "blue", 300, 2)),
        (23, app(2, "red", 30, 2, priority=1)),
    ]
    played = shared(rules, 4, apps, name)
    assert held(played, 24) == {"blue-1": 2, "red-2": 2}
    assert held(played, 61) == {"red-0": 2, "blue-1": 2}
    if name == "tiresias":
        assert "app red-2 waits, which has priority 1 in the same team" in reasons(played, Revoke, 0)


def test_usage_fades() -> None:
    usage = FadingUsage(float(DAY))
    usage.add(2, 1000 * DAY)
    assert usage.total == pytest.approx(2 * DAY)  # steady use is worth its rate, over the time
    assert usage.reaches(DAY, 0) == pytest.approx(DAY * math.log(2))
    assert usage.reaches(3 * DAY, 2) == math.inf
    usage.add(0, round(DAY * math.log(2)))
    assert usage.total == pytest.approx(DAY)


def test_a_team_over_its_budget_gets_what_nobody_else_wants() -> None:
    rules = Rules({"red": Team(4, budget=Budget(4.0, Duration(7 * DAY))), "blue": Team()})
    apps = [(0, app(0, "red", 300, jobs=4)), (87, app(1, "blue", 60, jobs=4))]
    played = shared(rules, 4, apps)
    assert teams_held(played, 80) == {"red": 4}  # over its budget, and alone
    assert teams_held(played, 91) == {"blue": 4}
    assert teams_held(played, 160) == {"red": 4}
    assert any(
        "red is over its budget (5.8 of 4 GPU-hours in 7 days), and blue wants" in why
        for why in reasons(played, Revoke, 0)
    )


@BOUNDED
@given(
    gpu_hours=st.floats(1.0, 20.0), over=st.integers(2, 48), jobs=st.integers(1, 8), gpus=st.integers(1, 3)
)
def test_a_hard_budget_is_never_exceeded(gpu_hours: float, over: int, jobs: int, gpus: int) -> None:
    budget = Budget(gpu_hours, Duration(over * HOUR), hard=True)
    played = shared(Rules({"red": Team(budget=budget)}), 8, [(0, app(0, "red", 120, gpus, jobs))])
    usage = FadingUsage(float(budget.over))
    at = 0
    state = ClusterState()
    for step in played.steps:
        usage.add(len(state.holder), step.now - at)
        at = step.now
        assert usage.total <= budget.limit * (1 + 1e-9)
        follow(state, step)
    assert played.state.ledger.rows[0].outcome is Outcome.FINISHED


@pytest.mark.parametrize("name", LEASED)
def test_reserved_gpus_are_there_when_the_reservation_starts(name: str) -> None:
    rules = Rules({"red": Team(), "blue": Team()}, (Reservation("blue", 3, 60 * MINUTE, 120 * MINUTE),))
    apps = [(0, app(0, "red", 300, jobs=4, min_run=50 * MINUTE)), (70, app(1, "blue", 20, 3))]
    played = shared(rules, 4, apps, name)
    assert teams_held(played, 59) == {"red": 4}
    assert teams_held(played, 61) == teams_held(played, 95) == {"red": 1}
    assert played.state.ledger.rows[1].started == 70 * MINUTE
    assert played.state.ledger.rows[1].ended == 90 * MINUTE
    assert teams_held(played, 125) == {"red": 4}


def test_leases_end_when_a_reservation_starts_that_needs_them() -> None:
    rules = Rules({"red": Team(), "blue": Team()}, (Reservation("blue", 3, 60 * MINUTE, 120 * MINUTE),))
    apps = [(n, app(n, "red", 300)) for n in range(4)]
    played = shared(rules, 4, apps, "fifo")
    grants = [action for step in played.steps for action in step.actions if isinstance(action, Grant)]
    assert [grant.until == 60 * MINUTE for grant in grants[:4]] == [False, True, True, True]
    assert grants[1].why == "it was the next in line; until the reservation of blue"
    assert held(played, 61) == {"red-0": 1}
    assert held(played, 121) == {f"red-{n}": 1 for n in range(4)}


def test_a_lease_that_was_cut_in_vain_goes_on_unbroken() -> None:
    """The reserving team has GPUs of its own by then."""
    rules = Rules({"red": Team(2), "blue": Team()}, (Reservation("blue", 2, 60 * MINUTE, 120 * MINUTE),))
    apps = [(0, app(0, "red", 300)), (0, app(1, "blue", 300)), (1, app(2, "red", 70))]
    played = shared(rules, 4, apps, "fifo")
    assert played.state.ledger.rows[0].ended == 300 * MINUTE


def test_reservations_come_again() -> None:
    one = Reservation("red", 1, 2 * HOUR, 3 * HOUR, 24 * HOUR)
    assert [one.holds(hour * HOUR) for hour in (1, 2, 3, 26, 27)] == [False, True, False, True, False]
    assert (one.next_start(0), one.next_start(2 * HOUR)) == (2 * HOUR, 26 * HOUR)
    assert (one.next_end(0), one.next_end(3 * HOUR), one.next_end(26 * HOUR)) == (
        3 * HOUR,
        27 * HOUR,
        27 * HOUR,
    )


def words_on_waiting(rules: Rules, gpus: int, apps: Iterable[tuple[float, App]], at: float) -> dict[str, str]:
    """Return what is said of those who wait, after so many minutes."""
    allocator = TeamSharing(policy(), rules)
    state = ClusterState()
    joined = (0, MachineJoined(Machine(0, gpus)))
    arrivals = [(round(when * MINUTE), AppArrived(app)) for when, app in apps]
    words_of_app: dict[str, str] = {}

    class Stopped(Exception):
        """Enough was seen."""

    def look(step: Any) -> None:
        if step.now > at * MINUTE:
            raise Stopped

    engine: Engine[Any, Any, Any] = Engine(state, Arbiter(allocator), record=look)
    try:
        simulate(engine, [joined, *arrivals, (round(at * MINUTE) + 1, MachineLost(99))], ClusterWorld())
    except Stopped:
        seen = view(round(at * MINUTE), state, allocator)
        words_of_app = {seen.apps[number].name: words for number, words in seen.standing or ()}
    return words_of_app


def test_waiting_is_explained() -> None:
    rules = Rules({"vision": Team(weight=2.0), "speech": Team(1), "deaf": Team(1, borrow=False)})
    apps = [
        (0, app(0, "vision", 300, jobs=9)),
        (1, app(1, "speech", 300, jobs=9)),
        (1, app(2, "deaf", 300, jobs=2)),
    ]
    words = words_on_waiting(rules, 8, apps, 5)
    assert words["speech-1"].startswith(
        "speech has its 1 guaranteed GPUs, and those to borrow are in use by vision (weight 2)"
    )
    assert words["deaf-2"].startswith("deaf has its 1 GPUs, and may not borrow")


def test_held_gpus_are_explained() -> None:
    rules = Rules({"red": Team(), "blue": Team()}, (Reservation("blue", 3, 0, 120 * MINUTE),))
    words = words_on_waiting(rules, 4, [(0, app(0, "red", 300, jobs=4)), (1, app(1, "red", 1))], 5)
    assert "3 of 4 are held for the reservation of blue" in words["red-0"]


def test_a_gang_for_which_gpus_are_held_is_explained() -> None:
    rules = Rules({"red": Team(), "blue": Team(4)})
    apps = [(0, app(0, "red", 300, 2, min_run=60 * MINUTE)), (1, app(1, "blue", 300, 4))]
    words = words_on_waiting(rules, 4, apps, 15)
    assert words["blue-1"].startswith("2 of 4 are free, and held for blue, which needs 4 together")


def test_a_budget_is_explained() -> None:
    rules = Rules({"red": Team(budget=Budget(1.0)), "blue": Team()})
    words = words_on_waiting(
        rules, 2, [(0, app(0, "red", 300, jobs=4)), (50, app(1, "blue", 300, jobs=4))], 90
    )
    assert words["red-0"].startswith("red is over its budget (1.")
