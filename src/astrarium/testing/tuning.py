"""The conformance suite of the tuning level. Any policy inherits it by saying how it is made:

    class TestMine(TuningPolicyConformance):
        def make(self):
            return Mine(Mine.Parameters())

Books are validated after each step: no GPU is given out more than once, and no trial runs where it has no
share. They refuse actions that cannot be carried out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from astrarium.core.engine import Engine
from astrarium.core.trace import Step
from astrarium.core.units import SECOND, Time
from astrarium.run.replay import replay
from astrarium.run.simulate import simulate
from astrarium.testing.audit import ensure
from astrarium.tuning.contract import (
    Action,
    Event,
    GpusChanged,
    GroupArrived,
    RuntimeMeasured,
    Trial,
    TrialFailed,
    TrialWithdrawn,
)
from astrarium.tuning.policies import TuningPolicy
from astrarium.tuning.runtime import Runtime
from astrarium.tuning.state import Outcome, TrialRow, TuningState
from astrarium.tuning.world import TuningWorld

BOUNDED = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,  # the same examples on every machine
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
Timed = tuple[Time, Event]
MOVING = SECOND // 2
GPUS = 4
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=9)  # iterations of a group's trials


@dataclass
class Case:
    """Groups that come, and what is so of their candidates."""

    later: list[Timed]
    runtime: Runtime

    def __post_init__(self) -> None:
        self.later.sort(key=lambda each: each[0])


@dataclass
class Played:
    state: TuningState
    steps: list[Step] = field(default_factory=list)

    @property
    def actions(self) -> list[Action]:
        return [action for step in self.steps for action in step.actions]

    @property
    def rows(self) -> dict[int, TrialRow]:
        return self.state.ledger.rows


def play(policy: TuningPolicy, case: Case, gpus: int = GPUS, more: Iterable[Timed] = ()) -> Played:
    """Runs it to the end, with a check of the books after each step."""
    played = Played(_books())
    engine: Engine[Any, Any, Any] = Engine(played.state, policy, True, played.steps.append)
    events: list[Timed] = [(0, GpusChanged(tuple(range(gpus)))), *case.later, *more]
    world = TuningWorld(lambda candidate: case.runtime, MOVING, SECOND // 10)
    simulate(engine, sorted(events, key=lambda each: each[0]), world)
    return played


def group(number: int, first: int, iterations: Iterable[int]) -> GroupArrived:
    trials = [Trial(first + n, number, first + n, count) for n, count in enumerate(iterations)]
    return GroupArrived(number, tuple(trials))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """What is believed of iterations is wrong at first, and measured for some."""
    later, first = list[Timed](), 0
    runtime = Runtime(draw(st.integers(1, 5)) * SECOND, draw(st.floats(1, 1.9)), draw(st.floats(1, 1.4)))
    for number, sizes in enumerate(draw(st.lists(SIZES, min_size=1, max_size=3))):
        at = draw(st.integers(0, 60)) * SECOND
        later.append((at, group(number, first, sizes)))
        later.append((at + draw(st.integers(0, 9)) * SECOND, RuntimeMeasured(first, runtime)))
        first += len(sizes)
    return Case(later, runtime)


class TuningPolicyConformance:
    def make(self) -> TuningPolicy:
        """A fresh policy."""
        raise NotImplementedError("say how your policy is made: def make(self): ...")

    def observe(self, case: Case, gpus: int = GPUS, more: Iterable[Timed] = ()) -> Played:
        played = play(self.make(), case, gpus, more)
        stuck = [row.trial.id for row in played.rows.values() if row.reason.startswith("the run ended")]
        ensure(not stuck, f"they never ended, although all of them could: {stuck}")
        return played

    @BOUNDED
    @given(case=cases(), gpus=st.integers(1, 9))
    def test_every_trial_ends_and_no_gpu_is_given_out_twice(self, case: Case, gpus: int) -> None:
        for row in self.observe(case, gpus).rows.values():
            ensure(row.outcome is Outcome.FINISHED, f"{row.trial} ended as {row.outcome.name}")
            ensure(row.done == row.trial.iterations, f"{row.trial} has done {row.done} only")

    @BOUNDED
    @given(case=cases())
    def test_the_same_case_is_decided_the_same(self, case: Case) -> None:
        ensure(self.observe(case).steps == self.observe(case).steps, "two runs of one case differ")

    @BOUNDED
    @given(case=cases())
    def test_a_recording_replays(self, case: Case) -> None:
        engine: Engine[Any, Any, Any] = Engine(_books(), self.make(), True)
        found = replay(engine, self.observe(case).steps)
        ensure(found is None, f"a fresh policy decides otherwise: {found}")

    @BOUNDED
    @given(case=cases())
    def test_it_asks_and_does_not_touch(self, case: Case) -> None:
        """Only what it asks for changes the books."""
        policy = _Watched(self.make())
        play(policy, case)
        ensure(not policy.touched, f"it changed the books by itself: {policy.touched[:1]}")

    @BOUNDED
    @given(
        case=cases(),
        changes=st.lists(st.tuples(st.integers(1, 90), st.sets(st.integers(0, 6))), min_size=1, max_size=4),
    )
    def test_gpus_may_come_and_go(self, case: Case, changes: list[tuple[int, set[int]]]) -> None:
        more: list[Timed] = [(at * SECOND, GpusChanged(tuple(sorted(gpus)))) for at, gpus in changes]
        played = self.observe(case, more=[*more, (100 * SECOND, GpusChanged((0, 7)))])
        lost = [row.trial for row in played.rows.values() if row.outcome is not Outcome.FINISHED]
        ensure(not lost, f"they were lost with their GPUs: {lost}")

    @BOUNDED
    @given(case=cases(), at=st.integers(0, 60), trial=st.integers(0, 20))
    def test_who_is_withdrawn_frees_its_share(self, case: Case, at: int, trial: int) -> None:
        played = self.observe(case, more=[(at * SECOND, TrialWithdrawn(trial))])
        self._nobody_holds_after(played, trial)

    @BOUNDED
    @given(case=cases(), at=st.integers(0, 60), trial=st.integers(0, 20))
    def test_who_fails_frees_its_share(self, case: Case, at: int, trial: int) -> None:
        """At its first run, wherever that is."""
        played = self.observe(case, more=[(at * SECOND, TrialFailed(trial, 1, "out of memory"))])
        self._nobody_holds_after(played, trial)

    def test_a_trial_alone_runs_at_once_and_is_not_broken_up(self) -> None:
        played = self.observe(Case([(SECOND, group(0, 0, [20]))], Runtime(SECOND)), gpus=1)
        row = played.rows[0]
        ensure(row.started == SECOND, f"it began at {row.started}")
        ensure(row.moves == 0, "it was moved, and there is nowhere to go")
        ensure(row.ended <= 22 * SECOND, f"it ended at {row.ended}")

    def test_nobody_waits_while_there_are_gpus_for_all(self) -> None:
        played = self.observe(Case([(0, group(0, 0, [5, 5, 5, 5]))], Runtime(SECOND)), gpus=4)
        late = [row.trial.id for row in played.rows.values() if row.started > 0]
        ensure(not late, f"they waited: {late}")

    def _nobody_holds_after(self, played: Played, trial: int) -> None:
        row = played.rows.get(trial)
        if row is not None:
            ensure(row.outcome is not Outcome.OPEN, "it neither ended nor went")
        held = [gpu for gpu, holders in played.state.strips.holders.items() if holders]
        ensure(not held, f"GPUs are held when all is over: {held}")


class _Watched:
    """A policy whose books are compared before and after it was asked, but for what its actions changed."""

    def __init__(self, policy: TuningPolicy) -> None:
        self._policy, self.touched = policy, list[str]()

    def decide(self, now: Time, events: Any, state: TuningState) -> Iterator[Action]:
        before = _seen(state)
        for action in self._policy.decide(now, events, state):
            self._compare(before, state, now)
            yield action
            before = _seen(state)
        self._compare(before, state, now)

    def _compare(self, before: Any, state: TuningState, now: Time) -> None:
        if before != _seen(state):
            self.touched.append(f"at {now}")


def _seen(state: TuningState) -> Any:
    return copy.deepcopy((state.ledger.rows, state.strips.holders, state.moving, sorted(state.open)))


def _books() -> TuningState:
    return TuningState(MOVING, Runtime(2 * SECOND))
