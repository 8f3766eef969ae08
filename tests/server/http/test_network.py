"""The native network: what it refuses and counts itself, and what it holds of many and of bad clients."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from astrarium.core.optional import extension
from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.server.contract import Kind
from astrarium.server.control.calls.refusals import refusal as refusal_of
from astrarium.server.control.calls.ticket import Ticket
from astrarium.server.http.replies import refusal
from astrarium.serving.ledger import Outcome
from tests.support.server.fakes import HOUR, until
from tests.support.server.http_connection import request
from tests.support.server.native_network import OPEN, asking, binary, overloaded, running

pytestmark = pytest.mark.skipif(extension("_front") is None, reason="needs the native extension")


@pytest.mark.parametrize(
    ("outcome", "cause", "reason"),
    [
        ("failed", "model_error", 'ValueError: "no"\n\x01 such \\ layer, naïve'),
        ("failed", "worker_lost", "its worker died"),
        ("dropped", "expired", ""),
        ("dropped", "sacrificed", ""),
        ("dropped", "unserved", ""),
    ],
)
def test_a_call_without_an_answer_is_told_what_the_long_way_tells(
    outcome: str, cause: str, reason: str
) -> None:
    async def run() -> None:
        async with running() as server:
            server.loopback.end_with(outcome, cause, reason)
            status, headers, answer = await (await server.connect()).ask(request())
            call = SimpleNamespace(model="echo")
            outcome_of = Outcome[outcome.upper()]
            ended = SimpleNamespace(
                call=call, outcome=outcome_of, cause=cause, reason=reason, blamed=Kind.MODEL_FAILED
            )
            expected = refusal(refusal_of(cast(Ticket, ended)))
            assert (status, answer) == (expected.status, json.loads(expected.body))
            assert int(headers.pop("content-length")) == len(expected.body)
            assert headers.pop("date")
            assert headers == {name.decode(): value.decode() for name, value in expected.headers}
            accepted, _, declined, ended_by, *_ = server.tally()
            assert (accepted, ended_by) == (1, {(outcome, cause): 1})
            assert declined == (outcome == "dropped" and cause != "unserved")

    asyncio.run(run())


def test_no_more_calls_are_taken_than_may_be_open() -> None:
    async def run() -> None:
        async with running(by_hand=True, most_open=1) as server:
            first = await server.connect()
            second = await server.connect()
            first.writer.write(request())
            [(number, *_)] = await server.front.popped()
            status, headers, answer = await second.ask(request())
            assert (status, answer) == overloaded("1 calls are open already, the most that may be")
            assert (headers["retry-after"], headers["x-astrarium-retry-after-ms"]) == ("1", "1000")
            server.loopback.end(number)
            assert (await first.answer())[0] == 200
            assert server.tally()[4] == {"deadline": 0, "overloaded": 1, "unavailable": 0, "bad_request": 0}

    asyncio.run(run())


def test_a_model_with_too_many_open_calls_refuses_more() -> None:
    async def run() -> None:
        async with running(by_hand=True) as server:
            server.loopback.plan([(HOUR, [0, HOUR // 4, 1 << 60])], gpus=1)
            for _ in range(4):
                (await server.connect()).writer.write(request())
            open_calls = await server.front.popped(4)
            status, _, answer = await (await server.connect()).ask(request())
            reason = f"model echo has 4 calls open, more than can be answered in {HOUR / MILLISECOND:g} ms"
            assert (status, answer) == overloaded(reason)
            for number, *_ in open_calls:
                server.loopback.end(number)

    asyncio.run(run())


def test_a_call_that_would_wait_too_long_for_the_scheduler_is_refused() -> None:
    """Nobody takes the first call, so the second would wait for longer than it allows."""

    async def run() -> None:
        async with running(by_hand=True) as server:
            first, second = await server.connect(), await server.connect()
            first.writer.write(request())
            await until(lambda: server.front.exchange.admission.open() == 1)
            await asyncio.sleep(0.05)
            status, _, answer = await second.ask(asking([1, 2], timeout=20_000))
            assert status == 429
            assert answer["error"].startswith(
                "overloaded: the server has more calls to read than it can; of 20 ms, "
            )
            assert server.tally()[4]["overloaded"] == 1
            ((number, *_),) = await server.front.popped(1)
            server.loopback.end(number)
            assert (await first.answer())[0] == 200

    asyncio.run(run())


def test_a_call_that_cannot_be_in_time_is_refused() -> None:
    async def run() -> None:
        async with running() as server:
            server.loopback.plan([(HOUR, [0, 2 * SECOND, 1 << 60])], gpus=1)
            connection = await server.connect()
            status, headers, answer = await connection.ask(asking([1, 2], timeout=25_000))
            start = "model echo cannot answer within 25 ms: one request alone takes 2 s, and "
            assert status == 504
            assert answer["error"].startswith(start)
            assert answer["error"].endswith(" had passed")
            assert headers.keys() == {"date", "content-type", "content-length"}
            assert (await connection.ask(request()))[0] == 200
            _, _, declined, _, refused, *_ = server.tally()
            assert (declined, refused) == (
                0,
                {"deadline": 1, "overloaded": 0, "unavailable": 0, "bad_request": 0},
            )

    asyncio.run(run())


def test_full_memory_is_told_from_memory_that_is_too_small() -> None:
    async def run() -> None:
        async with running(OPEN, by_hand=True, memory=1 << 16) as server:
            first = await server.connect()
            second = await server.connect()
            first.writer.write(binary(np.zeros((1, 8192), np.float32)))
            [(number, *_)] = await server.front.popped()
            status, _, answer = await second.ask(request())
            assert (status, answer) == overloaded("the shared memory for tensors is full")
            assert server.front.exchange.admission.open() == 1
            server.loopback.end(number, "failed", "worker_lost", "gone")
            assert (await first.answer())[0] == 500
            assert server.front.exchange.arena.used == 0
            second.writer.write(binary(np.zeros((1, 16384), np.float32)))
            await until(lambda: server.network.native.long_way() == {"memory": 1})

    asyncio.run(run())


def test_answers_of_unequal_shapes_and_answers_that_are_not_there_are_failures() -> None:
    async def run() -> None:
        async with running(OPEN, by_hand=True) as server:
            connection = await server.connect()
            for shapes, reason in [
                ([[([1, 1], 4)], [([1, 2], 8)]], "model echo: the rows of one call have answers of unequal"),
                ([[([1, 1], 1 << 62)]] * 2, "the worker's answer is not what it said it is"),
                ([[]] * 2, "the worker's answer is not what it said it is"),
            ]:
                two_rows = {"name": "IN", "shape": [2, 1], "datatype": "FP32", "data": [1, 2]}
                connection.writer.write(request(json.dumps({"inputs": [two_rows]})))
                [(number, *_)] = await server.front.popped()
                server.loopback.end(number, shapes=shapes)
                status, _, answer = await connection.answer()
                assert (status, reason in answer["error"]) == (500, True)

    asyncio.run(run())


def test_what_native_code_cannot_explain_goes_the_long_way_and_is_counted() -> None:
    async def run() -> None:
        async with running() as server:
            connection = await server.connect()
            unknown: list[tuple[str, Any]] = [("priority", 7), ("application", "music")]
            for why, value in unknown:
                await connection.ask(asking([1, 2], **{why: value}))
                assert server.network.native.long_way()[why] == 1
            server.front.exchange.admission.close(True)
            await connection.ask(request())
            assert server.network.native.long_way()["closed"] == 1
            server.front.exchange.admission.close(False)
            good = asking([1, 2], priority=2, application="chat")
            assert (await connection.ask(good))[2]["outputs"][0]["data"] == [1.0, 2.0]
            assert sum(server.network.native.long_way().values()) == 3

    asyncio.run(run())


def test_calls_are_counted_and_the_last_ones_remembered() -> None:
    async def run() -> None:
        async with running() as server:
            connection = await server.connect()
            for _ in range(5):
                assert (await connection.ask(request()))[0] == 200
            accepted, items, declined, ended, refused, latency, queueing, success, fail, queue = (
                server.tally()
            )
            assert (accepted, items, declined, ended) == (5, 5, 0, {("in_time", ""): 5})
            assert refused == {"deadline": 0, "overloaded": 0, "unavailable": 0, "bad_request": 0}
            assert (sum(latency[0]), sum(queueing[0]), success[0], fail, queue[0]) == (5, 5, 5, (0, 0), 5)
            assert latency[1] == success[1] > 0
            following, calls = server.front.exchange.last_calls(0, 2)
            assert (following, len(calls)) == (5, 3)
            for model, gpu, _, size, in_time, stages in calls:
                assert (model, gpu, size, in_time) == (0, 0, 1, True)
                assert list(stages) == sorted(stages)

    asyncio.run(run())


def test_a_policys_own_reason_to_drop_a_call_is_told_and_counted_as_another() -> None:
    async def run() -> None:
        async with running() as server:
            server.loopback.end_with("dropped", "other", "bored")
            status, _, answer = await (await server.connect()).ask(request())
            reason = "model echo dropped the call so that others are in time (bored)"
            assert (status, answer) == overloaded(reason)
            assert server.tally()[3] == {("dropped", "other"): 1}

    asyncio.run(run())
