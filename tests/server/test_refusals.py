"""A model that refuses everybody is not ready, says why, and is ready again by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from astrarium.core.errors import InputError
from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.server.contract import InferCall, Refused
from astrarium.server.control.accounts.model_accounts import ModelAccounts
from astrarium.server.control.calls.objectives import asks_what_was_promised
from astrarium.server.control.calls.ticket import EndedBatch
from astrarium.server.control.health.refusal_watch import FEWEST_REFUSED, WHILE, RefusalWatch
from astrarium.server.control.plan import plan
from astrarium.serving.contract import Network
from astrarium.serving.ledger import Outcome
from astrarium.serving.live.messages import Ping
from astrarium.serving.live.tensors import Tensor
from astrarium.serving.scenario import load
from tests.support.live_fakes import (
    FakeLoop,
    FakeWorkers,
    Stage,
    admit,
    handler_of,
    make_plan,
    noting,
    service_of,
)

START = 5 * SECOND


class Looks:
    """Two models, looked at every second."""

    def __init__(self) -> None:
        self.now = START
        self.accounts = [ModelAccounts("a"), ModelAccounts("b")]
        self.watch = RefusalWatch(self.accounts, self.now)

    def pass_time(self, seconds: int, *happens: Callable[[], None]) -> list[int]:
        """The models of which something changed."""
        changed: list[int] = []
        for _ in range(seconds):
            self.now += SECOND
            for one in happens:
                one()
            changed += self.watch.look(self.now)
        return changed

    def declines(self, model: int, calls: int) -> Callable[[], None]:
        def decline() -> None:
            for _ in range(calls):
                self.accounts[model].decline("too slow")

        return decline

    def answers(self, model: int) -> Callable[[], None]:
        return lambda: self.accounts[model].call_ended(Outcome.LATE, "", MILLISECOND)


def test_a_model_that_turns_all_away_for_a_while_is_said_to_and_why() -> None:
    looks = Looks()
    assert looks.pass_time(10, looks.declines(0, 3)) == []
    assert looks.pass_time(5, looks.declines(0, 3)) == [0]
    assert looks.accounts[0].refusing == "it has turned away all of the last 33 calls (too slow)"
    assert looks.accounts[1].refusing == ""


def test_one_answer_makes_it_ready_again() -> None:
    looks = Looks()
    looks.pass_time(15, looks.declines(0, 3))
    assert looks.pass_time(1, looks.declines(0, 3), looks.answers(0)) == [0]
    assert not looks.accounts[0].refusing
    assert looks.pass_time(100, looks.declines(0, 50), looks.answers(0)) == []


def test_it_is_ready_again_when_nobody_has_asked_for_a_while() -> None:
    """A load balancer sends nothing to a server that is not ready."""
    looks = Looks()
    looks.pass_time(15, looks.declines(0, 3))
    assert looks.pass_time(WHILE // SECOND - 1) == []
    assert looks.pass_time(1) == [0]
    assert looks.pass_time(9, looks.declines(0, 3)) == []  # and is given the same time as before


def test_bursts_and_single_calls_are_not_everybody() -> None:
    looks = Looks()
    assert looks.pass_time(1, looks.declines(0, 1000)) == []
    assert looks.pass_time(WHILE // SECOND) == []
    for _ in range(FEWEST_REFUSED):
        assert looks.pass_time(1, looks.declines(0, 1)) == []
        assert looks.pass_time(WHILE // SECOND) == []


@pytest.mark.parametrize(
    ("timeout", "patience", "priority", "fair"),
    [
        (None, None, 0, True),
        (25, 60_000, 0, True),
        (24, None, 0, False),
        (None, 24, 0, False),
        (None, None, 1, True),
    ],
)
def test_a_call_that_allows_less_than_the_objective_has_itself_to_blame(
    timeout: int | None, patience: int | None, priority: int, fair: bool
) -> None:
    entry = Stage().repository.entries[0]
    limits = (None if limit is None else limit * MILLISECOND for limit in (timeout, patience))
    allowed, waits = limits
    call = InferCall("m0", [], 1, START, allowed, priority, patience=waits)
    assert asks_what_was_promised(call, entry) is fair


def test_calls_that_are_refused_or_dropped_are_counted_where_the_model_is_to_blame() -> None:
    stage = Stage(gpus=1)
    calls = handler_of(stage)
    accounts = stage.coordinator.accounts.models[0]
    for timeout, declined in ((5 * MILLISECOND, 0), (None, 1)):
        inputs = [Tensor("INPUT", "FP32", (1, 2), bytes(8))]
        call = InferCall("m0", inputs, 1, stage.loop.now - 24 * MILLISECOND, timeout)
        with pytest.raises(Refused, match="cannot answer within"):
            asyncio.run(calls.infer(call))
        assert accounts.declined == declined
    assert accounts.refused["deadline"] == 2
    dropped = stage.call()
    answered = stage.call()
    unserved = stage.call()
    dropped.outcome = Outcome.DROPPED
    dropped.cause = "expired"
    unserved.outcome = Outcome.DROPPED
    unserved.cause = "unserved"
    now = stage.loop.now
    answered.outcome, answered.batch = Outcome.LATE, EndedBatch(1, 0, 1, now, now, now, now)
    for ticket in (dropped, answered, unserved):
        calls.ticket_ended(ticket)
    assert (accounts.declined, accounts.declined_because) == (2, "dropped: expired")


def test_more_calls_than_can_be_answered_in_time_are_refused() -> None:
    """Batches of 8 take 13 ms, so that two GPUs answer 27 calls within nine tenths of 25 ms, and not 28."""
    stage = Stage(gpus=2)
    calls = handler_of(stage)
    for _ in range(28):
        admit(stage, calls)
    with pytest.raises(Refused, match="model m0 has 28 calls open, more than can be answered in 25 ms"):
        admit(stage, calls)
    admit(stage, calls, timeout=60 * MILLISECOND)  # that one has the time
    stage.wait(60)
    assert stage.coordinator.accounts.models[0].open == 0
    assert stage.coordinator.accounts.models[0].refused == {"overloaded": 1}
    admit(stage, calls)


def test_a_service_says_so_and_gives_a_fresh_policy_a_chance(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse_everybody() -> None:
        live_plan = make_plan(1, 2, "eager", 25 * MILLISECOND, 1 << 20)
        policies: list[Any] = []
        live_plan = replace(live_plan, new_policy=noting(live_plan.new_policy, policies))
        loop = FakeLoop()
        service = service_of(live_plan, loop)
        service.coordinator.begin(live_plan.setup)
        service.coordinator.present.add(0)
        states = {entry.plan.name: "READY" for entry in service.repository.entries}
        for entry in service.repository.entries:
            entry.state = "READY"
            entry.reason = ""
        for _ in range(12):
            service.coordinator.accounts.models[0].decline("too slow")
            service.readiness.look_for_refusals()
            loop.now += SECOND
        assert {card.name: card.state for card in service.cards()} == states  # calls are still taken
        assert service.card("m0").health == ("UNAVAILABLE", service.coordinator.accounts.models[0].refusing)
        assert service.card("m1").health == ("READY", "")
        assert service.ready  # the other model is well, though nobody asks it
        service.repository.entries[1].state = "UNAVAILABLE"
        assert not service.ready
        assert service._closed() == ""
        assert len(policies) == 2
        assert b'astrarium_refuses_all{model="m0"} 1.0' in service.metrics()
        loop.now += 19 * SECOND
        service.readiness.look_for_refusals()
        assert service.ready
        assert service.card("m0").health == ("READY", "")
        service.coordinator.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(refuse_everybody())
    messages = [record.getMessage() for record in caplog.records]
    assert len([line for line in messages if "model m0 is not ready" in line and "too slow" in line]) == 1
    assert len([line for line in messages if "no longer turns away all calls" in line]) == 1


def test_a_service_goes_on_measuring_delays_and_says_where_they_do_not_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def ping() -> None:
        live_plan = replace(make_plan(1, 1, "eager", 25 * MILLISECOND, 1 << 20), measured_delays=True)
        loop = FakeLoop()
        service = service_of(live_plan, loop)
        workers = cast(FakeWorkers, service.workers)

        async def measured(workers: Sequence[int]) -> None:
            pass

        service._calibration.measure = measured  # type: ignore[method-assign]
        service._calibration.delays = lambda: Network(20 * MILLISECOND, 0, 20 * MILLISECOND)  # type: ignore[method-assign]
        service.repository.start()
        service.fleet.start(service.workers)
        loop.run_until(loop.now + SECOND)
        await service.replanner.begin()
        looking = asyncio.create_task(service._look_after())
        async with asyncio.timeout(30):
            while not any(isinstance(order, Ping) for _, order in workers.orders):
                await asyncio.sleep(0.01)
        looking.cancel()
        service.coordinator.close()

    asyncio.run(ping())
    assert "delays of 40.00 ms were measured, and the objective of model m0 leaves 16.50 ms" in caplog.text


def test_an_objective_that_one_request_alone_cannot_keep_is_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "tight.yaml"
    text = "cluster: {gpus: 1}\nmodels:\n  m: {profile: {table: [20ms]}, slo: SLO}\n"
    file.write_text(text.replace("SLO", "20ms"))
    with pytest.raises(InputError, match=r"models\.m\.slo.*more than 20ms"):
        plan(load(file, serving=True))
    file.write_text(text.replace("SLO", "25ms") + "network: {control: 3ms, response: 2ms}\n")
    with pytest.raises(InputError, match=r"models\.m\.slo.*more than 25ms"):
        plan(load(file, serving=True))
    file.write_text(text.replace("SLO", "25ms"))
    assert plan(load(file, serving=True)).measured_delays
