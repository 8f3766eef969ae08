"""The conformance suite of the tuning level, which any policy inherits:

    class TestMine(TuningPolicyConformance):
        policy = Mine

Books are validated after each step: no GPU is given out more than once, and no trial runs where it has no
share. They refuse actions that cannot be carried out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.quantities import SECOND
from astrarium.testing.checks import ensure
from astrarium.testing.conformance import BOUNDED, PolicyConformance
from astrarium.testing.played import UNKNOWN, Played, Timed
from astrarium.tuning import contract
from astrarium.tuning.contract import GpusChanged, GroupArrived, Trial
from astrarium.tuning.level import LEVEL
from astrarium.tuning.runtime import Runtime
from astrarium.tuning.state import Outcome, TuningState
from astrarium.tuning.world import TuningWorld

MOVING = SECOND // 2
EVEN = Runtime(SECOND)
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=9)  # iterations of a group's trials


@dataclass(frozen=True)
class Case:
    """Groups that come to some GPUs, and what is so of their candidates."""

    later: tuple[Timed, ...]
    runtime: Runtime = EVEN
    gpus: int = 4

    def events(self) -> list[Timed]:
        later = sorted(self.later, key=lambda timed: timed[0])
        return [(0, GpusChanged(tuple(range(self.gpus)))), *later]

    @property
    def trials(self) -> list[Trial]:
        return [trial for _, event in self.later if isinstance(event, GroupArrived) for trial in event.trials]


def group(number: int, first: int, iterations: Iterable[int]) -> GroupArrived:
    trials = [Trial(first + n, number, first + n, count) for n, count in enumerate(iterations)]
    return GroupArrived(number, tuple(trials))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """What is believed of iterations is wrong at first, and measured for some."""
    later = list[Timed]()
    first = 0
    runtime = Runtime(draw(st.integers(1, 5)) * SECOND, draw(st.floats(1, 1.9)), draw(st.floats(1, 1.4)))
    for number, sizes in enumerate(draw(st.lists(SIZES, min_size=1, max_size=3))):
        at = draw(st.integers(0, 60)) * SECOND
        later.append((at, group(number, first, sizes)))
        later.append((at + draw(st.integers(0, 9)) * SECOND, contract.RuntimeMeasured(first, runtime)))
        first += len(sizes)
    return Case(tuple(later), runtime, draw(st.integers(1, 9)))


class TuningPolicyConformance(PolicyConformance[Case, TuningState]):
    level = LEVEL

    def any_case(self) -> st.SearchStrategy[Case]:
        return cases()

    def busy_case(self) -> Case:
        groups = (group(number, 9 * number, range(3, 39, 4)) for number in range(3))
        return Case(tuple((number * 20 * SECOND, arrival) for number, arrival in enumerate(groups)))

    def quiet_case(self) -> Case:
        return Case(((SECOND, GpusChanged((0, 1))), (2 * SECOND, GpusChanged((0, 1, 2)))))

    def unknown(self) -> list[Any]:
        return [
            contract.TrialStepped(UNKNOWN, 1, 1),
            contract.TrialMoved(UNKNOWN, 1, 1),
            contract.TrialPaused(UNKNOWN, 1, 1),
            contract.TrialFinished(UNKNOWN, 1),
            contract.TrialFailed(UNKNOWN, 1, "out of memory"),
            contract.TrialWithdrawn(UNKNOWN),
        ]

    def items(self, case: Case) -> set[int]:
        return {trial.id for trial in case.trials}

    def make_state(self, case: Case) -> TuningState:
        return TuningState(MOVING, Runtime(2 * SECOND))

    def make_world(self, case: Case) -> TuningWorld:
        return TuningWorld(lambda candidate: case.runtime, MOVING, SECOND // 10)

    def examine(self, played: Played[Case, TuningState]) -> None:
        super().examine(played)
        held = [gpu for gpu, holders in played.state.strips.holders.items() if holders]
        ensure(not held, f"GPUs are held when all is over: {held}")

    def undisturbed(self, played: Played[Case, TuningState]) -> None:
        for row in played.state.ledger.rows.values():
            ensure(row.outcome is Outcome.FINISHED, f"{row.trial} ended as {row.outcome.name}")
            ensure(row.done == row.trial.iterations, f"{row.trial} has done {row.done} only")

    @BOUNDED
    @given(
        case=cases(),
        changes=st.lists(st.tuples(st.integers(1, 90), st.sets(st.integers(0, 6))), min_size=1, max_size=4),
    )
    def test_gpus_may_come_and_go(self, case: Case, changes: list[tuple[int, set[int]]]) -> None:
        also: list[Timed] = [(at * SECOND, GpusChanged(tuple(sorted(gpus)))) for at, gpus in changes]
        self.undisturbed(self.observe(case, also=[*also, (100 * SECOND, GpusChanged((0, 7)))]))

    @BOUNDED
    @given(case=cases(), at=st.integers(0, 60), trial=st.integers(0, 20))
    def test_who_is_withdrawn_frees_its_share(self, case: Case, at: int, trial: int) -> None:
        self.observe(case, also=[(at * SECOND, contract.TrialWithdrawn(trial))])

    @BOUNDED
    @given(case=cases(), at=st.integers(0, 60), trial=st.integers(0, 20))
    def test_who_fails_frees_its_share(self, case: Case, at: int, trial: int) -> None:
        """At its first run, wherever that is."""
        self.observe(case, also=[(at * SECOND, contract.TrialFailed(trial, 1, "out of memory"))])

    def test_a_trial_alone_runs_at_once_and_is_not_broken_up(self) -> None:
        case = Case(((SECOND, group(0, 0, [20])),), gpus=1)
        row = self.observe(case).state.ledger.rows[0]
        ensure(row.started == SECOND, f"it began at {row.started}")
        ensure(row.moves == 0, "it was moved, and there is nowhere to go")
        ensure(row.ended <= 22 * SECOND, f"it ended at {row.ended}")

    def test_nobody_waits_while_there_are_gpus_for_all(self) -> None:
        rows = self.observe(Case(((0, group(0, 0, [5, 5, 5, 5])),))).state.ledger.rows.values()
        late = [row.trial.id for row in rows if row.started > 0]
        ensure(not late, f"they waited: {late}")
