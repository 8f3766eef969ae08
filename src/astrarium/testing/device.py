"""The conformance suite of the device level, which any iteration policy inherits:

    class TestMine(DevicePolicyConformance):
        policy = Mine

Books are validated after each step, and the GPU's memory is added up once more. Every run is then audited
from its trace: whose iterations ran, when, and for how long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.quantities import MILLISECOND, Time
from astrarium.core.trace import Step
from astrarium.device import contract
from astrarium.device.contract import IterationFailed, IterationFinished, IterationWanted, Job
from astrarium.device.ledger import JobRow, Outcome
from astrarium.device.level import LEVEL
from astrarium.device.state import DeviceState
from astrarium.device.world import DeviceWorld
from astrarium.testing.checks import ContractError, ensure, same
from astrarium.testing.conformance import BOUNDED, PolicyConformance
from astrarium.testing.played import UNKNOWN, Played, Timed

CAPACITY = 100  # bytes: small numbers read well when a failure is printed


@dataclass(frozen=True)
class Case:
    """Jobs that come to one GPU, and what turns cost there; times of *arrivals* rise."""

    arrivals: tuple[tuple[Time, Job], ...]
    capacity: int = CAPACITY
    switch: Time = 0
    pause: Time = 0

    def events(self) -> list[Timed]:
        return [(at, contract.JobArrived(job)) for at, job in self.arrivals]

    @property
    def jobs(self) -> list[Job]:
        return [job for _, job in self.arrivals]

    def fits(self, job: Job) -> bool:
        """Whether there is room for the job when it is alone."""
        return job.persistent + job.ephemeral <= self.capacity


def job(
    id_: int,
    iterations: int = 10,
    ephemeral: int = 40,
    persistent: int = 5,
    iteration: Time = 10 * MILLISECOND,
    priority: int = 0,
    demand: float = 1.0,
) -> Job:
    return Job(id_, f"job{id_}", persistent, ephemeral, iteration, iterations, priority, demand)


@st.composite
def jobs(draw: st.DrawFn, id_: int) -> Job:
    """About one in ten needs more memory than the GPU has."""
    return job(
        id_,
        draw(st.integers(1, 12)),
        draw(st.integers(1, 75)),
        draw(st.integers(0, 45)),
        draw(st.integers(1, 20)) * MILLISECOND,
        draw(st.integers(0, 2)),
        draw(st.sampled_from([0.3, 0.5, 1.0])),
    )


@st.composite
def cases(draw: st.DrawFn, pauses: bool = True) -> Case:
    """Jobs that arrive in a tenth of a second, several at one instant too."""
    instants = sorted(draw(st.lists(st.integers(0, 100), min_size=1, max_size=8)))
    arrivals = tuple((at * MILLISECOND, draw(jobs(id_))) for id_, at in enumerate(instants))
    switch = draw(st.sampled_from([0, MILLISECOND]))
    pause = draw(st.sampled_from([0, 0, MILLISECOND // 2, 7 * MILLISECOND])) if pauses else 0
    return Case(arrivals, CAPACITY, switch, pause)


class CheckedState(DeviceState):
    """Books that add the GPU's memory up by themselves: the safety condition, lane by lane."""

    def validate(self) -> None:
        super().validate()
        lanes = self.layout.lanes
        kept = sum(job.persistent for job in self.admitted.values())
        total = kept + sum(lane.size for lane in lanes)
        ensure(total <= self.layout.capacity, f"{total} of {self.layout.capacity} bytes are given out")
        members = [job for lane in lanes for job in lane.jobs]
        same("jobs in lanes", sorted(members), sorted(self.admitted))
        for lane in lanes:
            needed = max((self.admitted[job].ephemeral for job in lane.jobs), default=0)
            ensure(needed <= lane.size, f"an iteration needs {needed} bytes of {lane}")


class IdleError(ContractError):
    """Somebody wanted a turn and could have had it."""


class BusyState(CheckedState):
    """Books of a GPU on which nobody who could run is left waiting."""

    def validate(self) -> None:
        super().validate()
        for lane in self.layout.lanes:
            ready = self.ready & lane.jobs.keys()
            if ready and self.idle(lane.id):
                raise IdleError(f"jobs {sorted(ready)} want a turn, and their lane {lane.id} is idle")
        if self.waiting and not self.admitted:
            raise IdleError(f"jobs {sorted(self.waiting)} wait, and the GPU is empty")


@dataclass
class Auditor:
    """A second set of books, kept from the trace alone: whose iterations ran, and for how long."""

    runs: list[tuple[Time, int]] = field(default_factory=list)  # when each began, and whose it was
    running: set[int] = field(default_factory=set)
    done: dict[int, int] = field(default_factory=dict)
    service: dict[int, Time] = field(default_factory=dict)

    def hear(self, step: Step) -> None:
        for event in step.events:
            if isinstance(event, IterationFinished | IterationFailed) and event.run in self.running:
                self._ended(step.now, event)
        for action in step.actions:
            if isinstance(action, contract.RunIteration):
                busy = [run for run in self.running if self.runs[run][1] == action.job]
                ensure(not busy, f"at {step.now} ns: two iterations of job {action.job} at once")
                self.running.add(len(self.runs))
                self.runs.append((step.now, action.job))

    def _ended(self, now: Time, event: IterationFinished | IterationFailed) -> None:
        began, owner = self.runs[event.run]
        same("job of an iteration", event.job, owner)
        self.running.discard(event.run)
        if isinstance(event, IterationFinished):
            self.done[owner] = self.done.get(owner, 0) + 1
            self.service[owner] = self.service.get(owner, 0) + now - began

    def compare(self, row: JobRow) -> None:
        """Service is conserved: the books hold what was run, and no iteration is sooner than alone."""
        id_ = row.job.id
        done = self.done.get(row.job.id, 0)
        service = self.service.get(row.job.id, 0)
        same(f"iterations and service of job {id_}", (row.done, row.service), (done, service))
        ensure(service >= done * row.job.iteration, f"job {id_}: {done} iterations in {service} ns")
        if row.outcome is Outcome.FINISHED:
            same(f"iterations of job {id_}", done, row.job.iterations)


class DevicePolicyConformance(PolicyConformance[Case, DeviceState]):
    level = LEVEL
    conserves_work = (
        True  # as long as everybody comes straight back, no lane idles while a job of it is ready
    )

    def any_case(self) -> st.SearchStrategy[Case]:
        return cases()

    def busy_case(self) -> Case:
        many = ((MILLISECOND * id_, job(id_, 4 + id_ % 5, 10 + 7 * id_, demand=0.5)) for id_ in range(9))
        return Case(tuple(many), switch=MILLISECOND, pause=MILLISECOND // 2)

    def quiet_case(self) -> Case:
        return Case(())

    def unknown(self) -> list[Any]:
        return [
            IterationWanted(UNKNOWN),
            IterationFinished(UNKNOWN, UNKNOWN, 0),
            IterationFailed(UNKNOWN, UNKNOWN, "out of memory"),
            contract.NeedsChanged(UNKNOWN, 1, 1),
            contract.JobWithdrawn(UNKNOWN),
        ]

    def items(self, case: Case) -> set[int]:
        return {job.id for job in case.jobs}

    def make_state(self, case: Case) -> DeviceState:
        busy = self.conserves_work and not case.pause
        return (BusyState if busy else CheckedState)(case.capacity)

    def make_world(self, case: Case) -> DeviceWorld:
        return DeviceWorld(case.switch, pause=case.pause)

    def most_steps(self, case: Case) -> int:
        return super().most_steps(case) + self.steps_per_item * sum(job.iterations for job in case.jobs)

    def examine(self, played: Played[Case, DeviceState]) -> None:
        super().examine(played)
        auditor = Auditor()
        for step in played.steps:
            auditor.hear(step)
        for row in played.state.ledger.rows.values():
            auditor.compare(row)
            refused = row.outcome is Outcome.REFUSED
            fits = played.case.fits(row.job)
            ensure(not (refused and fits), f"{row.job} was refused, and fits: {row.reason}")
        ensure(not played.state.layout.lanes, f"lanes are left when all is over: {played.state.layout.lanes}")

    def undisturbed(self, played: Played[Case, DeviceState]) -> None:
        rows = played.state.ledger.rows.values()
        expected = [Outcome.FINISHED if played.case.fits(row.job) else Outcome.REFUSED for row in rows]
        same("outcomes", [row.outcome for row in rows], expected)

    @BOUNDED
    @given(case=cases(pauses=False))
    def test_no_lane_idles_while_a_job_of_it_is_ready(self, case: Case) -> None:
        self.needs(self.conserves_work, "it may leave the GPU idle")
        self.undisturbed(self.observe(case))

    def test_a_job_alone_runs_at_once_and_unbroken(self) -> None:
        played = self.observe(Case(((MILLISECOND, job(0, 20)),)))
        row = played.state.ledger.rows[0]
        same("its first and last instant", (row.started, row.ended), (MILLISECOND, 201 * MILLISECOND))

    def test_jobs_that_do_not_pause_keep_the_gpu_busy(self) -> None:
        self.needs(self.conserves_work, "it may leave the GPU idle")
        case = Case(tuple((0, job(id_, 5 + id_, ephemeral=90)) for id_ in range(4)))
        same("end", self.observe(case).end, sum(job.duration for job in case.jobs))

    def test_what_can_never_fit_is_refused_and_holds_up_nobody(self) -> None:
        case = Case(((0, job(0, ephemeral=CAPACITY)), (0, job(1)), (MILLISECOND, job(2, persistent=101))))
        played = self.observe(case)
        self.undisturbed(played)
        same("end", played.state.ledger.rows[1].ended, case.jobs[1].duration)

    def test_a_job_that_needs_the_whole_gpu_gets_its_turn(self) -> None:
        small = [(at * MILLISECOND, job(at, 8, ephemeral=20)) for at in range(1, 40)]
        case = Case(((0, job(0, 8)), *small, (40 * MILLISECOND, job(40, ephemeral=95))))
        self.undisturbed(self.observe(case))

    @BOUNDED
    @given(
        case=cases(),
        changes=st.lists(
            st.tuples(st.integers(0, 150), st.integers(0, 7), st.integers(0, 60), st.integers(1, 90)),
            min_size=1,
            max_size=6,
        ),
    )
    def test_needs_may_turn_out_otherwise(self, case: Case, changes: list[tuple[int, int, int, int]]) -> None:
        """A job for which there is no room any more ends; nobody else is harmed."""
        also = [(at * MILLISECOND, contract.NeedsChanged(*needs)) for at, *needs in changes]
        self._observe_disturbed(case, also, {id_ for _, id_, *_ in changes})

    @BOUNDED
    @given(case=cases(), every=st.integers(1, 9))
    def test_one_jobs_failure_is_its_own(self, case: Case, every: int) -> None:
        hit = set[int]()

        def sabotage(now: Time, at: Time, event: Any) -> Iterable[Timed]:
            if isinstance(event, IterationFinished) and event.run % every == 0:
                hit.add(event.job)
                event = IterationFailed(event.job, event.run, "out of memory")
            if not (isinstance(event, IterationWanted) and event.job in hit):  # it wants no other one
                yield at, event

        rows = self.observe(case, sabotage).state.ledger.rows
        failed = {id_ for id_, row in rows.items() if row.outcome is Outcome.FAILED}
        same("jobs that failed", failed, hit)

    @BOUNDED
    @given(
        case=cases(),
        gone=st.lists(st.tuples(st.integers(0, 150), st.integers(0, 7), st.sampled_from(["", "broken"]))),
    )
    def test_owners_may_change_their_minds(self, case: Case, gone: list[tuple[int, int, str]]) -> None:
        also = [(at * MILLISECOND, contract.JobWithdrawn(id_, error)) for at, id_, error in gone]
        self._observe_disturbed(case, also, {id_ for _, id_, _ in gone})

    def _observe_disturbed(self, case: Case, also: list[Timed], concerned: set[int]) -> None:
        """Those whom it does not concern end as they would have."""
        rows = self.observe(case, also=also).state.ledger.rows.values()
        for row in rows:
            if row.job.id not in concerned:
                expected = Outcome.FINISHED if case.fits(row.job) else Outcome.REFUSED
                same(f"outcome of job {row.job.id}", row.outcome, expected)
