"""Calls that network threads have read, where the policy decides in Python."""

from __future__ import annotations

from itertools import count
from typing import Any

from astrarium.core.units import MILLISECOND
from astrarium.server.control.bridge import Bridge
from astrarium.serving.state import Outcome
from tests.support.live_fakes import Stage


class FakeBridge:
    """Hands calls out and notes how they end; as `_front.Bridge` does."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.numbers = stage, count()
        self.calls, self.ended = list[tuple[Any, ...]](), dict[int, tuple[Any, ...]]()
        self.bridge = Bridge(self, stage.control, stage.repository)

    def call(self, rows: int = 1) -> int:
        """Its number; its block holds two numbers for each row, and room for as many."""
        now, block = self.stage.loop.now, self.stage.tensor_store.arena.take(2 * 64 * rows)
        assert block is not None
        moments, number = (now, now, now + 25 * MILLISECOND), next(self.numbers)
        self.calls.append((number, 0, rows, 0, moments, (block, block + 64 * rows, 64), None))
        self.bridge.hear()
        return number

    def pop(self) -> list[tuple[Any, ...]]:
        calls, self.calls = self.calls, []
        return calls

    def end(self, number: int, outcome: Outcome, *told: Any) -> None:
        assert number not in self.ended, "a call ends once"
        self.ended[number] = outcome, *told


def test_a_bridged_call_goes_home_before_the_policy_hears_of_its_batch() -> None:
    stage = Stage(gpus=1)
    bridge = FakeBridge(stage)
    number, asked = bridge.call(), list[bool]()
    stage.wait(1)
    assert not bridge.ended
    decide = stage.control.scheduler.engine.policy.decide

    def noting(*given: Any) -> Any:
        asked.append(number in bridge.ended)
        return decide(*given)

    stage.control.scheduler.engine.policy.decide = noting
    stage.wait(100)
    assert asked[0]
    outcome, cause, reason, shapes, retried, batch = bridge.ended[number]
    assert (outcome, cause, reason, shapes, retried) == (Outcome.IN_TIME, "", "", [None], False)
    tag, gpu, size, dispatched, planned_end, started, finished = batch
    assert (gpu, size, planned_end - dispatched, finished - started) == (
        0,
        1,
        6 * MILLISECOND,
        6 * MILLISECOND,
    )
    assert tag == stage.workers.batches()[0].run


def test_bridged_calls_are_counted_by_their_network_thread_alone() -> None:
    stage = Stage(gpus=1)
    bridge = FakeBridge(stage)
    bridge.call()
    bridge.call(rows=3)
    stage.wait(100)
    assert [told[0] for told in bridge.ended.values()] == [Outcome.IN_TIME] * 2
    assert stage.desk.open == 0
    assert not stage.ended
    assert (stage.control.books[0].accepted, stage.control.books[0].ended_in_all) == (0, 0)
    assert stage.tensor_store.arena.used, "the network thread gives it back"


def test_a_bridged_call_without_an_answer_says_why() -> None:
    stage = Stage(gpus=1)
    bridge = FakeBridge(stage)
    stage.workers.broken.add(0)
    failed = bridge.call()
    stage.wait(20)
    assert bridge.ended[failed][:3] == (Outcome.FAILED, "model_error", "ValueError: no")
    assert bridge.ended[failed][-1] is None
    stage.workers.kill(0)
    stage.wait(1)
    unserved = bridge.call()
    stage.control.close()
    assert bridge.ended[unserved][:2] == (Outcome.DROPPED, "unserved")


def test_a_bridged_call_goes_home_only_when_no_worker_writes_for_it_any_more() -> None:
    stage = Stage(gpus=1)
    bridge = FakeBridge(stage)
    stage.workers.stuck.add(0)
    number = bridge.call()
    stage.wait(1)
    flight = next(iter(stage.control._in_flight[0]))
    stage.control.close()
    assert not bridge.ended, "the books have ended it, and its worker may still write"
    stage.desk.returned(flight, None)
    assert bridge.ended[number][0] is Outcome.FAILED


def test_a_call_that_cannot_go_home_keeps_nothing_from_the_books() -> None:
    stage = Stage(gpus=1)
    bridge = FakeBridge(stage)

    def trouble(*_: Any) -> None:
        raise RuntimeError("no")

    bridge.end = trouble  # type: ignore[method-assign, assignment]
    bridge.call()
    ticket = stage.call()
    stage.wait(100)
    assert ticket.outcome is Outcome.IN_TIME
    assert stage.desk.open == 0
