"""In overload: what answers slip, and how many calls may be open."""

from __future__ import annotations

import pytest

from astrarium.core.errors import extension
from astrarium.core.units import MILLISECOND
from astrarium.server.control.admission import (
    BACKLOG,
    CLOSED,
    FULL,
    LARGEST,
    PUNCTUAL,
    STRETCH,
    TAKEN,
    TOO_LATE,
    Admission,
    OpenCallLimit,
    best_time,
)
from astrarium.serving.contract import DynamicSpec, GpuSpec, ModelSpec, Network, Setup, latency_table
from astrarium.serving.twin import native_setup
from tests.support.live_fakes import Stage

SPEC = ModelSpec(0, "m", 25 * MILLISECOND, latency_table([size * MILLISECOND for size in (2, 2, 3, 4)]))
OBJECTIVE = 25 * MILLISECOND

# Margins


def late_by(stage: Stage, slips_ms: list[float]) -> None:
    for slip in slips_ms:
        stage.control.admission.answered(0, round(slip * MILLISECOND))


def margin(stage: Stage, spare_ms: float = 1000.0) -> float:
    """Milliseconds that a deadline so far away is brought forward."""
    deadline = stage.loop.now + round(spare_ms * MILLISECOND)
    return float((deadline - stage.control.planned(0, deadline)) / MILLISECOND)


def test_a_margin_is_what_nine_of_ten_answers_keep() -> None:
    stage = Stage(slo_ms=100)
    assert margin(stage) == 0
    late_by(stage, [tenth * 1.0 for tenth in range(10)] * 500)  # 0 to 9 ms later than planned
    assert margin(stage) == pytest.approx(8.5, abs=1.0)
    late_by(stage, [-1.0] * 2000)
    assert margin(stage) == 0


def test_a_margin_follows_within_a_few_batches_and_has_a_limit() -> None:
    stage = Stage(slo_ms=25)
    late_by(stage, [5.0] * 64)
    assert margin(stage) > 4
    late_by(stage, [50.0] * 1000)
    assert margin(stage) == pytest.approx(LARGEST * 25)
    assert PUNCTUAL < 1


def test_a_lone_call_is_tried_whatever_the_margin() -> None:
    """6 ms are what it needs; a call that has less is not given less than it has."""
    stage = Stage(slo_ms=25)
    late_by(stage, [50.0] * 1000)
    assert margin(stage, spare_ms=9) == 3
    assert margin(stage, spare_ms=6) == 0
    assert margin(stage, spare_ms=2) == 0


def test_policies_are_handed_deadlines_with_the_margin_and_the_books_go_by_the_real_ones() -> None:
    stage = Stage(gpus=1, slo_ms=25)
    late_by(stage, [5.0] * 200)
    ticket = stage.call()
    assert stage.control.scheduler is not None
    [event] = stage.control.scheduler._driver._inbox
    handed = stage.control.scheduler.base + event.request.deadline
    assert ticket.deadline - handed == pytest.approx(5 * MILLISECOND, abs=MILLISECOND)


def test_the_native_admission_decides_as_the_one_in_python() -> None:
    """Of two GPUs; answers come late, calls queue up, one has too little time, and there are too many."""
    front, native = extension("_front"), extension("_native")
    assert front is not None
    setup = Setup((SPEC,), (GpuSpec(0), GpuSpec(1)), Network(control=MILLISECOND, response=MILLISECOND))
    ours, theirs = (
        Admission(setup, 60),
        front.Exchange(memoryview(bytearray(1 << 12)), 1, 60, 1).admission,
    )
    ours.plan(setup, 2, 0)
    theirs.plan(native_setup(native, setup), 2, 0)
    found = list[tuple[int, int]]()
    for step in range(200):
        now = step * MILLISECOND
        for one in (ours, theirs):
            one.close(step < 2)
            one.look(now)
        objective = (25, 3, 60)[step % 3] * MILLISECOND
        verdicts = {one.admit(0, objective, now, now) for one in (ours, theirs)}
        assert len(verdicts) == 1, step
        found.append((step, verdicts.pop()))
        for one in (ours, theirs):
            one.answered(0, (step % 7) * MILLISECOND)
        assert ours.open_of(0) == theirs.open_of(0)
        assert ours.margin(0) == theirs.margin(0)
    assert {verdict for _, verdict in found} == {TAKEN, CLOSED, TOO_LATE, FULL, BACKLOG}


# Pace


def test_the_best_time_is_a_share_of_the_best_batch() -> None:
    assert best_time(SPEC) == MILLISECOND
    dynamic = ModelSpec(0, "m", 1, latency_table([1]), DynamicSpec(1, 1.0, ()))
    assert best_time(dynamic) == 0
    assert not OpenCallLimit(dynamic, 1, 0).too_many(10**9, 1, 0)


def test_by_its_profile_a_model_answers_so_many() -> None:
    pace = OpenCallLimit(SPEC, 2, 0)
    assert not pace.too_many(50, OBJECTIVE, 0)
    assert pace.too_many(51, OBJECTIVE, 0)


def stretch(pace: OpenCallLimit, now: int, calls: int, answers: int) -> int:
    """A stretch of time in which so many calls are always open, and so many are answered; when it ends."""
    for _ in range(answers):
        pace.answered()
    pace.too_many(calls, OBJECTIVE, now + STRETCH // 2)
    pace.too_many(calls, OBJECTIVE, now + STRETCH)
    return now + STRETCH


def test_while_calls_queue_up_the_pace_at_which_they_are_answered_counts() -> None:
    """Promised are two a millisecond, answered is one: of 25 ms, calls queue for half."""
    pace, now = OpenCallLimit(SPEC, 2, 0), 0
    for _ in range(2):
        now = stretch(pace, now, calls=40, answers=100)
    assert not pace.too_many(12, OBJECTIVE, now)
    assert pace.too_many(13, OBJECTIVE, now)
    for _ in range(4):  # nobody queues any more: that is soon forgotten
        now = stretch(pace, now, calls=3, answers=10)
    assert not pace.too_many(50, OBJECTIVE, now)


def test_a_burst_is_no_queue_that_stands() -> None:
    pace, now = OpenCallLimit(SPEC, 2, 0), 0
    pace.too_many(0, OBJECTIVE, now)
    now = stretch(pace, now, calls=40, answers=10)
    assert not pace.too_many(50, OBJECTIVE, now)
