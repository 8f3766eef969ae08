"""StaticFluid and DynamicFluid: the printed example, the bound, and nobody lost on the way."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.engine import Engine
from astrarium.core.policy import SetTimer
from astrarium.core.quantities import SECOND, Time
from astrarium.run.simulate import simulate
from astrarium.tuning.contract import (
    Event,
    GpusChanged,
    GroupArrived,
    Put,
    RuntimeMeasured,
    Trial,
    TrialFinished,
    TrialWithdrawn,
)
from astrarium.tuning.policies import tuning_policies
from astrarium.tuning.policies._widths import water_filled
from astrarium.tuning.runtime import Runtime, Width, marginal_benefit, most_packed, most_spread
from astrarium.tuning.state import Outcome, TrialRow, TuningState
from astrarium.tuning.world import TuningWorld

POLICIES = ["fifo", "static-fluid", "dynamic-fluid"]


def group(*iterations: int, number: int = 0, first: int = 0) -> GroupArrived:
    trials = [Trial(first + n, number, first + n, count) for n, count in enumerate(iterations)]
    return GroupArrived(number, tuple(trials))


def made(policy: str, **parameters: Any) -> Any:
    kind: Any = tuning_policies.get(policy)
    return kind(msgspec.convert(parameters, kind.Parameters))


class Played:
    def __init__(
        self,
        policy: Any,
        arrivals: Sequence[tuple[Time, Event]],
        gpus: int = 4,
        runtime: Runtime | None = None,
        moving: Time = 0,
    ) -> None:
        self.state = TuningState(moving, runtime)
        self.puts: list[tuple[Time, Put]] = []
        engine = Engine(self.state, policy, validate=True, record=self._heard)
        start: list[tuple[Time, Event]] = [(0, GpusChanged(tuple(range(gpus))))]
        truth = runtime or Runtime()
        simulate(engine, [*start, *arrivals], TuningWorld(lambda _: truth, moving))

    def _heard(self, step: Any) -> None:
        self.puts += [(step.now, action) for action in step.actions if isinstance(action, Put)]

    @property
    def rows(self) -> list[TrialRow]:
        return list(self.state.ledger.rows.values())

    @property
    def end(self) -> Time:
        return max(row.ended for row in self.rows)

    def widths(self, trial: int) -> list[Fraction]:
        return [put.place.width for _, put in self.puts if put.trial == trial]


def test_the_toy_example_of_figure_3_5() -> None:
    played = Played(made("static-fluid", packed=2), [(0, group(4, 4, 12, 30))], gpus=5)
    assert [played.widths(trial) for trial in range(4)] == [
        [Fraction(1, 2)],
        [Fraction(1, 2)],
        [Fraction(1)],
        [Fraction(3)],
    ]
    assert played.end == 12 * SECOND  # without overheads: 30 on three GPUs take 10
    shared = [put.place.gpus for _, put in played.puts if put.trial in (0, 1)]
    assert shared[0] == shared[1]
    fifo = Played(made("fifo"), [(0, group(4, 4, 12, 30))], gpus=5)
    assert fifo.end == 30 * SECOND


def test_what_is_left_goes_to_the_longest_when_others_end() -> None:
    static = Played(made("static-fluid", packed=1), [(0, group(4, 4, 40, 40))], gpus=4)
    played = Played(made("dynamic-fluid", packed=1), [(0, group(4, 4, 40, 40))], gpus=4)
    assert static.end == 40 * SECOND
    assert played.end == 22 * SECOND
    assert played.widths(2) == [1, 2]
    assert [row.moves for row in played.rows] == [0, 0, 1, 1]


def test_a_move_that_costs_more_than_it_saves_is_not_made() -> None:
    for moving, moves in ((17 * SECOND, 1), (19 * SECOND, 0)):
        played = Played(made("dynamic-fluid", packed=1), [(0, group(4, 40))], gpus=2, moving=moving)
        assert played.rows[1].moves == moves


def test_a_trial_about_to_end_is_not_shrunk() -> None:
    """By areas alone it would be: a third of a GPU for a second is less than three GPUs for a moment."""
    policy = made("dynamic-fluid", packed=4, spread=8)
    state = TuningState(runtime=Runtime(SECOND, packing=1.2, scaling=1.1))
    state.apply(0, GpusChanged((0, 1, 2, 3)))
    state.apply(0, group(300, 1))
    state.commit(0, Put(0, state.strips.find(Width(3), 0)))  # type: ignore[arg-type]
    state.apply(0, TrialWithdrawn(1))
    late = 298 * round(state.runtime(state.open[0]).at(Width(3)))
    state.apply(late, group(600, first=7, number=1))
    actions = list(policy.decide(late, [group(600, first=7, number=1)], state))
    assert not [action for action in actions if isinstance(action, Put) and action.trial == 0]


@pytest.mark.parametrize("policy", POLICIES)
@given(
    times=st.lists(st.integers(1, 60), min_size=1, max_size=14),
    gpus=st.integers(1, 6),
    packing=st.floats(1.0, 1.2),
    scaling=st.floats(1.0, 1.1),
    changes=st.lists(st.tuples(st.integers(0, 100), st.integers(1, 6)), max_size=3),
    gone=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 13)), max_size=3),
)
@settings(max_examples=40, deadline=None)
def test_no_trial_is_lost_whatever_comes_and_goes(
    policy: str,
    times: list[int],
    gpus: int,
    packing: float,
    scaling: float,
    changes: list[tuple[int, int]],
    gone: list[tuple[int, int]],
) -> None:
    events: list[tuple[Time, Event]] = [(0, group(*times))]
    events += [(at * SECOND, GpusChanged(tuple(range(count)))) for at, count in changes]
    events += [(at * SECOND, TrialWithdrawn(trial)) for at, trial in gone]
    events.sort(key=lambda timed: timed[0])
    played = Played(made(policy), events, gpus, Runtime(SECOND, packing, scaling), moving=SECOND // 2)
    withdrawn = {trial for _, trial in gone}
    assert all(row.outcome is not Outcome.OPEN for row in played.rows)
    for row in played.rows:
        assert row.outcome is Outcome.FINISHED or row.trial.id in withdrawn
        assert row.outcome is Outcome.WITHDRAWN or row.done == row.trial.iterations


@given(
    times=st.lists(st.integers(1, 100), min_size=1, max_size=30),
    gpus=st.integers(1, 12),
    packed=st.integers(1, 4),
)
@settings(max_examples=150, deadline=None)
def test_the_additive_bound_holds(times: list[int], gpus: int, packed: int) -> None:
    """Where packing keeps the area (c trials on a GPU each take c times as long): twice the ideal, and the
    longest of the packed."""

    class Even(Runtime, frozen=True):
        def at(self, width: Width) -> float:
            return SECOND / float(width)

    policy = made("static-fluid", packed=packed, spread=gpus)
    widths = water_filled(
        {n: count * SECOND for n, count in enumerate(times)},
        gpus,
        packed,
        dict.fromkeys(range(len(times)), gpus),
    )
    policy._plan = lambda now, event, state: policy._widths.update(widths)
    played = Played(policy, [(0, group(*times))], gpus, Even())
    narrow = [count for n, count in enumerate(times) if widths[n] < 1]
    bound = 2 * sum(times) / gpus + packed * max(narrow, default=0)
    assert played.end <= bound * SECOND + 1


@given(times=st.lists(st.integers(1, 12), min_size=1, max_size=4), gpus=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_against_the_true_optimum_of_small_groups(times: list[int], gpus: int) -> None:
    """All ways to give each trial one GPU or several, with none packed."""
    played = Played(made("dynamic-fluid", packed=1), [(0, group(*times))], gpus)
    best = min(
        _listed([count / width for count, width in zip(times, widths, strict=True)], list(widths), gpus)
        for widths in product(range(1, gpus + 1), repeat=len(times))
    )
    assert played.end <= (2 * best + max(times)) * SECOND
    assert played.end >= sum(times) / gpus * SECOND - 1


def _listed(lengths: list[float], widths: list[int], gpus: int) -> float:
    free = [0.0] * gpus
    for length, width in sorted(zip(lengths, widths, strict=True), key=lambda pair: -pair[0]):
        free.sort()
        end = free[width - 1] + length
        free[:width] = [end] * width
    return max(free)


def test_a_group_that_finds_no_idle_gpu_starts_on_the_first_one() -> None:
    """It should have three of four, and would wait for them in vain while others come and go."""
    arrivals = [(0, group(10, 20, 30, 40)), (SECOND, group(300, number=1, first=4))]
    played = Played(made("static-fluid", packed=1), arrivals)
    assert played.widths(4) == [1]
    assert played.rows[4].started == 10 * SECOND


def test_where_gpus_are_shared_a_part_that_is_free_is_enough() -> None:
    """By itself it would be given both GPUs."""
    arrivals = [(0, group(10, 20, 20, 20)), (SECOND, group(10, number=1, first=4))]
    played = Played(made("static-fluid", packed=2), arrivals, gpus=2)
    assert played.widths(4) == [Fraction(1, 2)]
    assert played.rows[4].started == 10 * SECOND


def test_groups_that_come_together_share_what_is_idle() -> None:
    arrivals = [(0, group(50)), (0, group(50, number=1, first=1))]
    played = Played(made("static-fluid", spread=3), arrivals, gpus=5)
    assert [played.widths(trial) for trial in range(2)] == [[3], [2]]


def test_gpus_that_rounding_leaves_over_go_to_who_would_end_last() -> None:
    """Of 8 trials on 8 GPUs, those below the mean are packed by the printed rule."""
    times = [9, 10, 11, 10, 9, 11, 10, 10]
    runtime = Runtime(SECOND, packing=1.3)
    static = Played(made("static-fluid"), [(0, group(*times))], 8, runtime)
    played = Played(made("dynamic-fluid"), [(0, group(*times))], 8, runtime, moving=60 * SECOND)
    assert min(static.widths(0) + static.widths(4)) < 1
    assert [played.widths(trial) for trial in range(8)] == [[1]] * 8
    assert played.end == 11 * SECOND < static.end


def test_who_joins_a_group_with_much_to_do_gets_more_than_the_gpu_that_is_idle() -> None:
    """As the promoted of an asynchronous search do: one trial comes whenever one ends."""
    short = [(at * SECOND, group(1, first=at + 4)) for at in range(1, 12)]
    first: list[tuple[Time, Event]] = [(0, group(1, 1, 1)), (0, group(60, first=3))]
    runtime = Runtime(SECOND, packing=1.1, scaling=1.1)
    played = Played(made("dynamic-fluid", packed=2, spread=3), [*first, *short], 4, runtime)
    static = Played(made("static-fluid", packed=2, spread=3), [*first, *short], 4, runtime)
    assert max(played.widths(3)) == 3
    assert played.rows[3].ended < 40 * SECOND
    assert all(row.ended <= row.arrived + 3 * SECOND for row in played.rows if row.trial.id != 3)
    assert max(static.widths(3)) <= 3


def test_how_far_packing_and_spreading_pay() -> None:
    assert marginal_benefit([1.0, 1.2], 2) == pytest.approx(0.4)
    assert most_packed([1.0, 1.2, 1.5, 2.6]) == 3
    assert most_packed([1.0, 10.0]) == 1
    assert most_spread(Runtime(SECOND, scaling=1.0), 8) == 8
    assert most_spread(Runtime(SECOND, scaling=1.3), 8) == 4


def test_what_is_measured_of_one_candidate_is_believed_of_others() -> None:
    state = TuningState()
    state.apply(0, group(10, 10))
    state.apply(0, RuntimeMeasured(0, Runtime(3 * SECOND, 1.1, 1.2)))
    assert state.runtime(state.open[1]) == Runtime(3 * SECOND, 1.1, 1.2)


def test_a_timer_is_nothing_to_the_books() -> None:
    state = TuningState()
    state.commit(0, SetTimer(5))
    state.validate()


def test_those_who_wait_are_planned_anew_when_more_can_share_a_gpu_than_was_believed() -> None:
    """Three at a time were believed to pay; they turn out to slow each other by nothing."""
    state = TuningState(0, Runtime(SECOND, 1.3, 1.0))
    policy = made("dynamic-fluid", packed=8)
    engine = Engine(state, policy, validate=True)
    trials = tuple(Trial(number, 0, number, 10) for number in range(16))
    engine.step(0, [GpusChanged((0,)), GroupArrived(0, trials)])
    assert {row.place.parts for row in state.running() if row.place} == {3}
    measured = [RuntimeMeasured(trial.candidate, Runtime(SECOND, 1.0, 1.0)) for trial in trials]
    engine.step(SECOND, measured)
    ended = [TrialFinished(row.trial.id, row.run) for row in state.running()]
    engine.step(10 * SECOND, ended)
    assert {row.place.parts for row in state.running() if row.place} == {8}
    assert len(state.running()) == 8
