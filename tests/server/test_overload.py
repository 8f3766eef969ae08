"""In overload: what calls wait unread, what answers slip, and how many calls may be open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic_ns
from types import SimpleNamespace

import pytest

from astrarium.core.units import MILLISECOND, SECOND
from astrarium.server.control.calls import STRETCH, OpenCallLimit, best_time
from astrarium.server.control.control_room import LARGEST, PUNCTUAL, Margins
from astrarium.server.http import express
from astrarium.server.http.express import ReadingLag
from astrarium.serving.contract import DynamicSpec, ModelSpec, latency_table
from tests.support.live_fakes import Stage

# Margins


def late_by(margins: Margins, stage: Stage, slips_ms: list[float]) -> None:
    flight = stage.first_flight()
    for slip in slips_ms:
        margins.answered(flight, flight.planned_end + round(slip * MILLISECOND))


def margin(margins: Margins, stage: Stage, spare_ms: float = 1000.0) -> float:
    """Milliseconds that a deadline so far away is brought forward."""
    now = stage.loop.now
    deadline = now + round(spare_ms * MILLISECOND)
    return (deadline - margins.planned(0, deadline, stage.control.setup, now)) / MILLISECOND


def test_a_margin_is_what_nine_of_ten_answers_keep() -> None:
    stage, margins = Stage(slo_ms=100), Margins(1)
    assert margin(margins, stage) == 0
    late_by(margins, stage, [tenth * 1.0 for tenth in range(10)] * 500)  # 0 to 9 ms later than planned
    assert margin(margins, stage) == pytest.approx(8.5, abs=1.0)
    late_by(margins, stage, [-1.0] * 2000)
    assert margin(margins, stage) == 0


def test_a_margin_follows_within_a_few_batches_and_has_a_limit() -> None:
    stage, margins = Stage(slo_ms=25), Margins(1)
    late_by(margins, stage, [5.0] * 64)
    assert margin(margins, stage) > 4
    late_by(margins, stage, [50.0] * 1000)
    assert margin(margins, stage) == pytest.approx(LARGEST * 25)
    assert PUNCTUAL < 1


def test_a_lone_call_is_tried_whatever_the_margin() -> None:
    """6 ms are what it needs; a call that has less is not given less than it has."""
    stage, margins = Stage(slo_ms=25), Margins(1)
    late_by(margins, stage, [50.0] * 1000)
    assert margin(margins, stage, spare_ms=9) == 3
    assert margin(margins, stage, spare_ms=6) == 0
    assert margin(margins, stage, spare_ms=2) == 0


def test_policies_are_handed_deadlines_with_the_margin_and_the_books_go_by_the_real_ones() -> None:
    stage = Stage(gpus=1, slo_ms=25)
    late_by(stage.control.margins, stage, [5.0] * 200)
    ticket = stage.call()
    assert stage.control.scheduler is not None
    [event] = stage.control.scheduler._driver._inbox
    handed = stage.control.scheduler.base + event.request.deadline
    assert ticket.deadline - handed == pytest.approx(5 * MILLISECOND, abs=MILLISECOND)


# Pace

SPEC = ModelSpec(0, "m", 25 * MILLISECOND, latency_table([size * MILLISECOND for size in (2, 2, 3, 4)]))
OBJECTIVE = 25 * MILLISECOND


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


# Reading


class Loop:
    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A lag with a clock and a loop of a test's own. A tick is 4 ms; `tells` is what the system tells."""
    stage = SimpleNamespace(now=SECOND, tells=0, loop=Loop())
    monkeypatch.setattr(express, "monotonic_ns", lambda: stage.now)
    monkeypatch.setattr(express, "get_running_loop", lambda: stage.loop)
    stage.lag = ReadingLag(SimpleNamespace(unread_for=lambda socket: stage.tells, TICK=4 * MILLISECOND))

    def turn(reads: int, took_ms: float, idle_ms: float = 0.0) -> list[tuple[float, float]]:
        stage.now += round(idle_ms * MILLISECOND)
        found = []
        for _ in range(reads):
            found.append(tuple(one / MILLISECOND for one in stage.lag.of(5, stage.now)))
            stage.now += round(took_ms / reads * MILLISECOND)
        [end] = stage.loop.soon
        stage.loop.soon.clear()
        end()
        return found

    stage.turn = turn
    return stage


def test_a_loop_that_waits_for_requests_reads_them_at_once(turns: SimpleNamespace) -> None:
    assert turns.turn(2, took_ms=1) == [(0, 0), (0.5, 0.5)]
    assert turns.turn(2, took_ms=1, idle_ms=3) == [(0, 0), (0.5, 0.5)]


def test_what_is_there_at_once_came_during_the_turn_before(turns: SimpleNamespace) -> None:
    turns.turn(2, took_ms=4, idle_ms=50)
    assert turns.turn(2, took_ms=2) == [(2, 4), (3, 5)]
    assert turns.turn(1, took_ms=1) == [(1, 2)]


def test_the_system_says_what_can_be_at_least_and_at_most(turns: SimpleNamespace) -> None:
    turns.turn(1, took_ms=30, idle_ms=50)
    assert turns.turn(1, took_ms=1) == [(8, 8)]
    turns.tells = 20 * MILLISECOND
    assert turns.turn(1, took_ms=1) == [(20, 20)]


def test_a_lag_needs_no_more_than_a_running_loop() -> None:
    async def read() -> tuple[int, int]:
        lag = ReadingLag(SimpleNamespace(unread_for=lambda socket: 0, TICK=4 * MILLISECOND))
        return lag.of(0, monotonic_ns())

    assert asyncio.run(read()) == (0, 0)
