"""Live tuning with a backend that is not there, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.choice import made
from astrarium.core.engine import Engine
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import FOREVER, MILLISECOND, SECOND, Time
from astrarium.core.trace import read_trace, write_trace
from astrarium.run.replay import replay
from astrarium.testing.tuning_runs import costs_of
from astrarium.testing.tuning_runs import run as simulated
from astrarium.tuning.contract import Action, Event, MovingMeasured, Pause, Put
from astrarium.tuning.live.backend import Checkpoint, GpusSeen, RunEnded
from astrarium.tuning.live.loop.limits import LiveLimits
from astrarium.tuning.live.loop.live_tuning import LiveTuning
from astrarium.tuning.policies import tuning_policies
from astrarium.tuning.runtime import Place, Runtime
from astrarium.tuning.samplers import Standing
from astrarium.tuning.state import Outcome, TuningState
from tests.support.tuning.live_search import SMALL, TASK, Play, all_ended_well

POLICIES = ["fifo", "static-fluid", "dynamic-fluid"]
SYNCHRONOUS = ["random", "successive-halving", "hyperband", "pbt"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("search", SMALL)
def test_live_is_as_simulated(search: str, policy: str) -> None:
    """The same candidates with the same values; asynchronous ones where the order of ends is the same."""
    costs = costs_of(starting=500 * MILLISECOND, moving=2 * SECOND)
    played = Play(search, policy, costs=costs).go()
    expected = simulated(TASK, search, policy, 4, 1, SMALL[search], costs=costs)
    all_ended_well(played)
    record = played.live.record(policy)
    # One that leaves and is given yet another place at that instant never begins at the first, live;
    # simulated, it pays for both. Only PBT meets it here.
    near = 0.01 if (search, policy) == ("pbt", "dynamic-fluid") else 1e-6
    assert record.end == pytest.approx(expected.end, rel=near)
    assert record.utilization() == pytest.approx(expected.utilization(), abs=near)
    if search in SYNCHRONOUS or policy == "fifo":
        assert played.endings() == [
            (
                candidate.values,
                candidate.source,
                candidate.standing,
                [(one.iterations, one.value) for one in candidate.history],
            )
            for candidate in expected.candidates
        ]
        assert record.best[-1][1:] == expected.best[-1][1:]


def test_a_run_with_nothing_to_wait_for_is_the_simulated_one_to_the_nanosecond() -> None:
    for search in ("successive-halving", "asha"):
        played = Play(search, "fifo").go()
        expected = simulated(TASK, search, "fifo", 4, 1, SMALL[search], costs=costs_of(0, 0))
        assert [row.ended for row in played.rows.values()] == [row.ended for row in expected.rows]


@pytest.mark.parametrize("search", ["successive-halving", "hyperband"])
def test_with_what_it_measures_it_does_as_well_as_with_the_truth(search: str) -> None:
    """Trials are slowed by those who share their GPUs; nothing is known before it was seen."""
    known = Play(search, "dynamic-fluid", shared=True, costs=costs_of(0, 100 * MILLISECOND)).go()
    learnt = Play(
        search, "dynamic-fluid", shared=True, true_estimates=False, costs=costs_of(0, 100 * MILLISECOND)
    ).go()
    fifo = Play(search, "fifo", shared=True).go()
    ends = [played.live.record("").end for played in (known, learnt, fifo)]
    assert ends[1] < 1.15 * ends[0]
    assert ends[1] < ends[2] / 1.2
    assert learnt.endings() == known.endings() == fifo.endings()
    for number, row in learnt.rows.items():
        believed = learnt.live.state.runtime(row)
        truth = learnt.truth.runtime(row.trial.candidate)
        assert believed.iteration == pytest.approx(truth.iteration, rel=0.35), number
        assert believed.packing == pytest.approx(truth.packing, rel=0.1)


def test_a_recording_replays(tmp_path: Path) -> None:
    """What was learnt of moves and iterations is among the events."""
    costs = costs_of(SECOND, 3 * SECOND)
    played = Play("hyperband", "dynamic-fluid", true_estimates=False, shared=True, costs=costs, moving=SECOND)
    played.backend.at(30, lambda: played.backend.change((0, 1)))
    played.backend.at(90, lambda: played.backend.change((0, 1, 2, 5)))
    played.go()
    assert any(isinstance(event, MovingMeasured) for step in played.steps for event in step.events)
    write_trace(tmp_path / "trace", played.steps)
    again = TuningState(SECOND, played.truth.usual)
    engine = Engine(again, made(tuning_policies.get("dynamic-fluid"), None, field="policy"), validate=True)
    assert replay(engine, read_trace(tmp_path / "trace", Event, Action)) is None
    assert again.ledger == played.live.state.ledger


@pytest.mark.parametrize("search", SMALL)
@given(
    policy=st.sampled_from(POLICIES),
    changes=st.lists(st.tuples(st.integers(0, 400), st.sets(st.integers(0, 6))), max_size=4),
    kills=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 30)), max_size=6),
    checkpoints=st.integers(1, 3),
    leaving=st.integers(0, 3),
)
@settings(max_examples=12, deadline=None)
def test_no_trial_is_lost_when_gpus_and_processes_come_and_go(
    search: str,
    policy: str,
    changes: list[tuple[int, set[int]]],
    kills: list[tuple[int, int]],
    checkpoints: int,
    leaving: int,
) -> None:
    """Books are validated at each step, and the backend refuses runs for which there is no room."""
    played = Play(
        search,
        policy,
        checkpoints=checkpoints,
        leaving=leaving * SECOND,
        true_estimates=False,
        limits=LiveLimits(retries=99, patience=1000 * SECOND),
    )
    for at, gpus in changes:
        played.backend.at(at, lambda gpus=gpus: played.backend.change(sorted(gpus)))  # type: ignore[misc]
    played.backend.at(401, lambda: played.backend.change((0, 1)))
    for at, trial in kills:
        played.backend.at(at, lambda trial=trial: played.backend.kill(trial))  # type: ignore[misc]
    played.go()
    all_ended_well(played)
    assert played.outcomes().keys() == {Outcome.FINISHED}
    if search in SYNCHRONOUS:
        assert played.endings() == Play(search, policy).go().endings()


def test_a_run_that_is_lost_goes_on_from_its_newest_checkpoint() -> None:
    played = Play("random", "fifo", gpus=9, checkpoints=3)
    played.go(lambda: (0, 3) in played.backend.trained)
    played.backend.kill(0)
    played.go()
    runs = [work for work in played.backend.started if work.trial == 0]
    assert [work.start for work in runs] == [None, Checkpoint(0, 3)]
    assert runs[1].run > runs[0].run
    assert played.rows[0].outcome is Outcome.FINISHED


def test_who_is_lost_again_and_again_fails() -> None:
    played = Play("random", "fifo", gpus=3)
    for second in range(1, 200):
        played.backend.at(second / 20, lambda: played.backend.kill(1))
    played.go()
    row = played.rows[1]
    assert row.outcome is Outcome.FAILED
    assert row.reason == "its runs were lost 3 times, and it got no further"
    assert played.live.session.candidates[1].standing is Standing.FAILED
    assert played.outcomes()[Outcome.FINISHED] == 8


def test_gpus_that_go_are_nobodys_fault() -> None:
    played = Play("random", "fifo", gpus=1)
    for time in range(1, 20):
        gpus = (0,) if time % 2 == 0 else ()
        played.backend.at(time / 2, lambda gpus=gpus: played.backend.change(gpus))  # type: ignore[misc]
    played.backend.at(11, lambda: played.backend.change((0,)))
    played.go()
    assert played.outcomes() == {Outcome.FINISHED: 9}


def test_a_failure_is_reported_and_its_gpu_is_free() -> None:
    played = Play("random", "fifo", gpus=2)
    played.backend.failing = lambda number, at: "out of memory" if number == 0 and at == 2 else ""
    played.go()
    assert played.rows[0].reason == "out of memory"
    assert played.live.session.candidates[0].standing is Standing.FAILED
    assert played.outcomes() == {Outcome.FINISHED: 8, Outcome.FAILED: 1}


@pytest.mark.parametrize("value", [float("nan"), None])
def test_a_value_that_is_no_number_is_a_failure(value: float | None) -> None:
    played = Play("random", "fifo")
    honest = played.backend._worth
    played.backend._worth = lambda number, at: value if number == 3 else honest(number, at)
    played.go()
    assert played.live.session.candidates[3].standing is Standing.FAILED
    assert (
        sum(candidate.standing is Standing.COMPLETE for candidate in played.live.session.candidates.values())
        == 8
    )


def test_a_trial_whose_iteration_never_ends_fails() -> None:
    """Its process lives on: the backend sees nothing wrong."""
    limits = LiveLimits(progress=FOREVER, patience=10 * SECOND, longest=1000 * SECOND)
    played = Play("random", "fifo", gpus=2, limits=limits)
    honest = played.backend._runtime
    played.backend._runtime = lambda number: Runtime(FOREVER) if number == 3 else honest(number)
    played.go()
    assert played.outcomes() == {Outcome.FINISHED: 8, Outcome.FAILED: 1}
    assert played.live.session.candidates[3].reason.startswith("no iteration ended within 1000 s")
    row = played.rows[3]
    assert 1000 * SECOND < row.ended - row.started <= 1010 * SECOND
    assert ("drop", 3) in played.backend.orders


def test_late_news_is_ignored() -> None:
    played = Play("random", "fifo", gpus=1)
    played.go(lambda: len(played.backend.started) == 1)
    old = played.backend.started[0]
    played.backend.kill(0)
    played.go(lambda: len(played.backend.started) == 2)
    played.backend._news.append(RunEnded(0, old.run, "failed", 0, None, "long ago"))
    played.backend._news.append(RunEnded(77, 1, "failed", 0, None, "who?"))
    played.go()
    assert played.outcomes() == {Outcome.FINISHED: 9}


def test_the_target_drops_whoever_runs() -> None:
    played = Play("successive-halving", "dynamic-fluid", target=40.0, leaving=5 * SECOND).go()
    assert played.live.over == "the target is reached"
    assert not played.live.state.open
    dropped = [trial for what, trial in played.backend.orders if what == "drop"]
    assert dropped
    assert all(played.rows[trial].outcome is Outcome.WITHDRAWN for trial in dropped)


def test_a_gpu_is_used_again_when_whoever_was_there_has_left() -> None:
    """The books free it at once; two at a time would be too many for its memory."""
    played = Play("random", "fifo", gpus=1, leaving=7 * SECOND).go_seconds(2)
    at = played.clock.now
    played.live._news.append(GpusSeen(()))  # they were there all the time, in truth
    played.live.step(at)
    played.live._news.append(GpusSeen((0,)))
    played.live.step(at)
    assert played.live.state.open[0].settled  # in the books it runs
    assert played.backend.orders == [("start", 0), ("stop", 0)]
    played.go()
    assert played.outcomes() == {Outcome.FINISHED: 9}
    assert played.backend.started[1].start == Checkpoint(0, 1)


def test_closing_leaves_nothing_open() -> None:
    played = Play("hyperband", "dynamic-fluid").go_seconds(20)
    assert played.live.state.open
    played.live.close(played.clock.now, "somebody asked")
    assert played.live.over == "somebody asked"
    assert not played.live.state.open
    assert Standing.OPEN not in {candidate.standing for candidate in played.live.session.candidates.values()}
    assert played.backend.closed
    record = played.live.record("dynamic-fluid")
    assert record.end == played.clock.now
    assert Outcome.OPEN not in {row.outcome for row in record.rows}


def test_the_loop_runs_to_the_end_and_closes() -> None:
    played = Play("successive-halving", "static-fluid")
    seen = list[int]()
    played.live.run(played.clock, after=lambda live: seen.append(len(live.state.open)))
    assert played.live.over == "the search is done"
    assert played.backend.closed
    assert max(seen) == 27
    stopped = Play("successive-halving", "static-fluid")
    stopped.live.run(stopped.clock, stop=lambda: "enough" if stopped.clock.now > 30 * SECOND else "")
    assert stopped.live.over == "enough"
    assert stopped.backend.closed


def test_a_loop_that_breaks_closes_too() -> None:
    played = Play()

    def broken(live: LiveTuning) -> None:
        raise RuntimeError("a screen that is no more")

    with pytest.raises(RuntimeError):
        played.live.run(played.clock, after=broken)
    assert played.backend.closed
    assert not played.live.state.open


class Mover:
    """Puts the first trial on a GPU, moves it when ordered to, pauses it, and has it go on."""

    def __init__(self) -> None:
        self.fired: list[str] = []
        self._plan: dict[str, Callable[[], Action]] = {
            "move": lambda: Put(0, Place((1, 2))),
            "pause": lambda: Pause(0),
            "again": lambda: Put(0, Place((3,), 2)),
        }

    def decide(self, now: Time, events: Any, state: TuningState) -> Any:
        if not self.fired and 0 in state.open:
            self.fired.append("start")
            yield Put(0, Place((0,)))
            yield from (SetTimer(at * SECOND, name) for at, name in ((5, "move"), (6, "pause"), (6, "no")))
            yield SetTimer(FOREVER, "no")
        for event in events:
            if isinstance(event, TimerFired):
                yield from self._fire(now, event.name, state)

    def _fire(self, now: Time, name: str, state: TuningState) -> Any:
        row = state.open[0]
        if (name == "pause" and not row.settled) or (name == "again" and not row.waits):
            yield SetTimer(now + SECOND, name)
            return
        self.fired.append(name)
        yield self._plan[name]()
        if name == "pause":
            yield SetTimer(now + SECOND, "again")


def test_moves_and_pauses_are_carried_out_at_the_end_of_iterations() -> None:
    mover = Mover()
    played = Play(
        "random",
        mover,
        leaving=2 * SECOND,
        costs=costs_of(SECOND, 3 * SECOND),
        settings={"candidates": 1, "iterations": 40},
        limits=LiveLimits(patience=SECOND),
        true_estimates=False,
    )
    played.go()
    assert mover.fired == ["start", "move", "pause", "again"]
    starts = played.backend.started
    assert [work.place for work in starts] == [Place((0,)), Place((1, 2)), Place((3,), 2)]
    assert [work.run for work in starts] == sorted({work.run for work in starts})
    assert starts[1].start is not None
    assert [number for number, _ in played.backend.trained] == [0] * 40  # none was done twice
    assert played.live.state.moving == 3 * SECOND  # what a move has cost, from leaving to starting
    assert played.rows[0].moves == 1


def test_a_trial_that_ends_before_it_hears_that_it_shall_move_has_ended() -> None:
    class Late:
        def decide(self, now: Time, events: Any, state: TuningState) -> Any:
            for row in list(state.waiting())[:1]:
                yield Put(row.trial.id, Place((0,)))
                yield SetTimer(at, "move")
            if any(isinstance(event, TimerFired) for event in events):
                yield Put(0, Place((1,)))

    first = Play(settings={"candidates": 1, "iterations": 1})
    first.live.step(0)
    at = first.truth.runtime(0).iteration // 2
    played = Play(policy=Late(), settings={"candidates": 1, "iterations": 1}).go()
    assert played.backend.orders == [("start", 0), ("stop", 0)]
    assert played.outcomes() == {Outcome.FINISHED: 1}


def test_copies_begin_with_the_checkpoints_of_others() -> None:
    played = Play("pbt", "fifo").go()
    copies = [
        candidate for candidate in played.live.session.candidates.values() if candidate.source is not None
    ]
    assert copies
    for copy in copies:
        first = next(work for work in played.backend.started if work.candidate == copy.number)
        assert first.start is not None
        assert first.start.candidate == copy.source
