"""Iteration policies in virtual time: who runs when, and that nothing vanishes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.engine import Engine
from astrarium.core.errors import InvalidAction
from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.device.contract import (
    Admit,
    Event,
    IterationFailed,
    Job,
    JobArrived,
    JobWithdrawn,
    RunIteration,
)
from astrarium.device.ledger import JobRow, Outcome
from astrarium.device.policies import iteration_policies
from astrarium.device.policies.turns import GRACE
from astrarium.device.record import summary
from astrarium.device.state import DeviceState
from astrarium.device.world import DeviceWorld
from astrarium.run.simulate import simulate

POLICIES = ("fair", "fifo", "pack", "priority", "srtf")
CAPACITY = 100


def job(id_: int, iterations: int = 10, ephemeral: int = 40, ms: int = 10, **more: float) -> Job:
    return Job(id_, f"job{id_}", 5, ephemeral, ms * MILLISECOND, iterations, **more)  # type: ignore[arg-type]


def played(
    policy: str, arrivals: Iterable[tuple[float, Job | Event]], world: DeviceWorld | None = None
) -> list[JobRow]:
    """Arrivals in seconds; the rows in order of the jobs' numbers."""
    state = DeviceState(CAPACITY)
    engine = Engine(state, iteration_policies.get(policy)(), validate=True)
    events = [
        (round(at * SECOND), JobArrived(what) if isinstance(what, Job) else what) for at, what in arrivals
    ]
    simulate(engine, events, world or DeviceWorld())
    assert not state.waiting
    assert not state.admitted
    assert not state.layout.lanes
    return [state.ledger.rows[id_] for id_ in sorted(state.ledger.rows)]


def seconds(rows: Iterable[JobRow]) -> list[float]:
    return [row.ended / SECOND for row in rows]


def test_all_policies_are_known_by_name() -> None:
    assert tuple(iteration_policies.names()) == POLICIES


def test_fifo_runs_one_job_after_the_other() -> None:
    rows = played("fifo", [(0.0, job(0)), (0.0, job(1, iterations=1)), (0.01, job(2, iterations=2))])
    assert seconds(rows) == [0.1, 0.11, 0.13]


def test_srtf_lets_a_shorter_job_by_at_the_next_boundary() -> None:
    rows = played("srtf", [(0.0, job(0)), (0.015, job(1, iterations=1)), (0.015, job(2, iterations=3))])
    assert seconds(rows) == [0.14, 0.03, 0.06]
    assert rows[0].switches == 1


def test_jobs_that_would_only_pause_leave_room_for_those_that_run() -> None:
    """There is memory for all of the long ones; then there would be none for the short one."""
    long = [(0.003 * id_, job(id_, iterations=100 + id_, ephemeral=60)) for id_ in range(8)]
    rows = played("srtf", [*long, (0.025, job(8, iterations=1, ephemeral=75))])
    assert rows[8].admitted == round(0.03 * SECOND)
    assert seconds(rows)[8] == 0.04
    assert all(row.admitted >= round(0.04 * SECOND) for row in rows[1:8])


def test_priority_is_by_importance_then_by_arrival() -> None:
    rows = played("priority", [(0.0, job(0)), (0.005, job(1, priority=1)), (0.006, job(2, priority=1))])
    assert seconds(rows) == [0.3, 0.11, 0.21]


def test_fair_gives_equal_service_from_when_a_job_came() -> None:
    rows = played("fair", [(0.0, job(0, 90)), (0.3, job(1, 45)), (0.6, job(2, 20))])
    # alone until 0.3; halves until 0.6; thirds until the last one has had its 20 iterations, and so on
    assert rows[2].ended / SECOND == pytest.approx(0.6 + 0.2 * 3, abs=0.03)
    assert rows[1].ended / SECOND == pytest.approx(1.2 + 2 * 0.1, abs=0.03)
    assert rows[0].ended / SECOND == pytest.approx(1.55, abs=0.01)


def test_pack_runs_lanes_side_by_side_as_far_as_the_gpu_can_compute() -> None:
    light = [(0.0, job(id_, demand=0.5)) for id_ in range(4)]
    two_at_once = played("pack", light)
    assert summary(two_at_once).makespan / SECOND == pytest.approx(0.2)
    heavy = [(0.0, job(id_, demand=1.0)) for id_ in range(4)]
    assert summary(played("pack", heavy)).makespan == summary(played("fifo", heavy)).makespan


def test_a_job_that_can_never_fit_is_refused_with_the_reason() -> None:
    rows = played("pack", [(0.0, job(0, ephemeral=96)), (0.0, job(1))])
    assert rows[0].outcome is Outcome.REFUSED
    assert rows[0].reason == "it needs 101 bytes, and the GPU has 100"
    assert rows[1].outcome is Outcome.FINISHED


def test_one_jobs_failure_is_its_own() -> None:
    rows = played("fair", [(0.0, job(0)), (0.0, job(1)), (0.005, IterationFailed(0, 0, "out of memory"))])
    assert (rows[0].outcome, rows[0].reason, rows[0].done) == (Outcome.FAILED, "out of memory", 0)
    assert (rows[1].outcome, rows[1].done) == (Outcome.FINISHED, 10)


def test_a_withdrawn_job_finishes_its_iteration_and_no_more() -> None:
    waiting = (0.005, JobWithdrawn(1))
    running = (0.025, JobWithdrawn(0))
    rows = played("fifo", [(0.0, job(0)), (0.0, job(1)), waiting, running])
    assert [row.outcome for row in rows] == [Outcome.WITHDRAWN] * 2
    assert (seconds(rows), rows[0].done) == ([0.03, 0.005], 3)


def test_switching_costs_what_the_world_says() -> None:
    arrivals = [(0.0, job(0, 5)), (0.0, job(1, 5))]
    rows = played("fair", arrivals, DeviceWorld(switch=MILLISECOND))
    assert summary(rows).makespan == 100 * MILLISECOND + sum(row.switches for row in rows) * MILLISECOND


def test_others_run_while_a_job_fetches_its_data() -> None:
    arrivals = [(0.0, job(0, 5)), (0.0, job(1, 5))]
    world = DeviceWorld(pause=10 * MILLISECOND)
    assert summary(played("fifo", arrivals, world)).makespan == 180 * MILLISECOND
    # the first is waited for a moment after its first iteration: nobody knows yet that it comes late; and
    # once again later, since it might have been late because others ran
    assert summary(played("srtf", arrivals, world)).makespan == 100 * MILLISECOND + 2 * GRACE


@pytest.mark.parametrize("action", [RunIteration(0), Admit(1), Admit(0, lane=7)])
def test_what_cannot_be_is_refused_by_the_books(action: RunIteration | Admit) -> None:
    state = DeviceState(CAPACITY)
    state.apply(0, JobArrived(job(0)))
    with pytest.raises(InvalidAction):
        state.commit(0, action)


def test_shorter_first_is_better_on_the_mean_and_packing_on_the_makespan() -> None:
    lengths = [100, 3, 50, 2, 1, 80, 4, 2]
    arrivals = [(0.01 * at, job(at, length, demand=0.5)) for at, length in enumerate(lengths)]
    summaries = {name: summary(played(name, arrivals)) for name in POLICIES}
    assert summaries["srtf"].mean_completion < 0.5 * summaries["fifo"].mean_completion
    assert summaries["srtf"].makespan == summaries["fifo"].makespan
    assert summaries["pack"].makespan < 0.75 * summaries["fifo"].makespan


arrived = st.tuples(
    st.integers(0, 300),
    st.integers(1, 6),
    st.integers(0, 110),
    st.integers(1, 30),
    st.integers(0, 3),
    st.floats(0.1, 1),
)


@pytest.mark.parametrize("policy", POLICIES)
@given(
    script=st.lists(arrived, max_size=12),
    trouble=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 12)), max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_whatever_comes_every_job_ends_exactly_once(
    policy: str, script: list[tuple[int, int, int, int, int, float]], trouble: list[tuple[int, int]]
) -> None:
    jobs = [
        (at / 1000, job(id_, iterations, ephemeral, ms, priority=priority, demand=demand))
        for id_, (at, iterations, ephemeral, ms, priority, demand) in enumerate(sorted(script))
    ]
    known = range(len(jobs))
    gone = [
        (at / 1000, JobWithdrawn(id_)) for at, id_ in trouble if id_ in known and at >= sorted(script)[id_][0]
    ]
    rows = played(policy, sorted([*jobs, *gone], key=lambda timed: timed[0]))
    assert len(rows) == len(jobs)
    for row in rows:
        assert row.outcome is not Outcome.OPEN
        if row.outcome is Outcome.FINISHED:
            assert row.done == row.job.iterations
            assert row.arrived <= row.admitted <= row.started < row.ended
            assert row.service >= row.job.duration
        elif row.outcome is Outcome.REFUSED:
            assert row.job.persistent + row.job.ephemeral > CAPACITY


def test_times_are_whole_nanoseconds() -> None:
    [row] = played("pack", [(0.0, job(0, 3, ms=7, demand=0.3))])
    assert isinstance(row.ended, int)
    assert isinstance(row.service, Time)
