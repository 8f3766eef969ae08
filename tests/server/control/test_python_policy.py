"""A policy in Python inside the native scheduler: what crosses; nobody else waits while it thinks."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from astrarium.core.engine import Engine
from astrarium.core.optional import extension
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import FOREVER, MILLISECOND
from astrarium.core.trace import Step
from astrarium.run.replay import replay
from astrarium.server.control.accounts.causes import POLICY_ERROR
from astrarium.server.control.python_policy import PythonPolicy
from astrarium.serving.contract import (
    Action,
    BatchFailed,
    BatchFinished,
    BatchPreempted,
    Dispatch,
    Drop,
    Event,
    GpuJoined,
    GpuLeft,
    GpuSpec,
    ModelSpec,
    Preempt,
    Request,
    RequestArrived,
    RequestProfiled,
    Setup,
    latency_table,
)
from astrarium.serving.ledger import Outcome
from astrarium.serving.live.messages import BatchDone, RunBatch, decode_order, encode
from astrarium.serving.policies.window import Eager
from astrarium.serving.state import ServingState
from astrarium.serving.twin.native import native_setup
from tests.support.live_fakes import Stage
from tests.support.server.fakes import HOUR
from tests.support.server.http_connection import request
from tests.support.server.native_network import Running, asking, running

SETUP = Setup((ModelSpec(0, "m", 25, latency_table([5, 6])),), (GpuSpec(0), GpuSpec(1)))
Decide = Callable[[int, Sequence[Event], ServingState], Iterator[Action]]


class Scripted:
    """Answers each time with what a test has written down for it."""

    listens_to_profiler = True

    def __init__(self, *answers: list[Any]) -> None:
        self.answers = list(answers)
        self.heard: list[tuple[int, list[Event]]] = []

    def decide(self, now: int, events: Sequence[Event], state: ServingState) -> list[Action]:
        self.heard.append((now, list(events)))
        return self.answers.pop(0) if self.answers else []


def test_events_are_made_of_what_the_native_scheduler_tells_and_actions_of_what_it_reads() -> None:
    policy = Scripted(
        [Dispatch(0, (4, 5), 9), Drop(6, "bored"), SetTimer(50, "a"), SetTimer(40, "b")], [Preempt(0)]
    )
    native_policy = PythonPolicy("scripted", policy, SETUP)
    arrived = [(6, (number, 0, 1, 26, 0)) for number in (4, 5, 6)]
    assert native_policy.decide(2, arrived) == ([(0, 0, (4, 5), 9), (1, 6, "bored", 0)], 40)
    assert native_policy.decide(3, []) == ([], 40)
    assert native_policy.decide(40, [(5, (1,)), (2, (4, 0, 0, 7)), (4, (1,))]) == ([(2, 0, 0, 0)], 50)
    assert native_policy.decide(45, [(1, (0, 0, 41, 42)), (3, (1, 9, "no")), (0, (1, 8, 1, 2))]) == ([], 50)
    assert native_policy.decide(50, []) == ([], FOREVER)
    assert policy.heard == [
        (2, [RequestArrived(Request(number, 0, 1, 26)) for number in (4, 5, 6)]),
        (40, [GpuLeft(1), RequestProfiled(4, 0, 0, 7), GpuJoined(1), TimerFired("b")]),
        (45, [BatchPreempted(0, 0, 41, 42), BatchFailed(1, 9, "no"), BatchFinished(1, 8, 1, 2)]),
        (50, [TimerFired("a")]),
    ]


HALF: Any = 9.5


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (
            Dispatch(0, (4,), HALF),
            "InvalidAction: Dispatch(gpu=0, requests=(4,), start=9.5): 9.5 is no whole",
        ),
        (SetTimer(HALF, "a"), "InvalidAction: a timer: 9.5 is no whole number of nanoseconds"),
        (Drop(4, HALF), "InvalidAction: Drop(request=4, reason=9.5): its reason is no text"),
        (SystemExit(3), "SystemExit: 3"),
        (ValueError("bad \udc80 name"), "ValueError: bad \\udc80 name"),
    ],
    ids=["start", "timer", "reason", "exit", "half of a character"],
)
def test_what_native_code_cannot_read_is_told_in_words(
    action: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time that comes of a division was once told as std::bad_cast."""
    monkeypatch.setattr("astrarium.server.control.python_policy.log.disabled", True)  # no text for a report

    class Wrong(Scripted):
        def decide(self, now: int, events: Sequence[Event], state: ServingState) -> list[Action]:
            if isinstance(action, BaseException):
                raise action
            return [action]

    native_policy = PythonPolicy("wrong", Wrong(), SETUP)
    with pytest.raises(RuntimeError) as error:
        native_policy.decide(2, [(6, (4, 0, 1, 26, 0))])
    assert str(error.value).startswith(message)


def test_times_beyond_all_are_bounded() -> None:
    policy = Scripted([Dispatch(0, (4,), 1 << 80), SetTimer(-(10**30), "a")])
    native_policy = PythonPolicy("scripted", policy, SETUP)
    assert native_policy.decide(2, [(6, (4, 0, 1, 26, 0))]) == ([(0, 0, (4,), FOREVER)], -FOREVER)


def test_its_books_forget_what_has_ended() -> None:
    native_policy = PythonPolicy("eager", Eager(SETUP, Eager.Parameters()), SETUP)
    for number in range(1000):
        _, _ = native_policy.decide(20 * number, [(6, (number, 0, 20 * number, 20 * number + 25, 0))])
        native_policy.decide(20 * number + 10, [(0, (0, number, 20 * number, 20 * number + 5))])
    ledger = native_policy._state.ledger
    assert not native_policy._state.waiting
    assert not ledger.batch_dispatched
    assert not ledger.outcome


def test_a_policy_hears_in_the_order_in_which_all_of_it_happened() -> None:
    stage = Stage(gpus=1, slo_ms=200)
    stage.call()
    stage.wait(1)
    seen = len(stage.steps)
    stage.call()
    stage.workers.kill(0)
    stage.wait(0)
    stage.call()
    stage.wait(0)
    kinds = [type(event) for step in stage.steps[seen:] for event in step.events]
    assert kinds == [RequestArrived, GpuLeft, RequestArrived, RequestArrived]
    numbers = [
        event.request.id for step in stage.steps for event in step.events if type(event) is RequestArrived
    ]
    assert numbers == [0, 1, 2, 3]  # a call that is tried again has another number
    stage.wait(500)
    stage.check_the_accounts()


@pytest.mark.parametrize("policy", ["clipper", "clockwork", "nexus", "shepherd"])
def test_policies_without_a_live_twin_replay_from_what_was_recorded(policy: str) -> None:
    stage = Stage(gpus=2, models=2, policy=policy, slo_ms=60)
    stage.wait(0)
    for turn in range(80):
        stage.call(turn % 2)
        stage.wait(turn % 4)
        if turn == 40:
            stage.workers.kill(0)
    stage.wait(2000)
    stage.check_the_accounts()
    steps = [step for step in stage.steps if isinstance(step, Step)]
    assert sum(type(action) is Dispatch for step in steps for action in step.actions) > 10
    fresh = Engine(ServingState(stage.plan.setup), stage.plan.new_policy(stage.plan.setup))
    assert replay(fresh, steps) is None


def test_each_policy_that_takes_over_has_a_section_of_its_own() -> None:
    stage = Stage(gpus=1)
    stage.call()
    stage.wait(1)
    before = len(stage.steps)
    stage.coordinator.begin(stage.plan.setup)
    stage.wait(30)
    first = stage.steps[before]
    assert [type(event) for event in first.events] == [GpuLeft]  # it works for the one before
    assert first.now == 0


def test_an_action_that_the_books_do_not_allow_is_a_failure_of_the_policy() -> None:
    stage = Stage(gpus=1)
    stage.wait(0)
    stage.policy.decide = lambda now, events, state: [Dispatch(7, (0,))]
    ticket = stage.call()
    stage.wait(1)
    assert ticket.cause == POLICY_ERROR
    assert "there is no GPU 7" in ticket.reason
    stage.check_the_accounts()


def test_a_policy_that_cannot_be_made_anew_goes_on_failing_its_calls() -> None:
    stage = Stage(gpus=1)
    stage.wait(0)

    def fail(*given: object) -> Any:
        raise RuntimeError("a bug")

    stage.policy.decide = fail
    object.__setattr__(stage.plan, "new_policy", fail)
    calls = []
    for _ in range(3):
        calls.append(stage.call())
        stage.wait(1)
    assert [ticket.cause for ticket in calls] == [POLICY_ERROR] * 3
    assert stage.coordinator.policy_errors == 3
    stage.check_the_accounts()


def test_a_policys_own_reason_to_drop_a_call_is_told_and_counted() -> None:
    stage = Stage(gpus=1)
    stage.wait(0)
    stage.policy.decide = lambda now, events, state: [Drop(number, "bored") for number in state.waiting]
    ticket = stage.call()
    stage.wait(0)
    assert (ticket.outcome, ticket.cause, ticket.reason) == (Outcome.DROPPED, "bored", "bored")
    assert stage.coordinator.accounts.models[0].ended["dropped", "bored"] == 1


class Thinking:
    """Decides as `eager` does, as soon as a test lets it."""

    listens_to_profiler = False

    def __init__(self, setup: Setup, may: threading.Event) -> None:
        self._eager = Eager(setup, Eager.Parameters())
        self._may = may

    def decide(self, now: int, events: Sequence[Event], state: ServingState) -> list[Action]:
        assert self._may.wait(60)
        return list(self._eager.decide(now, events, state))


class Served:
    """A network thread, the native scheduler in its own, and the socket of a worker that a test plays."""

    def __init__(self, server: Running) -> None:
        self.server = server
        self.may = threading.Event()
        self.may.set()
        scheduler = extension("_scheduler")
        native = extension("_simulator")
        assert scheduler is not None
        setup = Setup((ModelSpec(0, "echo", HOUR, latency_table([MILLISECOND] * 8)),), (GpuSpec(0),))
        self.scheduler = scheduler.Scheduler(server.front.exchange, 1)
        ours, self.worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours = ours
        self.scheduler.watch(0, ours.fileno())
        self.scheduler.worker_joined(0)
        may = self.may

        def make() -> PythonPolicy:
            return PythonPolicy("thinking", Thinking(setup, may), setup)

        self.scheduler.begin_in_python(native_setup(native, setup), "thinking", make)
        self.scheduler.start()

    async def order(self) -> RunBatch:
        order = decode_order(await asyncio.to_thread(self.worker.recv, 1 << 16))
        assert isinstance(order, RunBatch)
        return order

    def done(self, order: RunBatch) -> None:
        self.worker.send(encode(BatchDone(order.tag, 1, 1, 1, 2, 2)))

    def stop(self) -> None:
        self.may.set()
        self.scheduler.close()
        self.scheduler.stop()
        self.worker.close()
        self._ours.close()


@asynccontextmanager
async def thinking() -> AsyncIterator[Served]:
    async with running(by_hand=True) as server:
        served = Served(server)
        try:
            yield served
        finally:
            served.stop()


def test_network_threads_go_on_while_a_policy_thinks() -> None:
    async def run() -> None:
        async with thinking() as served:
            first = await served.server.connect()
            second = await served.server.connect()
            served.may.clear()
            first.writer.write(request())
            status, _, answer = await second.ask(asking([1, 2], timeout=1))  # refused where it is read
            assert (status, "cannot answer within" in answer["error"]) == (504, True)
            served.may.set()
            served.done(await served.order())
            assert (await first.answer())[0] == 200

    asyncio.run(run())


def test_questions_are_answered_while_a_policy_thinks() -> None:
    async def run() -> None:
        async with thinking() as served:
            connection = await served.server.connect()
            served.may.clear()
            connection.writer.write(request())
            while not served.scheduler.thinks_since():
                await asyncio.sleep(0.001)
            assert served.scheduler.waiting() == 1
            assert served.scheduler.policy_errors() == (0, "")
            assert served.scheduler.oldest(0) is None
            assert served.scheduler.thinks_since()  # all this time
            served.may.set()
            served.done(await served.order())
            assert (await connection.answer())[0] == 200
            assert not served.scheduler.thinks_since()

    asyncio.run(run())


def test_a_call_is_answered_before_the_policy_hears_of_its_batch() -> None:
    async def run() -> None:
        async with thinking() as served:
            connection = await served.server.connect()
            connection.writer.write(request())
            order = await served.order()
            served.may.clear()
            served.done(order)
            assert (await connection.answer())[0] == 200

    asyncio.run(run())
