"""The conformance suite of the cluster level. Any policy inherits it by saying how it is made:

    class TestMine(ClusterPolicyConformance):
        def make(self):
            return Mine(Mine.Parameters())

Books are validated after each step: no GPU is leased twice, and no job runs on a GPU that is another app's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from astrarium.cluster.contract import (
    Action,
    App,
    AppArrived,
    AppWithdrawn,
    Event,
    Job,
    MachineJoined,
    MachineLost,
    Run,
    single,
)
from astrarium.cluster.machines import Machine
from astrarium.cluster.policies import Allocator, Arbiter
from astrarium.cluster.state import ClusterState, Outcome
from astrarium.cluster.world import ClusterWorld
from astrarium.core.engine import Engine
from astrarium.core.trace import Step
from astrarium.core.units import SECOND, Time
from astrarium.run.simulate import simulate
from astrarium.testing.audit import ensure

BOUNDED = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,  # the same examples on every machine
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
MINUTE = 60 * SECOND
Timed = tuple[Time, Event]


@dataclass
class Played:
    state: ClusterState
    steps: list[Step]

    @property
    def actions(self) -> list[Action]:
        return [action for step in self.steps for action in step.actions]


def play(
    allocator: Allocator,
    machines: Iterable[Machine],
    later: Iterable[Timed],
    world: ClusterWorld | None = None,
    state: ClusterState | None = None,
) -> Played:
    """Runs it to the end, with a check of the books after each step."""
    played = Played(state or ClusterState(), [])
    engine: Engine[Any, Any, Any] = Engine(played.state, Arbiter(allocator), True, played.steps.append)
    events: list[Timed] = [(0, MachineJoined(machine)) for machine in machines]
    simulate(
        engine, sorted([*events, *later], key=lambda each: each[0]), world or ClusterWorld(startup=SECOND)
    )
    return played


@st.composite
def jobs(draw: st.DrawFn, id_: int) -> Job:
    least = draw(st.sampled_from([1, 1, 2, 4]))
    return Job(id_, draw(st.integers(1, 40)) * MINUTE, least, least * draw(st.sampled_from([1, 1, 2])))


@st.composite
def apps(draw: st.DrawFn, id_: int) -> App:
    sizes = draw(st.sampled_from([(1,), (1,), (3,), (4, 2, 1)]))
    phases = tuple(tuple(draw(jobs(number)) for number in range(size)) for size in sizes)
    return App(id_, f"app {id_}", phases, kind="halving" if len(sizes) > 1 else "jobs")


@st.composite
def arrivals(draw: st.DrawFn) -> list[Timed]:
    count = draw(st.integers(1, 7))
    return [(draw(st.integers(0, 30)) * MINUTE, AppArrived(draw(apps(number)))) for number in range(count)]


MACHINES = (Machine(0, 4, 0, 2), Machine(1, 4, 0), Machine(2, 2, 1), Machine(3, 2, 1))


class ClusterPolicyConformance:
    def make(self) -> Allocator:
        """A fresh allocator."""
        raise NotImplementedError("say how your policy is made: def make(self): ...")

    def observe(self, later: Iterable[Timed], machines: Iterable[Machine] = MACHINES) -> Played:
        played = play(self.make(), machines, later)
        rows = played.state.ledger.rows.values()
        stuck = [
            row.app.name for row in rows if row.outcome is Outcome.OPEN or row.reason.startswith("the run")
        ]
        ensure(not stuck, f"they never ended, although all of them could: {stuck}")
        return played

    @BOUNDED
    @given(later=arrivals())
    def test_everything_ends_and_no_gpu_is_leased_twice(self, later: list[Timed]) -> None:
        self.observe(later)

    @BOUNDED
    @given(later=arrivals())
    def test_gangs_run_whole(self, later: list[Timed]) -> None:
        sizes = {
            (event.app.id, job.id, phase): (job.least, job.most)
            for _, event in later
            if isinstance(event, AppArrived)
            for phase, members in enumerate(event.app.phases)
            for job in members
        }
        for action in self.observe(later).actions:
            if isinstance(action, Run):
                known = [
                    size for (app, job, _), size in sizes.items() if (app, job) == (action.app, action.job)
                ]
                ensure(any(least <= len(action.gpus) <= most for least, most in known), f"{action}")

    @BOUNDED
    @given(later=arrivals())
    def test_the_same_case_is_decided_the_same(self, later: list[Timed]) -> None:
        ensure(self.observe(later).steps == self.observe(later).steps, "two runs of one case differ")

    @BOUNDED
    @given(later=arrivals(), at=st.integers(1, 60))
    def test_machines_may_die_and_join(self, later: list[Timed], at: int) -> None:
        joined = MachineJoined(Machine(9, 8, 2))
        self.observe([*later, (at * MINUTE, MachineLost(0)), ((at + 5) * MINUTE, joined)])

    @BOUNDED
    @given(later=arrivals(), at=st.integers(1, 60))
    def test_owners_may_change_their_minds(self, later: list[Timed], at: int) -> None:
        rows = self.observe([*later, (at * MINUTE, AppWithdrawn(0))]).state.ledger.rows
        ensure(rows[0].outcome in (Outcome.FINISHED, Outcome.WITHDRAWN), "it has neither ended nor gone")

    def test_an_app_alone_runs_at_once_and_unbroken(self) -> None:
        played = self.observe([(MINUTE, AppArrived(single(0, "alone", 3600 * SECOND, 4)))])
        row = played.state.ledger.rows[0]
        ensure((row.started, row.ended) == (MINUTE, MINUTE + 3601 * SECOND), f"{row.started}, {row.ended}")
        ensure(sum(isinstance(action, Run) for action in played.actions) == 1, "it was started again")

    def test_a_gang_that_is_larger_than_the_cluster_holds_up_nobody(self) -> None:
        huge, small = single(0, "huge", MINUTE, 64), single(1, "small", MINUTE, 2)
        rows = play(self.make(), MACHINES, [(0, AppArrived(huge)), (0, AppArrived(small))]).state.ledger.rows
        ensure(rows[1].outcome is Outcome.FINISHED, "the small one never ran")

    def test_a_gang_gets_its_turn_while_small_jobs_keep_coming(self) -> None:
        crowd = [(n * MINUTE, AppArrived(single(n, f"{n}", 60 * MINUTE))) for n in range(1, 120)]
        gang = (30 * MINUTE, AppArrived(single(0, "gang", 60 * MINUTE, 8)))
        rows = self.observe([*crowd, gang]).state.ledger.rows
        ensure(rows[0].outcome is Outcome.FINISHED, "the gang never ran")
