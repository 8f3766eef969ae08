"""In overload: what answers slip, and how many calls may be open."""

from __future__ import annotations

from typing import Any

import pytest

from astrarium._front import Verdict
from astrarium.core.optional import extension
from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.server.contract import Kind, Refused
from astrarium.server.control.calls.admission import RETRY_AFTER, admit
from astrarium.serving.contract import (
    DynamicSpec,
    GpuSpec,
    ModelSpec,
    Network,
    RequestArrived,
    Setup,
    latency_table,
)
from astrarium.serving.twin.native import native_setup
from tests.support.live_fakes import Stage

# kWidest and kStretch in native/exchange/admission.h
LARGEST = 0.4
STRETCH = 100 * MILLISECOND
SPEC = ModelSpec(0, "m", 25 * MILLISECOND, latency_table([size * MILLISECOND for size in (2, 2, 3, 4)]))
OBJECTIVE = 25 * MILLISECOND


def late_by(stage: Stage, slips_ms: list[float]) -> None:
    for slip in slips_ms:
        stage.coordinator.admission.answered(0, round(slip * MILLISECOND))


def margin(stage: Stage, spare_ms: float = 1000.0) -> float:
    """Milliseconds that a deadline so far away is brought forward: what a policy is told of such a call."""
    ticket = stage.call(timeout_ms=spare_ms)
    base = stage.began
    stage.wait(0)
    arrived = [event.request for event in stage.steps[-1].events if type(event) is RequestArrived]
    return float((ticket.deadline - base - arrived[-1].deadline) / MILLISECOND)


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


def test_a_lone_call_is_tried_whatever_the_margin() -> None:
    """6 ms are what it needs; a call that has less is not given less than it has."""
    stage = Stage(slo_ms=25)
    late_by(stage, [50.0] * 1000)
    assert margin(stage, spare_ms=9) == 3
    assert margin(stage, spare_ms=6) == 0
    assert margin(stage, spare_ms=2) == 0


def test_who_is_let_in_and_who_is_not() -> None:
    """Of two GPUs; calls queue up, one has too little time, and there are too many."""
    admission = admission_of(SPEC, most_open=60)
    now = 7 * MILLISECOND
    assert admission.admit(0, admission.cost(0), OBJECTIVE, now, now) == Verdict.CLOSED
    admission.close(False)
    cost = admission.cost(0)
    assert cost.needed == 4 * MILLISECOND
    assert admission.admit(0, cost, 3 * MILLISECOND, now, now) == Verdict.TOO_LATE
    assert admission.admit(0, cost, OBJECTIVE, now - 22 * MILLISECOND, now) == Verdict.TOO_LATE
    verdicts = [admission.admit(0, cost, OBJECTIVE, now, now) for _ in range(52)]
    assert verdicts == [Verdict.TAKEN] * 46 + [Verdict.BACKLOG] * 6
    assert [admission.admit(0, cost, 2 * OBJECTIVE, now, now) for _ in range(15)] == [Verdict.TAKEN] * 14 + [
        Verdict.FULL
    ]
    admission.ended(0, cost.weight, OBJECTIVE)
    assert admission.admit(0, cost, 2 * OBJECTIVE, now, now) == Verdict.TAKEN
    assert admission.open_of(0) == admission.open() == 60


def test_who_waits_longer_is_not_ahead_of_who_is_in_a_hurry() -> None:
    """The nearest deadline goes first; of calls with sixty times the time a part is due before."""
    admission = admission_of(SPEC)
    admission.close(False)
    cost = admission.cost(0)
    patient = 60 * OBJECTIVE
    assert [admission.admit(0, cost, patient, 0, 0) for _ in range(1000)] == [Verdict.TAKEN] * 1000
    verdicts = [admission.admit(0, cost, OBJECTIVE, 0, 0) for _ in range(60)]
    assert Verdict.TAKEN in verdicts[:5]
    assert Verdict.BACKLOG in verdicts[20:]
    assert admission.admit(0, cost, patient, 0, 0) == Verdict.TAKEN


def test_who_is_in_a_hurry_is_ahead_of_who_waits_longer() -> None:
    admission = admission_of(SPEC)
    admission.close(False)
    cost = admission.cost(0)
    admission.let_in(0, cost, OBJECTIVE, 100)
    assert admission.admit(0, cost, 2 * OBJECTIVE, 0, 0) == Verdict.BACKLOG
    assert admission.admit(0, cost, 3 * OBJECTIVE, 0, 0) == Verdict.TAKEN


def test_a_call_of_many_rows_counts_as_many_calls() -> None:
    admission = admission_of(SPEC)
    admission.close(False)
    cost = admission.cost(0, rows=3)
    assert cost.weight == 3 * admission.cost(0).weight
    verdicts = [admission.admit(0, cost, OBJECTIVE, 0, 0) for _ in range(20)]
    assert verdicts == [Verdict.TAKEN] * 16 + [Verdict.BACKLOG] * 4
    assert admission.open_of(0) == 16


def refusal(admission: Any, objective: Time = OBJECTIVE) -> tuple[Kind, str, float | None]:
    with pytest.raises(Refused) as caught:
        admit(admission, 0, "m", admission.cost(0), 0, objective, 0)
    return caught.value.kind, caught.value.reason, caught.value.retry_after


def test_python_has_a_kind_for_each_refusal_and_its_words_from_native_code() -> None:
    admission = admission_of(SPEC, most_open=50)
    said = "model m took no calls when this one had arrived: the server drains, or no worker is up"
    assert refusal(admission) == (Kind.UNAVAILABLE, said, RETRY_AFTER)
    admission.close(False)
    said = "model m cannot answer within 3 ms: one request alone takes 4 ms, and 0 ms had passed"
    assert refusal(admission, 3 * MILLISECOND) == (Kind.DEADLINE, said, None)
    admission.expect_worker(2 * SECOND)
    said = "model m: no worker is up; one is expected in 2 s"
    assert refusal(admission) == (Kind.UNAVAILABLE, said, RETRY_AFTER)
    admission.expect_worker(0)
    admission.let_in(0, admission.cost(0), OBJECTIVE, 49)
    said = "overloaded: model m has 49 calls open, more than can be answered in 25 ms"
    assert refusal(admission) == (Kind.OVERLOADED, said, RETRY_AFTER)
    admission.let_in(0, admission.cost(0), OBJECTIVE)
    said = "overloaded: 50 calls are open already, the most that may be"
    assert refusal(admission) == (Kind.OVERLOADED, said, RETRY_AFTER)


@pytest.mark.parametrize("verdict", [Verdict.TAKEN, Verdict.BEHIND, Verdict.TEXTS])
def test_the_admission_has_no_words_for_what_it_does_not_refuse(verdict: Verdict) -> None:
    admission = admission_of(SPEC)
    with pytest.raises(ValueError, match="verdict: expected one by which an admission refuses a call"):
        admission.words(verdict, 0, "m", admission.cost(0), OBJECTIVE, 0, 0)


def admission_of(spec: ModelSpec, gpus: int = 2, most_open: int = 1 << 20) -> Any:
    """The native admission, closed as it is at first."""
    front = extension("_front")
    native = extension("_simulator")
    assert front is not None
    delays = Network(control=MILLISECOND, response=MILLISECOND)
    setup = Setup((spec,), tuple(map(GpuSpec, range(gpus))), delays)
    admission = front.Exchange(memoryview(bytearray(1 << 12)), 1, most_open, 1).admission
    admission.plan(native_setup(native, setup), gpus, 0)
    return admission


class Calls:
    """Open calls of one model: what a further one would be told."""

    def __init__(self, spec: ModelSpec = SPEC) -> None:
        self.admission = admission_of(spec)
        self.cost = self.admission.cost(0)
        self.open = 0
        self.now = 0
        self.admission.close(False)

    def keep(self, calls: int) -> None:
        while self.open > calls:
            self.admission.ended(0, self.cost.weight, OBJECTIVE)
            self.open -= 1
        while self.open < calls:
            self.admission.let_in(0, self.cost, OBJECTIVE)
            self.open += 1

    def too_many(self, calls: int) -> bool:
        self.keep(calls)
        verdict = self.admission.judge(0, self.cost, OBJECTIVE, self.now, self.now)
        assert verdict in (Verdict.TAKEN, Verdict.BACKLOG)
        return bool(verdict == Verdict.BACKLOG)

    def stretch(self, calls: int, answers: int, lost: bool = False) -> None:
        """Let a stretch of time pass in which so many calls are always open, and so many are answered."""
        self.keep(calls)
        if lost:
            self.admission.count_lost(0)
        for _ in range(2):
            self.now += STRETCH // 2
            for _ in range(answers // 2):
                self.admission.count_answer(0, self.now)
            self.admission.judge(0, self.cost, OBJECTIVE, self.now, self.now)
            self.admission.look(self.now)


def test_a_model_whose_times_vary_promises_nothing() -> None:
    calls = Calls(ModelSpec(0, "m", 1, latency_table([1]), DynamicSpec(1, 1.0, ())))
    assert not calls.too_many(10_000)


def test_by_its_profile_a_model_answers_so_many() -> None:
    """The best batch takes a millisecond a request, there are two GPUs, and a tenth of 25 ms is spare."""
    calls = Calls()
    assert not calls.too_many(45)
    assert calls.too_many(46)


def test_while_calls_are_lost_the_pace_at_which_they_are_answered_counts() -> None:
    """Promised are two a millisecond, answered is one."""
    calls = Calls()
    for _ in range(2):
        calls.stretch(calls=40, answers=100, lost=True)
    assert not calls.too_many(22)
    assert calls.too_many(23)
    for _ in range(4):  # nobody is lost any more: that is soon forgotten
        calls.stretch(calls=3, answers=10)
    assert not calls.too_many(45)


def test_one_stretch_says_at_most_that_a_model_is_half_as_fast() -> None:
    """A host that stood still answers nobody; it goes on as before."""
    calls = Calls()
    calls.stretch(calls=40, answers=0)
    calls.stretch(calls=40, answers=0, lost=True)
    assert not calls.too_many(22)
    assert calls.too_many(23)


def test_who_waits_and_is_in_time_says_nothing_about_the_pace() -> None:
    """In a closed loop as many are open as are answered in time."""
    calls = Calls()
    for _ in range(4):
        calls.stretch(calls=40, answers=100)
    assert not calls.too_many(45)


def test_a_pace_that_was_reached_is_believed() -> None:
    """Answered are four a millisecond, twice what was promised, and still calls are refused."""
    calls = Calls()
    assert calls.too_many(60)
    calls.stretch(calls=60, answers=400)
    assert not calls.too_many(90)
    assert calls.too_many(91)


def test_a_burst_is_no_queue_that_stands() -> None:
    calls = Calls()
    calls.too_many(0)
    calls.stretch(calls=40, answers=10, lost=True)
    assert not calls.too_many(45)
