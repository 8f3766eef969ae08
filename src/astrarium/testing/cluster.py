"""The conformance suite of the cluster level, which any policy inherits:

    class TestMine(ClusterPolicyConformance):
        policy = Mine

Books are validated after each step: no GPU is leased twice, and no job runs on a GPU that is another app's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from astrarium.cluster import contract
from astrarium.cluster.contract import App, AppArrived, Job, Run, single
from astrarium.cluster.level import LEVEL
from astrarium.cluster.machines import Machine
from astrarium.cluster.policies import Allocator, Arbiter, ClusterPolicy
from astrarium.cluster.state import ClusterState, Outcome
from astrarium.cluster.world import ClusterWorld
from astrarium.core.quantities import SECOND
from astrarium.testing import played
from astrarium.testing.checks import ensure
from astrarium.testing.conformance import BOUNDED, PolicyConformance
from astrarium.testing.played import UNKNOWN, Timed

MINUTE = 60 * SECOND
MACHINES = (Machine(0, 4, 0, 2), Machine(1, 4, 0), Machine(2, 2, 1), Machine(3, 2, 1))


@dataclass(frozen=True)
class Case:
    """Machines that are there from the start, and what comes later."""

    later: tuple[Timed, ...]
    machines: tuple[Machine, ...] = MACHINES

    def events(self) -> list[Timed]:
        joined = [(0, contract.MachineJoined(machine)) for machine in self.machines]
        return sorted([*joined, *self.later], key=lambda timed: timed[0])

    @property
    def apps(self) -> list[App]:
        return [event.app for _, event in self.later if isinstance(event, AppArrived)]


Played: TypeAlias = played.Played[Case, ClusterState]


def play(
    allocator: Allocator,
    machines: Iterable[Machine],
    later: Iterable[Timed],
    world: ClusterWorld | None = None,
    state: ClusterState | None = None,
) -> Played:
    """Simulate apps on machines to the end, with the books validated after every step."""
    case = Case(tuple(later), tuple(machines))
    books = state or ClusterState()
    world = world or ClusterWorld(startup=SECOND)
    return played.play(case, Arbiter(allocator), books, world)


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
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(1, 7))
    later = ((draw(st.integers(0, 30)) * MINUTE, AppArrived(draw(apps(number)))) for number in range(count))
    return Case(tuple(later))


class ClusterPolicyConformance(PolicyConformance[Case, ClusterState]):
    level = LEVEL
    worked_off = ("unsettled",)  # by the arbiter, after the policy

    def any_case(self) -> st.SearchStrategy[Case]:
        return cases()

    def busy_case(self) -> Case:
        apps = (single(n, f"app {n}", (5 + 7 * n) * MINUTE, 1 + n % 5) for n in range(12))
        return Case(tuple((app.id * MINUTE, AppArrived(app)) for app in apps))

    def quiet_case(self) -> Case:
        joined = contract.MachineJoined(Machine(9, 8, 2))
        failed = contract.GpuFailed(5, "it broke")
        repaired = contract.GpuRepaired(5)
        machines = ((MINUTE, contract.MachineLost(0)), (2 * MINUTE, joined))
        return Case((*machines, (3 * MINUTE, failed), (4 * MINUTE, repaired)))

    def unknown(self) -> list[Any]:
        return [
            contract.AppWithdrawn(UNKNOWN),
            contract.JobFinished(UNKNOWN, 0, 1),
            contract.JobStopped(UNKNOWN, 0, 1, 0),
            contract.JobProgressed(UNKNOWN, 0, 1, 0),
            contract.LeaseExpired(UNKNOWN, (0,), 0),
            contract.MachineLost(UNKNOWN),
            contract.GpuFailed(UNKNOWN),
            contract.GpuRepaired(UNKNOWN),
        ]

    def items(self, case: Case) -> set[int]:
        return {app.id for app in case.apps}

    def make_state(self, case: Case) -> ClusterState:
        return ClusterState()

    def make_world(self, case: Case) -> ClusterWorld:
        return ClusterWorld(startup=SECOND)

    def decider(self, policy: Allocator) -> ClusterPolicy:
        return Arbiter(policy)

    def undisturbed(self, played: Played) -> None:
        rows = played.state.ledger.rows.values()
        lost = [row.app.name for row in rows if row.outcome is not Outcome.FINISHED]
        ensure(not lost, f"they did not finish, although all of them could: {lost}")

    @BOUNDED
    @given(case=cases())
    def test_gangs_run_whole(self, case: Case) -> None:
        sizes = {
            (app.id, job.id, phase): (job.least, job.most)
            for app in case.apps
            for phase, members in enumerate(app.phases)
            for job in members
        }
        for action in self.observe(case).actions:
            if isinstance(action, Run):
                known = [
                    size for (app, job, _), size in sizes.items() if (app, job) == (action.app, action.job)
                ]
                ensure(any(least <= len(action.gpus) <= most for least, most in known), f"{action}")

    @BOUNDED
    @given(case=cases(), at=st.integers(1, 60))
    def test_machines_may_die_and_join(self, case: Case, at: int) -> None:
        joined = contract.MachineJoined(Machine(9, 8, 2))
        self.observe(case, also=[(at * MINUTE, contract.MachineLost(0)), ((at + 5) * MINUTE, joined)])

    @BOUNDED
    @given(case=cases(), at=st.integers(1, 60), lost=st.booleans())
    def test_gpus_may_fail_and_be_repaired(self, case: Case, at: int, lost: bool) -> None:
        broken = range(1, 7)  # of the first two machines: most of both, and in the middle
        failed = [(at * MINUTE, contract.GpuFailed(gpu, "it broke", lost)) for gpu in broken]
        repaired = [((at + 9) * MINUTE, contract.GpuRepaired(gpu)) for gpu in broken]
        played = self.observe(case, also=[*failed, *repaired])
        for step in played.steps:
            if at * MINUTE <= step.now < (at + 9) * MINUTE:
                used = [gpu for action in step.actions if isinstance(action, Run) for gpu in action.gpus]
                ensure(not set(used) & set(broken), f"at {step.now} ns a job was to run on a broken GPU")
        self.undisturbed(played)

    @BOUNDED
    @given(case=cases(), at=st.integers(1, 60))
    def test_owners_may_change_their_minds(self, case: Case, at: int) -> None:
        rows = self.observe(case, also=[(at * MINUTE, contract.AppWithdrawn(0))]).state.ledger.rows
        ensure(rows[0].outcome in (Outcome.FINISHED, Outcome.WITHDRAWN), "it has neither ended nor gone")

    def test_an_app_alone_runs_at_once_and_unbroken(self) -> None:
        played = self.observe(Case(((MINUTE, AppArrived(single(0, "alone", 3600 * SECOND, 4))),)))
        row = played.state.ledger.rows[0]
        ensure((row.started, row.ended) == (MINUTE, MINUTE + 3601 * SECOND), f"{row.started}, {row.ended}")
        ensure(sum(isinstance(action, Run) for action in played.actions) == 1, "it was started again")

    def test_a_gang_that_is_larger_than_the_cluster_holds_up_nobody(self) -> None:
        huge = single(0, "huge", MINUTE, 64)
        small = single(1, "small", MINUTE, 2)
        rows = self.play(Case(((0, AppArrived(huge)), (0, AppArrived(small))))).state.ledger.rows
        ensure(rows[1].outcome is Outcome.FINISHED, "the small one never ran")

    def test_a_gang_gets_its_turn_while_small_jobs_keep_coming(self) -> None:
        crowd = [(n * MINUTE, AppArrived(single(n, f"{n}", 60 * MINUTE))) for n in range(1, 120)]
        gang = (30 * MINUTE, AppArrived(single(0, "gang", 60 * MINUTE, 8)))
        rows = self.observe(Case((*crowd, gang))).state.ledger.rows
        ensure(rows[0].outcome is Outcome.FINISHED, "the gang never ran")
