"""Jobs that turn out to need other memory than was known: charged where it fits, and else their own end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.engine import Engine
from astrarium.device.contract import (
    NEW_LANE,
    Admit,
    IterationFinished,
    IterationWanted,
    Job,
    JobArrived,
    NeedsChanged,
    RunIteration,
)
from astrarium.device.lanes import Layout
from astrarium.device.ledger import Outcome
from astrarium.device.policies import iteration_policies
from astrarium.device.state import DeviceState
from astrarium.device.world import DeviceWorld
from astrarium.run.simulate import simulate


def job(id_: int, persistent: int = 5, ephemeral: int = 20, iterations: int = 10) -> Job:
    return Job(id_, f"job{id_}", persistent, ephemeral, 10, iterations)


def admitted(*lanes: int, capacity: int = 100) -> DeviceState:
    """A job for each, in the lane of that number, which may be new."""
    state = DeviceState(capacity)
    for id_, lane in enumerate(lanes):
        state.apply(0, JobArrived(job(id_)))
        state.commit(0, Admit(id_, lane))
    return state


def sizes(state: DeviceState) -> list[tuple[int, int, int]]:
    return [(lane.id, lane.base, lane.size) for lane in state.layout.lanes]


def test_what_fits_is_charged() -> None:
    state = admitted(NEW_LANE, NEW_LANE)
    state.apply(1, NeedsChanged(0, 7, 30))
    assert state.layout.persistent == {0: 7, 1: 5}
    assert sizes(state) == [(0, 0, 30), (1, 30, 20)]
    assert state.admitted[0] == state.row(0).job == job(0, 7, 30)
    state.validate()


def test_a_lane_shrinks_with_the_needs_of_its_jobs() -> None:
    state = admitted(NEW_LANE, 0)
    state.apply(1, NeedsChanged(0, 5, 8))
    assert sizes(state) == [(0, 0, 20)]
    state.apply(1, NeedsChanged(1, 5, 9))
    assert sizes(state) == [(0, 0, 9)]


def test_what_does_not_fit_ends_that_job_and_nobody_else() -> None:
    state = admitted(NEW_LANE, 0)
    state.apply(1, NeedsChanged(1, 76, 20))
    assert state.row(1).outcome is Outcome.FAILED
    assert state.row(1).reason == (
        "it needs more than was known of it (76 bytes that stay, 20 for an iteration), "
        "and the GPU has 70 left"
    )
    assert set(state.admitted) == {0}
    state.validate()


def test_a_lane_that_cannot_push_others_moves_beyond_them() -> None:
    state = admitted(NEW_LANE, NEW_LANE)
    state.apply(1, IterationWanted(1))
    state.commit(1, RunIteration(1))
    state.apply(2, NeedsChanged(0, 5, 40))
    assert sizes(state) == [(1, 20, 20), (0, 40, 40)]
    state.validate()
    state.apply(3, NeedsChanged(0, 5, 61))  # now it is the last, and there are 10 bytes beyond it
    assert state.row(0).outcome is Outcome.FAILED


def test_in_the_middle_of_its_iteration_a_job_is_not_torn_from_its_lane() -> None:
    state = admitted(NEW_LANE)
    state.apply(1, IterationWanted(0))
    state.commit(1, RunIteration(0))
    state.apply(2, NeedsChanged(0, 5, 30))
    state.validate()
    assert state.row(0).outcome is Outcome.OPEN
    state.apply(3, IterationFinished(0, 0, 1))
    assert (state.row(0).outcome, state.row(0).done) == (Outcome.FAILED, 1)


def test_a_job_that_waits_waits_with_its_new_needs() -> None:
    state = DeviceState(100)
    state.apply(0, JobArrived(job(0)))
    state.apply(1, NeedsChanged(0, 60, 40))
    assert state.waiting[0] == job(0, 60, 40)
    state.apply(1, NeedsChanged(0, 60, 41))
    assert (state.row(0).outcome, state.waiting) == (Outcome.FAILED, {})


def test_late_news_of_a_job_that_has_ended_changes_nothing() -> None:
    state = admitted(NEW_LANE)
    state.apply(1, NeedsChanged(0, 500, 20))
    state.apply(2, NeedsChanged(0, 5, 20))
    assert state.row(0).outcome is Outcome.FAILED
    assert not state.layout.persistent


def test_a_change_for_which_there_is_no_room_changes_nothing() -> None:
    layout = Layout(100)
    layout.open(0, 5, 20)
    layout.open(1, 5, 20)
    assert not layout.change(0, 5, 71)
    assert not layout.change(0, 60, 20)
    assert [(lane.base, lane.size, lane.jobs) for lane in layout.lanes] == [
        (0, 20, {0: 20}),
        (20, 20, {1: 20}),
    ]
    assert layout.persistent == {0: 5, 1: 5}


changes = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 5), st.integers(0, 60), st.integers(0, 90)), max_size=12
)


@pytest.mark.parametrize("policy", iteration_policies.names())
@given(script=changes)
def test_whatever_changes_when_the_books_stay_safe_and_every_job_ends(
    policy: str, script: list[tuple[int, int, int, int]]
) -> None:
    state = DeviceState(100)
    engine = Engine(state, iteration_policies.get(policy)(), validate=True)
    arrivals = [(10 * id_, JobArrived(job(id_, ephemeral=10 + 10 * id_))) for id_ in range(6)]
    news = [(60 + at, NeedsChanged(*needs)) for at, *needs in script]
    simulate(engine, sorted([*arrivals, *news], key=lambda timed: timed[0]), DeviceWorld())
    assert len(state.ledger.rows) == 6
    assert all(row.outcome is not Outcome.OPEN for row in state.ledger.rows.values())
