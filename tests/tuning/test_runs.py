"""Searches simulated on GPUs: the same results under every policy, sooner with Fluid, and nobody lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.choice import made
from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND, Time
from astrarium.run.simulate import simulate
from astrarium.testing.tuning_runs import costs_of, run
from astrarium.tuning.contract import (
    Event,
    GpusChanged,
    GroupArrived,
    Put,
    RuntimeMeasured,
    Trial,
    TrialFailed,
    TrialMoved,
    TrialWithdrawn,
)
from astrarium.tuning.level import ProfiledWorld, Truth
from astrarium.tuning.policies import searches, tuning_policies
from astrarium.tuning.record import Level, TuningRecord
from astrarium.tuning.runtime import Place, Runtime
from astrarium.tuning.samplers import RandomSampler, Standing
from astrarium.tuning.scenario.tasks import TASKS
from astrarium.tuning.session import Session, SessionEngine
from astrarium.tuning.state import Outcome, TuningState

POLICIES = ["fifo", "static-fluid", "dynamic-fluid"]
CIFAR = TASKS["cifar10-alexnet"]
WLM = TASKS["wlm-rnn"]
SMALL: dict[str, dict[str, Any]] = {
    "random": {"candidates": 12, "iterations": 4},
    "successive-halving": {"candidates": 27, "iterations": 27},
    "hyperband": {"iterations": 9},
    "sync-bohb": {"iterations": 9},
    "bohb": {"iterations": 9, "concurrency": 6},
    "asha": {"candidates": 27, "iterations": 9, "concurrency": 6},
    "pbt": {"population": 6, "iterations": 9, "interval": 3},
}
SYNCHRONOUS = ["random", "successive-halving", "hyperband", "sync-bohb", "pbt"]


@pytest.mark.parametrize("search", SYNCHRONOUS)
@pytest.mark.parametrize("name", TASKS)
def test_synchronous_searches_find_the_same_under_every_policy(search: str, name: str) -> None:
    records = [run(TASKS[name], search, policy, 4, 3, SMALL[search], validate=True) for policy in POLICIES]
    outcomes = [
        [
            (
                candidate.values,
                candidate.source,
                candidate.standing,
                [(one.iterations, one.value) for one in candidate.history],
            )
            for candidate in record.candidates
        ]
        for record in records
    ]
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert [record.over for record in records] == ["the search is done"] * 3


@pytest.mark.parametrize("search", SMALL)
@pytest.mark.parametrize("policy", POLICIES)
def test_no_trial_is_lost_and_all_iterations_are_trained(search: str, policy: str) -> None:
    record = run(CIFAR, search, policy, 3, 1, SMALL[search], validate=True)
    assert {row.outcome for row in record.rows} == {Outcome.FINISHED}
    for candidate in record.candidates:
        mine = [row.trial for row in record.rows if row.trial.candidate == candidate.number]
        assert len(mine) == len(candidate.history)
        for before, after in pairwise(mine):
            assert after.begins == before.total
        assert candidate.done == mine[-1].total
        first = 0 if candidate.source is None else mine[0].begins
        assert sum(trial.iterations for trial in mine) == candidate.done - first


@pytest.mark.parametrize("search", ["asha", "bohb", "hyperband"])
def test_same_seed_same_run(search: str) -> None:
    one, two = (run(WLM, search, "dynamic-fluid", 4, 5, SMALL[search]) for _ in range(2))
    assert one == two
    assert one != run(WLM, search, "dynamic-fluid", 4, 6, SMALL[search])


@pytest.mark.parametrize("name", TASKS)
def test_fluid_brings_synchronous_searches_to_their_target_sooner(name: str) -> None:
    """Figure 3.7: 30 to 100 % faster."""
    records = {policy: run(TASKS[name], "hyperband", policy, 8, 1, {"iterations": 81}) for policy in POLICIES}
    times = {
        policy: record.reached(TASKS[name].target, TASKS[name].goal) for policy, record in records.items()
    }
    assert times["fifo"] and times["static-fluid"] and times["dynamic-fluid"]  # noqa: PT018
    assert times["static-fluid"] < times["fifo"] / 1.2
    assert times["dynamic-fluid"] < times["fifo"] / 1.3
    assert records["dynamic-fluid"].utilization() > 1.5 * records["fifo"].utilization()


def test_more_workers_are_used_less_by_successive_halving() -> None:
    """Table 3.2: from 81 % with 2 to 25 % with 32."""
    settings = {"candidates": 81, "iterations": 27}
    records = [run(CIFAR, "successive-halving", "fifo", gpus, 0, settings) for gpus in (2, 8, 32)]
    used = [record.utilization() for record in records]
    assert used[0] > 0.8 > used[1] > 0.4 > used[2]
    assert records[0].end > records[1].end > records[2].end


def test_as_many_trials_as_gpus_use_all_of_them() -> None:
    """The printed rule packs all that are shorter than the mean, and leaves GPUs idle."""
    settings = {"population": 8, "iterations": 27, "interval": 9}
    records = {policy: run(CIFAR, "pbt", policy, 8, 0, settings) for policy in POLICIES}
    assert records["static-fluid"].utilization() < 0.6
    assert records["dynamic-fluid"].end < records["fifo"].end
    assert records["dynamic-fluid"].utilization() > 0.8


def test_a_trial_that_ends_makes_room_for_the_next_and_nobody_moves() -> None:
    """The next one of an asynchronous search comes in the same step: GPUs are not given away before."""
    record = run(CIFAR, "asha", "dynamic-fluid", 6, 1, SMALL["asha"])
    last = max(row.arrived for row in record.rows if not row.trial.begins)
    before = [row for row in record.rows if row.ended <= last]
    assert len(before) > 20
    assert not any(row.moves for row in before)


@pytest.mark.parametrize("search", SMALL)
def test_it_stops_at_its_target(search: str) -> None:
    easy = 40.0
    goal = run(_with_target(easy), search, "dynamic-fluid", 4, 1, SMALL[search], stop_at_target=True)
    whole = run(_with_target(easy), search, "dynamic-fluid", 4, 1, SMALL[search])
    assert goal.over == "the target is reached"
    assert goal.end == whole.reached(easy, "max")
    assert goal.best[-1].value >= easy
    assert Outcome.OPEN not in {row.outcome for row in goal.rows}
    assert Standing.OPEN not in {candidate.standing for candidate in goal.candidates}
    assert goal.candidates[goal.best[-1].candidate].standing is Standing.COMPLETE


def _with_target(value: float) -> Any:
    import msgspec

    return msgspec.structs.replace(CIFAR, target=value)


class Broken(ProfiledWorld):
    """Some trials fail at once."""

    def consequences(self, now: Time, action: Any, state: TuningState) -> Any:
        row = state.open[action.trial] if isinstance(action, Put) else None
        if row is not None and row.trial.candidate % 3 == 0:
            yield now + 1, TrialFailed(action.trial, row.run, "out of memory")
        else:
            yield from super().consequences(now, action, state)


def searched(
    search: str,
    policy: str,
    more: Sequence[tuple[Time, Event]] = (),
    world: Any = ProfiledWorld,
) -> tuple[Session, TuningState, list[Any]]:
    truth = Truth(CIFAR, 2)
    state = TuningState(runtime=None)
    chosen = made(searches.get(search), SMALL[search], field="search")
    session = Session(chosen, RandomSampler(truth.space, 2), truth.worth, "max", None, truth.space)
    truth.values = lambda number: session.candidates[number].values
    steps: list[Any] = []
    engine = SessionEngine(
        state, made(tuning_policies.get(policy), {}, field="policy"), True, steps.append, session
    )
    first = [(0, event) for event in (GpusChanged((0, 1, 2)), *session.begin())]
    simulate(engine, [*first, *more], world(truth, costs_of()))
    return session, state, steps


@pytest.mark.parametrize("search", SMALL)
def test_trials_that_fail_free_their_gpus_and_the_search_goes_on(search: str) -> None:
    session, state, _ = searched(search, "dynamic-fluid", world=Broken)
    assert session.over == "the search is done"
    standings = {candidate.number: candidate.standing for candidate in session.candidates.values()}
    failed = {number for number, candidate in standings.items() if candidate is Standing.FAILED}
    assert failed == {number for number in standings if number % 3 == 0}
    assert session.candidates[0].reason == "out of memory"
    assert not state.open


@pytest.mark.parametrize("search", SMALL)
@given(
    policy=st.sampled_from(POLICIES),
    changes=st.lists(st.tuples(st.integers(0, 900), st.integers(1, 5)), max_size=3),
    gone=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 40)), max_size=4),
)
@settings(max_examples=8, deadline=None)
def test_gpus_and_trials_may_come_and_go(
    search: str, policy: str, changes: list[tuple[int, int]], gone: list[tuple[int, int]]
) -> None:
    events: list[tuple[Time, Event]] = [(at * SECOND, GpusChanged(tuple(range(n)))) for at, n in changes]
    events += [(at * SECOND, TrialWithdrawn(trial)) for at, trial in gone]
    session, state, _ = searched(search, policy, sorted(events, key=lambda item: item[0]))
    assert session.over == "the search is done"
    assert Standing.OPEN not in {item.standing for item in session.candidates.values()}
    assert not state.open
    outcomes = Counter(row.outcome for row in state.ledger.rows.values())
    assert outcomes[Outcome.FINISHED] == sum(len(item.history) for item in session.candidates.values())


@pytest.mark.parametrize("search", ["asha", "hyperband"])
def test_a_recording_replays_without_the_search(search: str) -> None:
    _, state, steps = searched(search, "dynamic-fluid")
    again = TuningState(runtime=None)
    engine = Engine(again, made(tuning_policies.get("dynamic-fluid"), {}, field="policy"))
    for step in steps:
        assert tuple(engine.step(step.now, step.events)) == step.actions
    assert again.ledger == state.ledger


def test_a_trial_that_lost_its_gpus_does_not_finish_without_them() -> None:
    """News of the end that it would have had is late."""
    away: list[tuple[Time, Event]] = [(20 * SECOND, GpusChanged(())), (5000 * SECOND, GpusChanged((0,)))]
    session, state, _ = searched("random", "fifo", away)
    ended = [row.ended for row in state.ledger.rows.values()]
    assert not [at for at in ended if 20 * SECOND < at < 5000 * SECOND]
    assert session.over == "the search is done"


def test_a_trial_that_is_given_other_gpus_at_once_goes_on_from_its_checkpoint() -> None:
    """What it had begun of an iteration is lost."""
    _, state, _ = searched("random", "fifo")
    moved: list[tuple[Time, Event]] = [(1 * SECOND, GpusChanged((3, 4, 5)))]
    _, again, _ = searched("random", "fifo", moved)
    first, then = (books.ledger.rows[0].ended for books in (state, again))
    assert then == first + 1 * SECOND


def test_the_end_of_a_trial_and_of_its_gpu_at_one_instant_is_an_end_to_all() -> None:
    _, state, _ = searched("random", "fifo")
    first = min(row.ended for row in state.ledger.rows.values())
    changed: list[tuple[Time, Event]] = [(first, GpusChanged(())), (first + 1, GpusChanged((0, 1)))]
    session, again, _ = searched("random", "fifo", changed)
    assert first in {row.ended for row in again.ledger.rows.values()}
    assert {candidate.standing for candidate in session.candidates.values()} == {Standing.COMPLETE}
    assert not again.open


def test_a_run_that_is_cut_short_accounts_for_everybody() -> None:
    session, _, _ = searched("random", "fifo", [(1, GpusChanged(()))])
    assert session.over == "the run ended before the search did"
    assert {candidate.standing for candidate in session.candidates.values()} == {Standing.WITHDRAWN}


def test_utilization_is_what_trials_hold() -> None:
    levels = [Level(0, {0: 1.0, 1: 0.5}), Level(4, {0: 0.0, 1: 1.0}), Level(8, {0: 0.0, 1: 0.0})]
    record = TuningRecord("fifo", 8, levels, [], [], [], "")
    assert record.windows(4) == {0: [1.0, 1.0, 0.0, 0.0], 1: [0.5, 0.5, 1.0, 1.0]}
    assert record.utilization() == pytest.approx(0.625)
    assert record.utilization(4) == pytest.approx(0.75)
    assert record.windows(1, 16) == {0: [0.25], 1: [0.375]}


def test_held_shares_add_up_to_the_trials_gpu_time() -> None:
    """But for those that move, which have two places for a while."""
    for policy in ("fifo", "static-fluid"):
        record = run(
            CIFAR, "successive-halving", policy, 5, 4, SMALL["successive-halving"], costs=costs_of(0, 0)
        )
        held = sum(row.gpu_time for row in record.rows)
        assert record.utilization() * 5 * record.end == pytest.approx(held, rel=1e-6)


def test_what_is_asked_for_must_exist() -> None:
    with pytest.raises(InputError, match="did you mean 'hyperband'"):
        run(CIFAR, "hyperbant", "fifo")
    with pytest.raises(InputError, match="eta"):
        run(CIFAR, "hyperband", "fifo", search_settings={"eta": 1})


@pytest.mark.parametrize("name", TASKS)
def test_tasks_learn_and_good_configurations_reach_the_target(name: str) -> None:
    """Table 3.3's targets: within reach of the best, out of reach of most."""
    mine = TASKS[name]
    best = {knob: setting.best for knob, setting in mine.knobs.items()}
    curve = [mine.value(best, n, 0, 0) for n in (1, 9, 81)]
    assert curve == sorted(curve, reverse=mine.goal == "min")
    truth = Truth(mine, 0)
    sampler = RandomSampler(truth.space, 0)
    drawn = [sampler.ask().values for _ in range(200)]
    truth.values = lambda number: drawn[number]
    sign = 1 if mine.goal == "max" else -1
    good = sum(sign * mine.value(truth._parts(n), 81, 0, n) >= sign * mine.target for n in range(200))
    assert 1 <= good <= 60
    times = [truth.runtime(n).iteration for n in range(200)]
    assert 0.5 * mine.iteration < sum(times) / 200 < 2 * mine.iteration
    assert max(times) > 1.3 * min(times)


def test_a_new_belief_keeps_the_part_of_an_iteration_that_is_done() -> None:
    state = TuningState(moving=5 * SECOND, runtime=Runtime(10 * SECOND))
    state.apply(0, GpusChanged((0, 1)))
    state.apply(0, GroupArrived(0, (Trial(0, 0, 0, 10),)))
    state.commit(0, Put(0, Place((0,))))
    row = state.open[0]
    state.apply(25 * SECOND, RuntimeMeasured(0, Runtime(20 * SECOND)))
    assert (row.done, state.left(25 * SECOND, row)) == (2, 7.5)
    assert state.left(45 * SECOND, row) == 6.5
    state.commit(45 * SECOND, Put(0, Place((1,))))
    state.apply(55 * SECOND, TrialMoved(0, row.run, 4))
    state.apply(57 * SECOND, RuntimeMeasured(0, Runtime(10 * SECOND)))  # it is on its way until 60 s
    assert [state.left(at * SECOND, row) for at in (57, 60, 70)] == [6, 6, 5]
    assert row.gpu_time == 55 * SECOND
