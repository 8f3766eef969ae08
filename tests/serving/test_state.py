"""The books of the serving level: events and actions in, exact rows out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.errors import BrokenBooks, InvalidAction
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import FOREVER
from astrarium.serving.contract import (
    EXPIRED,
    UNSERVED,
    BatchFailed,
    BatchFinished,
    BatchPreempted,
    Dispatch,
    Drop,
    GpuJoined,
    GpuLeft,
    ModelSpec,
    Network,
    Preempt,
    Request,
    RequestArrived,
    Setup,
    latency_table,
)
from astrarium.serving.ledger import Fate, Ledger, Outcome
from astrarium.serving.policies._rates import BIN, BINS, RateMeter
from astrarium.serving.state import ServingState
from astrarium.testing.serving.cases import cluster, linear_model

RESPONSE = 3


@pytest.fixture
def setup() -> Setup:
    models = [linear_model(1, 5, slo=40, max_batch=3), linear_model(2, 5, slo=40, max_batch=3)]
    return cluster(models, gpus=2, network=Network(control=1, response=RESPONSE), cost=4)


@pytest.fixture
def state(setup: Setup) -> ServingState:
    """Requests 0 to 3 of model 0 and request 4 of model 1 wait."""
    books = ServingState(setup)
    for id_ in range(5):
        books.apply(id_, RequestArrived(Request(id_, id_ // 4, id_, id_ + 40)))
    return books


def row(state: ServingState, request: int) -> tuple[Outcome, str, int, int]:
    ledger = state.ledger
    reason = ledger.reasons[ledger.reason[request]]
    return Outcome(ledger.outcome[request]), reason, ledger.done[request], ledger.batch[request]


def batch_row(state: ServingState, run: int) -> tuple[Fate, int, int]:
    ledger = state.ledger
    return Fate(ledger.batch_fate[run]), ledger.batch_started[run], ledger.batch_finished[run]


def test_a_finished_batch_answers_its_requests_after_the_response_delay(state: ServingState) -> None:
    state.commit(10, Dispatch(1, (0, 2)))
    state.apply(30, BatchFinished(1, 0, 11))
    assert row(state, 0) == (Outcome.IN_TIME, "", 30 + RESPONSE, 0)
    assert row(state, 1) == (Outcome.OPEN, "", -1, -1)
    assert batch_row(state, 0) == (Fate.FINISHED, 11, 30)
    assert (state.ledger.batch_gpu[0], state.ledger.batch_size[0], state.ledger.batch_dispatched[0]) == (
        1,
        2,
        10,
    )
    state.validate()


@pytest.mark.parametrize(("finished", "outcome"), [(37, Outcome.IN_TIME), (38, Outcome.LATE)])
def test_in_time_means_that_the_answer_is_there_by_the_deadline(
    state: ServingState, finished: int, outcome: Outcome
) -> None:
    state.commit(10, Dispatch(0, (0,)))
    state.apply(finished, BatchFinished(0, 0, 11))
    assert row(state, 0)[0] is outcome


def test_a_drop_ends_a_request_with_its_reason(state: ServingState) -> None:
    state.commit(10, Drop(1, "too cold"))
    assert row(state, 1) == (Outcome.DROPPED, "too cold", 10, -1)
    assert 1 not in state.waiting


def test_a_failed_batch_fails_its_requests_with_the_error(state: ServingState) -> None:
    state.commit(10, Dispatch(0, (0, 1)))
    state.apply(20, BatchFailed(0, 0, "out of memory"))
    assert row(state, 1) == (Outcome.FAILED, "out of memory", 20, 0)
    assert batch_row(state, 0) == (Fate.FAILED, 11, 20)
    assert state.gpus[0].idle


def test_a_gpu_runs_its_batches_in_order(state: ServingState) -> None:
    state.commit(10, Dispatch(0, (0,)))
    state.commit(10, Dispatch(0, (4,)))
    state.apply(15, BatchFinished(0, 1, 11))  # the second cannot end before the first
    assert [batch.run for batch in state.gpus[0].batches] == [0, 1]
    state.apply(17, BatchFinished(0, 0, 11))
    state.apply(24, BatchFinished(0, 1, 17))
    assert state.gpus[0].idle
    assert list(state.ledger.batch_model) == [0, 1]


def test_preempted_requests_wait_again_and_the_work_is_lost(state: ServingState) -> None:
    state.commit(10, Dispatch(0, (0, 1)))
    state.commit(14, Preempt(0))
    assert {0, 1} <= state.waiting.keys()
    assert not state.gpus[0].idle
    state.apply(18, BatchPreempted(0, 0, 11, 14))
    assert batch_row(state, 0) == (Fate.PREEMPTED, 11, 14)
    assert state.gpus[0].idle
    state.validate()


def test_the_end_of_a_preempted_batch_is_no_news(state: ServingState) -> None:
    state.commit(10, Dispatch(0, (0,)))
    state.commit(14, Preempt(0))
    state.apply(17, BatchFinished(0, 0, 11))
    assert 0 in state.waiting
    assert batch_row(state, 0)[0] is Fate.PREEMPTED


def test_a_gpu_that_leaves_while_it_recovers_stays_gone(state: ServingState) -> None:
    state.commit(10, Dispatch(0, (0,)))
    state.commit(14, Preempt(0))
    state.apply(15, GpuLeft(0))
    state.apply(18, BatchPreempted(0, 0, 11, 14))
    assert not state.gpus[0].idle
    assert batch_row(state, 0) == (Fate.PREEMPTED, 11, 14)


def test_a_gpu_with_nothing_or_a_queue_cannot_be_preempted(state: ServingState) -> None:
    with pytest.raises(InvalidAction, match="0 batches"):
        state.commit(10, Preempt(0))
    state.commit(10, Dispatch(0, (0,)))
    state.commit(10, Dispatch(0, (1,)))
    with pytest.raises(InvalidAction, match="2 batches"):
        state.commit(10, Preempt(0))


def test_a_gpu_that_leaves_fails_what_it_ran_and_what_queued_behind(state: ServingState) -> None:
    state.commit(10, Dispatch(0, (0,)))
    state.commit(10, Dispatch(0, (1,)))
    state.apply(14, GpuLeft(0))
    assert row(state, 0) == (Outcome.FAILED, "GPU 0 left", 14, 0)
    assert row(state, 1) == (Outcome.FAILED, "GPU 0 left", 14, 1)
    assert batch_row(state, 0) == (Fate.FAILED, 11, 14)  # three nanoseconds of work are lost
    assert batch_row(state, 1) == (Fate.FAILED, 14, 14)  # this one never started
    state.validate()


def test_an_absent_gpu_gets_no_batch_until_it_joins_again(state: ServingState) -> None:
    state.apply(10, GpuLeft(0))
    with pytest.raises(InvalidAction, match="no GPU 0"):
        state.commit(10, Dispatch(0, (0,)))
    state.apply(12, GpuJoined(0))
    state.commit(12, Dispatch(0, (0,)))
    assert not state.gpus[0].idle


@pytest.mark.parametrize(
    "news",
    [
        BatchFinished(0, 0, 11),
        BatchFailed(0, 0, "again"),
        BatchPreempted(0, 0, 11, 12),
        BatchFinished(1, 7, 0),
    ],
)
def test_news_about_a_batch_that_has_ended_changes_nothing(state: ServingState, news: object) -> None:
    state.commit(10, Dispatch(0, (0,)))
    state.apply(20, BatchFinished(0, 0, 11))
    before = (row(state, 0), batch_row(state, 0), set(state.waiting))
    state.apply(25, news)  # type: ignore[arg-type]
    assert (row(state, 0), batch_row(state, 0), set(state.waiting)) == before
    state.validate()


def test_joining_or_leaving_twice_is_harmless(state: ServingState) -> None:
    for event in (GpuJoined(0), GpuLeft(0), GpuLeft(0), GpuJoined(0), GpuJoined(0)):
        state.apply(10, event)
        state.validate()
    assert state.gpus[0].idle


def test_timers_leave_no_trace_in_the_books(state: ServingState) -> None:
    state.apply(10, TimerFired("wake"))
    state.commit(10, SetTimer(20, "wake"))
    assert len(state.waiting) == 5


@pytest.mark.parametrize(
    ("action", "complaint"),
    [
        (Dispatch(0, (0, 0)), "not waiting"),
        (Dispatch(0, (99,)), "not waiting"),
        (Dispatch(0, ()), "at least one"),
        (Dispatch(0, (3, 4)), "one model"),
        (Dispatch(0, (0, 1, 2, 3)), "at most 3"),
        (Dispatch(2, (0,)), "no GPU 2"),
        (Dispatch(-1, (0,)), "no GPU -1"),
        (Drop(99, EXPIRED), "not waiting"),
        ("dispatch!", "not an action"),
    ],
)
def test_an_impossible_action_is_refused(state: ServingState, action: object, complaint: str) -> None:
    with pytest.raises(InvalidAction, match=complaint):
        state.commit(10, action)  # type: ignore[arg-type]


def test_closing_leaves_nothing_open(state: ServingState) -> None:
    state.commit(10, Dispatch(0, (0,)))
    state.close(50)
    assert row(state, 0)[0] is Outcome.FAILED
    assert [row(state, id_)[:2] for id_ in range(1, 5)] == [(Outcome.DROPPED, UNSERVED)] * 4
    state.validate()


def test_validation_notices_a_request_that_vanished(state: ServingState) -> None:
    del state.waiting[3]
    with pytest.raises(BrokenBooks, match="5 requests arrived"):
        state.validate()


def test_validation_notices_a_request_in_two_places(state: ServingState) -> None:
    request = state.waiting[0]
    state.commit(10, Dispatch(0, (0,)))
    state.waiting[0] = request
    with pytest.raises(BrokenBooks, match="two places"):
        state.validate()


def test_validation_notices_a_mixed_batch(state: ServingState) -> None:
    state.commit(10, Dispatch(0, (0,)))
    state.gpus[0].batches[0].model = 1
    with pytest.raises(BrokenBooks, match="mixes models"):
        state.validate()


def test_the_ledger_keeps_each_reason_once() -> None:
    ledger = Ledger()
    for id_ in range(3):
        ledger.open_request(id_)
        ledger.end_request(id_, Outcome.DROPPED, EXPIRED, 1)
    assert ledger.reasons == ["", EXPIRED]


def test_the_largest_batch_within_a_budget() -> None:
    model = ModelSpec(0, "m", 100, latency_table([10, 20, 30]))
    budgets = [-1, 0, 9, 10, 29, 30, 10**9, FOREVER - 1]
    assert [model.largest_batch_within(budget) for budget in budgets] == [0, 0, 0, 1, 2, 3, 3, 3]
    assert model.max_batch == 3


def test_delays_add_up_by_request() -> None:
    assert Network(control=5, data=2).delay(4) == 13


def naive_window(times: list[int]) -> tuple[int, int]:
    """Count what lies in the last complete bins, from the bin of the first request on."""
    first = times[0] // BIN
    current = times[-1] // BIN
    oldest = max(first, current - BINS)
    return sum(oldest <= time // BIN < current for time in times), (current - oldest) * BIN


@settings(derandomize=True, deadline=None, database=None)
@given(gaps=st.lists(st.one_of(st.integers(0, BIN // 4), st.integers(0, 300 * BIN)), min_size=1, max_size=40))
def test_the_rate_meter_counts_like_a_list(gaps: list[int]) -> None:
    meter = RateMeter()
    times = list[int]()
    now = 0
    for gap in gaps:
        now += gap
        meter.roll(now)
        meter.count()
        times.append(now)
        assert meter.window() == naive_window(times)


def test_the_rate_meter_says_when_a_bin_is_complete() -> None:
    meter = RateMeter()
    assert [meter.roll(time) for time in (0, BIN - 1, BIN, BIN, 5 * BIN)] == [False, False, True, False, True]
