"""The coordinator in virtual time: what becomes of calls when all is well, and when it is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.core.trace import Step
from astrarium.run.replay import replay
from astrarium.server.control.accounts.causes import MODEL_ERROR, POLICY_ERROR, WORKER_LOST
from astrarium.server.control.calls.ticket import Ticket
from astrarium.server.control.workers.stuck_workers import LATE_FOR, LOOK_EVERY
from astrarium.server.control.workers.worker_entry import FIRST_PAUSE, LONGEST_PAUSE
from astrarium.serving.contract import Action, BatchPreempted, Dispatch, Drop, Preempt
from astrarium.serving.ledger import Outcome
from astrarium.serving.live.messages import (
    BatchCancelled,
    CancelBatch,
    LoadModel,
    ModelLoaded,
    RunBatch,
    unpacked,
)
from astrarium.serving.live.process import Death
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.state import ServingState
from tests.support.live_fakes import ECHO, KILLED, NATIVE, PATHS, Stage, on_path


@pytest.fixture(autouse=True, params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return on_path(request, monkeypatch)


def test_a_call_is_answered_in_time_and_its_memory_given_back() -> None:
    stage = Stage()
    ticket = stage.call()
    stage.wait(30)
    assert (ticket.outcome, ticket.cause) == (Outcome.IN_TIME, "")
    stage.check_the_accounts()


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("models", [1, 3])
def test_on_idle_gpus_a_lone_call_is_computed_at_once_by_default(gpus: int, models: int) -> None:
    """A batch of one takes 6 ms; the policy that a scenario has by default does not hold it back."""
    stage = Stage(gpus, models, policy="astrarium", slo_ms=50)
    for number in range(30):
        ticket = stage.call(number % models)
        stage.wait(6)
        assert stage.ended[-1] is ticket
        stage.wait(74)
    stage.check_the_accounts()


def test_a_call_of_several_rows_fills_one_batch_and_ends_once() -> None:
    stage = Stage(gpus=1)
    ticket = stage.call(rows=3)
    stage.wait(30)
    (batch,) = [order for _, order in stage.workers.orders if isinstance(order, RunBatch)]
    members = unpacked(batch.members)
    assert [(member.rows, member.row) for member in members] == [(3, 0), (3, 1), (3, 2)]
    assert len({member.reply for member in members}) == 3
    assert stage.ended == [ticket]
    stage.check_the_accounts()


def test_a_killed_worker_costs_nothing_where_the_deadline_allows_another_try() -> None:
    stage = Stage(gpus=2)
    ticket = stage.call()
    stage.wait(2)
    stage.workers.kill(ticket_gpu(stage))
    stage.wait(30)
    assert (ticket.outcome, ticket.retried) == (Outcome.IN_TIME, True)
    assert stage.coordinator.accounts.models[0].retried == 1
    stage.check_the_accounts()


def test_a_request_is_tried_again_only_once() -> None:
    stage = Stage(gpus=2, slo_ms=60)
    ticket = stage.call()
    stage.wait(2)
    stage.workers.kill(ticket_gpu(stage))
    stage.wait(2)
    stage.workers.kill(ticket_gpu(stage))
    stage.wait(30)
    assert (ticket.outcome, ticket.cause) == (Outcome.FAILED, WORKER_LOST)
    assert "killed by SIGKILL" in ticket.reason
    stage.check_the_accounts()


def test_a_killed_worker_fails_what_it_is_too_late_to_try_again() -> None:
    stage = Stage(gpus=1, slo_ms=10)
    ticket = stage.call()
    stage.wait(5)
    stage.workers.kill(0)
    stage.wait(1)
    assert (ticket.outcome, ticket.cause) == (Outcome.FAILED, WORKER_LOST)
    stage.check_the_accounts()


def test_a_dead_worker_comes_back_with_its_models_after_a_pause_that_grows() -> None:
    stage = Stage(gpus=1)
    pauses = []
    for _ in range(9):
        stage.workers.kill(0)
        stage.wait(0)
        died = stage.loop.now
        while not stage.workers.alive[0]:
            stage.wait(10)
        pauses.append(stage.loop.now - died)
        loads = sum(isinstance(order, LoadModel) for _, order in stage.workers.orders)
    assert pauses[0] == FIRST_PAUSE
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE
    stage.wait(100)
    assert sum(isinstance(order, LoadModel) for _, order in stage.workers.orders) == loads + 1
    ticket = stage.call()
    stage.wait(30)
    assert ticket.outcome is Outcome.IN_TIME
    stage.check_the_accounts()


def test_a_worker_that_holds_a_batch_too_long_is_killed() -> None:
    stage = Stage(gpus=1)
    stage.workers.stuck = {0}
    ticket = stage.call()
    looks_until_killed(stage)
    stage.wait(1)
    assert (ticket.outcome, ticket.cause) == (Outcome.FAILED, WORKER_LOST)
    assert "stuck" in ticket.reason
    stage.check_the_accounts()


def test_a_worker_that_was_stopped_is_killed_sooner() -> None:
    looks = []
    for stopped in (set[int](), {0}):
        stage = Stage(gpus=1)
        stage.workers.stuck = {0}
        stage.workers.stopped = stopped
        stage.call()
        looks.append(looks_until_killed(stage))
    assert looks == [11, 4]


def looks_until_killed(stage: Stage, gap_ms: float = 100) -> int:
    """How many looks *gap_ms* apart pass before the only worker is taken for stuck."""
    for look in range(100):
        stage.wait(gap_ms)
        stage.fleet.check_for_stuck()
        if not stage.workers.alive[0]:
            return look
    raise AssertionError("it was never killed")


def test_a_pause_of_the_frontend_is_not_counted_against_workers() -> None:
    """The news of a batch lies unheard while the frontend is stopped; several pauses add up to nothing."""
    stage = Stage(gpus=1)
    stage.fleet.check_for_stuck()
    for _ in range(6):
        stage.call()
        stage.wait(0)
        stage.loop.now += 1500 * MILLISECOND  # nothing is heard meanwhile
        stage.fleet.check_for_stuck()  # before the news, as the loop may have it
        stage.wait(100)
        stage.fleet.check_for_stuck()
        assert stage.scheduler.oldest(0) is None
    assert stage.fleet.restarts == 0


def test_a_policy_that_thinks_is_not_counted_against_workers() -> None:
    """The scheduler hears nobody while it waits for a policy in Python: a batch may have ended meanwhile."""
    stage = Stage(gpus=1)
    stage.workers.stuck = {0}
    stage.call()
    stage.wait(0)
    stage.scheduler.thinking_since = stage.loop.now
    for _ in range(600):
        stage.loop.now += 100 * MILLISECOND
        stage.fleet.check_for_stuck()
    assert stage.fleet.restarts == 0
    stage.scheduler.thinking_since = 0
    for _ in range(30):
        stage.wait(100)
        stage.fleet.check_for_stuck()
    assert stage.fleet.restarts == 1


def test_a_worker_is_found_stuck_beside_a_policy_that_thinks_most_of_the_time() -> None:
    stage = Stage(gpus=1)
    stage.workers.stuck = {0}
    stage.call()
    stage.wait(0)
    for _ in range(30):
        stage.wait(100)
        stage.scheduler.thinking_since = stage.loop.now - 50 * MILLISECOND  # there was a pause before
        stage.fleet.check_for_stuck()
        stage.scheduler.thinking_since = 0
    assert stage.fleet.restarts == 1


def test_a_policy_that_does_not_come_back_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(gpus=1)
    stage.wait(10_000)
    assert stage.coordinator.thinking_for() == 0
    stage.scheduler.thinking_since = stage.loop.now - 6000 * MILLISECOND
    for _ in range(2):
        stage.coordinator.sync()
    assert stage.coordinator.thinking_for() == 6000 * MILLISECOND
    assert [
        record.getMessage() for record in caplog.records if "has thought for 5 s" in record.getMessage()
    ] == [f"the policy {stage.coordinator.plan.policy_name} has thought for 5 s: calls wait for it"]


def test_no_worker_is_pinged_while_nobody_hears_its_answer() -> None:
    stage = Stage(gpus=1)
    assert stage.fleet.idle() == [0]
    stage.scheduler.thinking_since = stage.loop.now - 1
    assert stage.fleet.idle() == []


def test_pauses_in_the_middle_of_one_batch_do_not_add_up() -> None:
    stage = Stage(gpus=1)
    stage.workers.slower = 5000 / 6  # the batch takes 5 s, most of which the frontend is not there
    stage.call()
    stage.fleet.check_for_stuck()
    for _ in range(3):
        stage.loop.now += 1500 * MILLISECOND
        stage.fleet.check_for_stuck()
        stage.wait(100)
        stage.fleet.check_for_stuck()
    stage.wait(300)
    assert stage.scheduler.oldest(0) is None
    assert stage.fleet.restarts == 0


def test_news_that_was_not_heard_yet_when_the_limit_was_reached_saves_its_worker() -> None:
    stage = Stage(gpus=1)
    stage.workers.slower = 1050 / 6  # the batch takes 1.05 s; the limit is 1 s
    stage.call()
    for _ in range(10):
        stage.wait(100)
        stage.fleet.check_for_stuck()
    stage.loop.now += 150 * MILLISECOND  # its news has come, and the look is before it
    stage.fleet.check_for_stuck()
    stage.wait(100)
    stage.fleet.check_for_stuck()
    assert stage.fleet.restarts == 0


def test_a_stuck_worker_is_killed_on_a_starved_machine_too_but_later() -> None:
    quick, starved = (Stage(gpus=1) for _ in range(2))
    for stage, gap in ((quick, 100), (starved, 400)):
        stage.workers.stuck = {0}
        stage.call()
        looks = looks_until_killed(stage, gap)
        assert (looks + 1) * gap >= 1000
        stage.wait(0)
    assert quick.fleet._entries[0].pause == 0
    assert starved.fleet._entries[0].pause == 300 * MILLISECOND  # as late as the frontend was


def test_a_late_look_is_forgotten_after_a_while() -> None:
    stage = Stage(gpus=1)
    stage.fleet.check_for_stuck()
    stage.wait(5000)
    stage.fleet.check_for_stuck()
    for _ in range(LATE_FOR // LOOK_EVERY + 1):
        stage.wait(100)
        stage.fleet.check_for_stuck()
    stage.workers.kill(0)
    stage.wait(0)
    assert stage.fleet._entries[0].pause == FIRST_PAUSE


def test_a_model_that_raises_fails_its_batch_with_its_words() -> None:
    stage = Stage(gpus=1)
    stage.workers.broken = {0}
    ticket = stage.call()
    stage.wait(30)
    assert (ticket.outcome, ticket.cause, ticket.reason) == (Outcome.FAILED, MODEL_ERROR, "ValueError: no")
    stage.check_the_accounts()


def test_what_cannot_be_in_time_is_dropped_with_the_policys_reason() -> None:
    stage = Stage(gpus=1)
    calls = [stage.call() for _ in range(200)]
    stage.wait(100)
    dropped = [ticket for ticket in calls if ticket.outcome is Outcome.DROPPED]
    assert dropped
    assert {ticket.cause for ticket in dropped} <= {"expired", "sacrificed"}
    stage.check_the_accounts()


@pytest.mark.in_python
def test_a_policy_that_fails_is_replaced_and_its_requests_are_told() -> None:
    stage = Stage(gpus=1)

    def decide(now: int, events: Sequence[Any], state: ServingState) -> Iterator[Dispatch]:
        yield Dispatch(0, (next(iter(state.waiting)),))
        raise RuntimeError("a bug")

    stage.policy.decide = decide
    calls = [stage.call(), stage.call()]
    stage.wait(1)
    assert {ticket.cause for ticket in calls} == {POLICY_ERROR}
    assert {ticket.reason for ticket in calls} == {"the policy eager failed: RuntimeError: a bug"}
    assert stage.coordinator.policy_errors == 1
    later = stage.call()
    stage.wait(30)
    assert later.outcome is Outcome.IN_TIME
    stage.check_the_accounts()


def test_a_new_scheduler_takes_over_what_waits_and_lets_run_what_runs() -> None:
    stage = Stage(gpus=1, slo_ms=60)
    running = stage.call()
    stage.wait(1)
    waiting = stage.call()
    stage.wait(1)
    stage.coordinator.begin(stage.plan.setup)
    stage.wait(60)
    assert running.outcome is waiting.outcome is Outcome.IN_TIME
    batches = [order for _, order in stage.workers.orders if isinstance(order, RunBatch)]
    assert len(batches) == 2
    stage.check_the_accounts()


def test_a_worker_that_dies_between_two_schedulers_loses_nothing() -> None:
    stage = Stage(gpus=2, slo_ms=60)
    calls = [stage.call() for _ in range(2)]
    stage.wait(1)
    stage.coordinator.begin(stage.plan.setup)
    stage.workers.kill(0)
    stage.workers.kill(1)
    stage.wait(500)
    assert len(stage.ended) == len(calls)
    stage.check_the_accounts()


def test_closing_ends_everything_that_is_open() -> None:
    stage = Stage(gpus=1)
    calls = [stage.call() for _ in range(20)]
    stage.wait(1)
    stage.coordinator.close()
    assert len(stage.ended) == len(calls)
    stage.workers.kill(0)
    stage.wait(1)
    stage.check_the_accounts()


def test_closing_ends_calls_whose_inputs_are_still_being_made() -> None:
    stage = Stage(gpus=1)
    ticket = stage.call(made=False)
    stage.wait(1)
    stage.coordinator.close()
    assert stage.ended == [ticket]
    ticket.inputs_ready = True
    stage.coordinator.open_calls.inputs_made()  # too late: it has ended
    assert stage.ended == [ticket]
    stage.check_the_accounts()


def test_a_call_waits_for_its_inputs_and_is_then_answered() -> None:
    stage = Stage(gpus=1)
    ticket = stage.call(made=False)
    stage.wait(2)
    assert not stage.workers.batches()
    ticket.inputs_ready = True
    stage.coordinator.open_calls.inputs_made()
    stage.wait(30)
    assert ticket.outcome is Outcome.IN_TIME
    stage.check_the_accounts()


@pytest.mark.in_python
def test_preempted_requests_are_answered_by_another_batch() -> None:
    stage = Stage(gpus=1, models=2, policy="shepherd", slo_ms=200)
    calls = []
    for model in (0, 0, *[1] * 16):
        stage.wait(0.3)
        calls.append(stage.call(model))
    stage.wait(1000)
    assert len(stage.ended) == len(calls)
    stage.check_the_accounts()


@pytest.mark.in_python
def test_a_recording_replays_with_the_same_decisions() -> None:
    stage = Stage(gpus=2, policy="astrarium")
    for turn in range(60):
        stage.call()
        stage.wait(1 + turn % 3)
    stage.workers.kill(0)
    stage.wait(100)
    steps = [step for step in stage.steps if isinstance(step, Step)]
    assert any(step.actions for step in steps)
    fresh = Engine(ServingState(stage.plan.setup), stage.plan.new_policy(stage.plan.setup))
    assert replay(fresh, steps) is None


HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "call",
                "call",
                "call",
                "call",
                "rows",
                "rows",
                "tight",
                "kill",
                "crash",
                "poison",
                "break",
                "mend",
                "renew",
                "stick",
            ]
        ),
        st.integers(0, 2),
        st.integers(0, 12),
    ),
    max_size=60,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(which=st.integers(0, len(NATIVE)), happenings=HAPPENINGS)
def test_whatever_happens_every_call_ends_exactly_once(
    path: str, which: int, happenings: list[tuple[str, int, int]]
) -> None:
    known = NATIVE if path == "native" else [*NATIVE, "shepherd"]
    stage = Stage(gpus=3, models=3, policy=known[which % len(known)], slo_ms=40, applications=which % 3)
    calls = play(stage, happenings)
    assert len(stage.ended) == len(calls)
    stage.check_the_accounts()
    assert_all_gpus_serve_again(stage)


def play(stage: Stage, happenings: list[tuple[str, int, int]], applications: int = 0) -> list[Ticket]:
    """Let all this happen, and wait until everything has ended."""
    calls: list[Ticket] = []
    for what, which, pause in happenings:
        match what:
            case "call" | "rows" | "tight":
                rows = 3 if what == "rows" else 1
                timeout = 8 if what == "tight" else None
                application = len(calls) % applications if applications and which % 2 == 0 else 0
                calls.append(stage.call(which, rows, timeout, application=application))
            case "kill":
                stage.workers.kill(which)
            case "crash":
                stage.workers.crash(which)
            case "poison":
                stage.workers.deadly[which] = Death("exited with status 1")
            case "break":
                stage.workers.broken ^= {which}
            case "stick":
                stage.workers.stuck ^= {which}
            case "mend":
                stage.workers.broken, stage.workers.stuck = set(), set()
                stage.workers.deadly.clear()
            case "renew":
                stage.coordinator.begin(stage.plan.setup)
        stage.wait(pause)
    for _ in range(40):
        stage.wait(100)
        stage.fleet.check_for_stuck()
    stage.wait(2 * SECOND / MILLISECOND)
    return calls


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    policy=st.sampled_from(NATIVE),
    gpus=st.integers(1, 3),
    applications=st.integers(0, 3),
    happenings=HAPPENINGS,
)
@pytest.mark.in_python  # it runs both by itself
def test_a_policy_and_its_twin_send_the_same_batches_and_end_calls_alike(
    policy: str, gpus: int, applications: int, happenings: list[tuple[str, int, int]]
) -> None:
    happenings = [
        (what, which % gpus if what in ("kill", "crash") else which, pause)
        for what, which, pause in happenings
    ]
    stories = []
    for Stage.natively in (False, True):
        stage = Stage(gpus, 3, policy, 40, applications=applications)
        stories.append(story(stage, play(stage, happenings, applications)))
    assert stories[0] == stories[1]


@pytest.mark.parametrize("policy", ["astrarium", "orloj"])
@pytest.mark.parametrize("gpus", [1, 3])
@pytest.mark.in_python  # it runs both by itself
def test_a_policy_and_its_twin_learn_alike(monkeypatch: pytest.MonkeyPatch, policy: str, gpus: int) -> None:
    """Seconds of calls from three applications, faster and faster; what is measured changes decisions."""
    stories = {}
    random = Random(1)
    pauses = [random.expovariate(0.3 * gpus + number / 1500) for number in range(1500 * gpus)]
    for way in ("python", "native", "untaught"):
        monkeypatch.setattr(Stage, "natively", way == "native")
        stage = Stage(gpus, models=2, policy=policy, slo_ms=60, applications=3)
        stage.workers.tells_own_times = way != "untaught"
        calls = []
        for number, pause in enumerate(pauses):
            calls.append(stage.call(number % 2, application=number // 2 % 3 if number % 2 == 0 else 0))
            stage.wait(pause)
        stage.wait(1000)
        stage.check_the_accounts()
        stories[way] = story(stage, calls)
    assert stories["native"] == stories["python"] != stories["untaught"]
    assert len({len(blocks) for *_, blocks in stories["python"][0]}) > 3
    assert len({end for end, *_ in stories["python"][1]}) > 1


def story(stage: Stage, calls: list[Ticket]) -> tuple[list[Any], list[Any]]:
    """The batches that were sent, and how calls ended; whoever reads the clock tells who was late."""
    orders = [(gpu, order) for gpu, order in stage.workers.orders if isinstance(order, RunBatch)]
    batches = [(gpu, order.model, order.start, _blocks(order)) for gpu, order in orders]
    answered = {Outcome.LATE: Outcome.IN_TIME}
    ends = [(answered.get(call.outcome, call.outcome), call.cause, call.retried) for call in calls]
    return batches, ends


def _blocks(order: RunBatch) -> list[tuple[int, int]]:
    return [(member.block, member.row) for member in unpacked(order.members)]


def assert_all_gpus_serve_again(stage: Stage) -> None:
    """Also for a scheduler that begins now: no GPU is forgotten."""
    stage.workers.broken, stage.workers.stuck = set(), set()
    stage.workers.deadly.clear()
    stage.wait(LONGEST_PAUSE / MILLISECOND + 100)
    stage.coordinator.begin(stage.plan.setup)
    before = len(stage.workers.orders)
    calls = [stage.call(model) for model in range(3)]
    stage.wait(100)
    assert {ticket.outcome for ticket in calls} == {Outcome.IN_TIME}
    assert {stage.workers.gpu_of[worker] for worker, _ in stage.workers.orders[before:]} == {0, 1, 2}


def ticket_gpu(stage: Stage) -> int:
    """Where the last batch went."""
    return next(worker for worker, order in reversed(stage.workers.orders) if isinstance(order, RunBatch))


def preempt(stage: Stage) -> Ticket:
    """Let the policy cancel the batch of GPU 0; return the call that it is told of by that, and forgets."""
    policy = stage.policy
    decide = stage.policy.decide

    def once(now: int, events: Sequence[Any], state: ServingState) -> Iterator[Action]:
        policy.decide = decide
        yield Preempt(0)

    policy.decide = once
    ticket = stage.call()
    stage.wait(0)
    assert isinstance(stage.workers.orders[-1][1], CancelBatch) or not stage.workers.batches()
    return ticket


@pytest.mark.in_python
def test_a_batch_that_ended_before_the_order_to_stop_it_came_frees_its_gpu() -> None:
    stage = Stage(gpus=1, policy="shepherd", slo_ms=200)
    ticket = stage.call()
    stage.wait(2)
    preempt(stage)
    stage.workers._cancelled.clear()  # the worker was done already: it knows nothing of the order
    stage.wait(10)
    assert stage.scheduler.oldest(0) is None
    assert ticket.outcome is Outcome.OPEN  # it waits again, in the books
    later = stage.call()
    stage.wait(100)
    assert later.outcome is Outcome.IN_TIME
    events = [event for step in stage.steps for event in step.events]
    assert [event.run for event in events if type(event) is BatchPreempted] == [0]
    stage.coordinator.close()
    stage.check_the_accounts()


@pytest.mark.in_python
def test_a_call_goes_home_when_no_worker_writes_for_it_any_more() -> None:
    """Its batch was cancelled and it was dropped, and the worker has not said that it is done."""
    stage = Stage(gpus=1, policy="shepherd", slo_ms=400)
    ticket = stage.call()
    stage.wait(2)
    preempt(stage)
    policy = stage.policy
    decide = stage.policy.decide

    def drops(now: int, events: Sequence[Any], state: ServingState) -> Iterator[Action]:
        policy.decide = decide
        yield Drop(min(state.waiting), "bored")

    policy.decide = drops
    stage.call()
    stage.wait(0)
    assert ticket.outcome is Outcome.OPEN
    assert stage.scheduler._steps.held() == len(stage.open_calls) == 3
    stage.wait(10)
    assert (ticket.outcome, ticket.cause, ticket.reason) == (Outcome.DROPPED, "bored", "bored")
    stage.coordinator.close()
    stage.check_the_accounts()


@pytest.mark.in_python
def test_what_a_failing_policy_had_not_heard_of_yet_is_told_too() -> None:
    """A request whose worker died is to be tried again, and the policy fails in that very instant."""
    stage = Stage(gpus=1, slo_ms=600)
    ticket = stage.call()
    stage.wait(1)

    def decide(now: int, events: Sequence[Any], state: ServingState) -> Iterator[Dispatch]:
        raise RuntimeError("a bug")

    stage.policy.decide = decide
    stage.workers.kill(0)
    stage.wait(1)
    assert ticket.cause == POLICY_ERROR
    stage.check_the_accounts()


def test_a_setup_that_no_policy_takes_changes_nothing() -> None:
    stage = Stage(gpus=1, slo_ms=60)
    stage.call()
    stage.wait(1)
    ticket = stage.call()  # waits behind the first
    stage.wait(1)
    good = stage.plan.new_policy

    def refuse(setup: object) -> object:
        raise InputError("slo", 1, "more")

    object.__setattr__(stage.plan, "new_policy", refuse)
    with pytest.raises(InputError):
        stage.coordinator.begin(stage.plan.setup)
    object.__setattr__(stage.plan, "new_policy", good)
    stage.wait(60)
    assert ticket.outcome is Outcome.IN_TIME
    stage.check_the_accounts()


@pytest.mark.in_python
def test_a_worker_that_dies_with_the_news_of_a_stopped_batch_costs_nobody_an_end() -> None:
    stage = Stage(gpus=2, policy="shepherd", slo_ms=400)
    stage.call()
    stage.wait(2)
    preempt(stage)
    (batch,) = stage.workers.batches()
    stage.scheduler.heard(0, BatchCancelled(batch.tag, stage.loop.now, stage.loop.now))
    stage.fleet.died(0, KILLED)  # in the same turn: one step hears of both
    second = stage.call()
    stage.wait(1000)
    assert second.outcome is Outcome.IN_TIME
    stage.coordinator.close()  # the first waits again, in the books
    stage.check_the_accounts()


@pytest.mark.in_python
@pytest.mark.parametrize("kind", ["kill", "crash"])
def test_a_worker_that_dies_with_a_stopped_batch_costs_nobody_an_end(kind: str) -> None:
    """What waits again is tried on, and nobody is suspect for the rest of the batch."""
    stage = Stage(gpus=2, policy="shepherd", slo_ms=400)
    first = stage.call()
    stage.wait(2)
    forgotten = preempt(stage)
    getattr(stage.workers, kind)(0)
    stage.wait(500)
    assert stage.coordinator.quarantined() == []
    later = stage.call()
    stage.wait(100)
    assert later.outcome is Outcome.IN_TIME
    stage.coordinator.begin(stage.plan.setup)  # the next policy hears of both again
    stage.wait(100)
    assert {first.outcome, forgotten.outcome} <= {Outcome.IN_TIME, Outcome.DROPPED}
    stage.check_the_accounts()


def test_what_a_backend_found_out_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(gpus=2)
    limited = TensorSpec("TOKENS", "INT64", (-1,), (0, 30521))
    news = ModelLoaded(0, (limited,), (ECHO,), notes=("input TOKENS takes few",), warnings=("too many",))
    with caplog.at_level("INFO"):
        stage.repository.heard(0, news)
        stage.repository.heard(1, news)
    messages = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert messages == [("INFO", "model m0: input TOKENS takes few"), ("WARNING", "model m0: too many")]
    assert stage.repository.card("m0").inputs == (limited,), "network threads are told of this"
