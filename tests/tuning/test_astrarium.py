"""Our own tuning policy: not worse than Fluid where Fluid shines, and what it does that Fluid does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from astrarium.core.quantities import SECOND, Time
from astrarium.core.random_streams import stream
from astrarium.testing.tuning_runs import play_groups
from astrarium.tuning.contract import GpusChanged, GroupArrived, Put, RuntimeMeasured, Trial
from astrarium.tuning.policies import tuning_policies
from astrarium.tuning.policies._widths import GpuBudget
from astrarium.tuning.policies.astrarium.barrier import soonest, topped_up
from astrarium.tuning.policies.astrarium.options import TrialOptions, trial_options
from astrarium.tuning.policies.astrarium.progress import most_progress
from astrarium.tuning.runtime import Place, Runtime, Width
from astrarium.tuning.state import TuningState

REAL = Runtime(SECOND, 1.34, 1.35)


def group(*iterations: int, number: int = 0, first: int = 0, begins: int = 0) -> GroupArrived:
    trials = [Trial(first + n, number, first + n, count, begins) for n, count in enumerate(iterations)]
    return GroupArrived(number, tuple(trials))


def made() -> Any:
    kind: Any = tuning_policies.get("astrarium")
    return kind(msgspec.convert({}, kind.Parameters))


def choices(state: TuningState, now: Time = 0) -> list[TrialOptions]:
    return [trial_options(now, row, state.gpus, state, 4, 8) for row in state.open.values()]


def books(gpus: int, *arrived: GroupArrived, runtime: Runtime = REAL, moving: Time = 0) -> TuningState:
    state = TuningState(moving, runtime)
    state.apply(0, GpusChanged(tuple(range(gpus))))
    for trial in arrived:
        state.apply(0, trial)
    return state


def act(policy: Any, now: Time, events: list[Any], state: TuningState) -> list[Any]:
    actions = []
    for action in policy.decide(now, events, state):
        state.commit(now, action)
        actions.append(action)
    state.validate()
    return actions


def test_the_toy_example_of_figure_3_5_ends_no_later_than_with_fluid() -> None:
    toy = [(0, group(4, 4, 12, 30))]
    ours, fluid = (play_groups(name, toy, 5, Runtime(SECOND)).end for name in ("astrarium", "dynamic-fluid"))
    assert ours <= fluid < 12 * SECOND


@pytest.mark.parametrize("rival", ["fifo", "dynamic-fluid"])
def test_one_group_at_random_is_never_much_slower_and_faster_on_the_mean(rival: str) -> None:
    ratios = []
    for seed in range(40):
        chance = stream(seed, "own")
        sizes = [int(size) for size in chance.integers(1, 60, int(chance.integers(1, 30)))]
        gpus = int(chance.integers(1, 9))
        runtime = Runtime(SECOND, float(chance.uniform(1.1, 1.6)), float(chance.uniform(1.05, 1.4)))
        ours, theirs = (
            play_groups(name, [(0, group(*sizes))], gpus, runtime, SECOND // 2).end
            for name in ("astrarium", rival)
        )
        ratios.append(ours / theirs)
    assert max(ratios) < 1.15
    assert sum(ratios) / len(ratios) < 0.99


def test_each_decision_says_why() -> None:
    played = play_groups("astrarium", [(0, group(4, 40, 40))], 4, REAL)
    assert all(put.why for _, put in played.puts)
    assert any("wider" in put.why for _, put in played.puts)
    assert any("soonest" in put.why for _, put in played.puts)


def test_who_turns_out_slow_is_spread_at_once_and_others_make_room() -> None:
    """No GPU is idle, and nobody has ended."""
    policy = made()
    arrived = group(27, 27, 27, 27)
    state = books(4, arrived)
    assert [put.place.width for put in act(policy, 0, [arrived], state)] == [1, 1, 1, 1]
    measured = [RuntimeMeasured(n, Runtime(time * SECOND, 1.34, 1.1)) for n, time in enumerate((9, 1, 1, 1))]
    for event in measured:
        state.apply(10 * SECOND, event)
    moved = act(policy, 10 * SECOND, measured, state)
    assert moved
    assert {put.trial for put in moved} <= {1, 2, 3}
    assert all("narrower" in put.why for put in moved)


def test_who_waits_is_planned_anew_when_sharing_turns_out_dear() -> None:
    policy = made()
    arrived = group(*[20] * 9)
    state = books(2, arrived, runtime=Runtime(SECOND))
    act(policy, 0, [arrived], state)
    assert policy._plan.widths[8] == Width(1, 4)
    measured = RuntimeMeasured(0, Runtime(SECOND, 3.0))
    state.apply(SECOND, measured)
    act(policy, SECOND, [measured], state)
    assert policy._plan.widths[8] >= 1


def test_where_each_result_counts_short_ones_are_not_crowded() -> None:
    """As many trials as GPUs: Fluid would give all but a few to the long one."""
    first = group(*[1] * 7)
    later = group(6, number=0, first=7, begins=3)
    policy = made()
    state = books(8, first)
    act(policy, 0, [first], state)
    state.apply(0, later)
    act(policy, 0, [later], state)
    assert policy._each_counts(state)
    widths = most_progress(choices(state), 8, 0.0)
    assert set(widths.values()) == {Width(1)}
    favoured = most_progress(choices(state), 8, 2.0)
    assert favoured[7] == max(favoured.values()) > 1


def test_the_soonest_end_packs_queues_or_spreads() -> None:
    spread = soonest(choices(books(6, group(30, 10, 10))), 6)
    assert spread.widths[0] > 1
    shared = soonest(choices(books(2, group(5, 5, 5, 5))), 2)
    assert set(shared.widths.values()) == {Width(1, 2)}
    assert shared.end == pytest.approx(5 * 1.34 * SECOND)
    alone = soonest(choices(books(2, group(5, 5, 5, 5), runtime=Runtime(SECOND, 2.5, 1.35))), 2)
    assert set(alone.widths.values()) == {Width(1)}
    assert alone.end == pytest.approx(10 * SECOND)


def test_who_moves_does_so_at_the_end_of_its_iteration_and_pays_for_it() -> None:
    state = books(4, group(10), runtime=Runtime(4 * SECOND), moving=3 * SECOND)
    state.commit(0, _put(0, Place((0,))))
    (put,) = choices(state, 2 * SECOND)
    assert put.has == 1
    assert put.time(Width(1)) == pytest.approx(38 * SECOND)
    assert put.time(Width(2)) == pytest.approx((2 + 3 + 18) * SECOND)


def test_idle_gpus_go_to_who_ends_last_and_nobody_loses_any() -> None:
    trials = choices(books(4, group(30, 5)))
    assert topped_up(trials, 4, {0: Width(1), 1: Width(1)}) == {0: Width(3), 1: Width(1)}
    full = {0: Width(3), 1: Width(2)}
    assert topped_up(trials, 4, full) == full


def test_slots_are_gpus_that_widths_need() -> None:
    slots = GpuBudget(3, [Width(1, 2)] * 3 + [Width(1)])
    assert slots.free == 0
    assert not slots.changed(Width(1), Width(2))
    assert slots.changed(Width(1, 2), Width(1))
    assert slots.free == 0


def _put(trial: int, place: Place) -> Any:
    return Put(trial, place)
