"""The native network: what it refuses and counts itself, and what it holds of many and of bad clients."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import struct
from dataclasses import replace
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
from astrarium.server.http.server import serve_http
from astrarium.serving.ledger import Outcome
from tests.support.server.fakes import HOUR, FakeService, LoopbackFront, until
from tests.support.server.http_connection import Connection, request
from tests.support.server.native_network import OPEN, PLAIN, asking, binary, overloaded, running

pytestmark = pytest.mark.skipif(extension("_front") is None, reason="needs the native extension")

# What is refused here is refused as the long way does


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
            server.loopback.plan([(HOUR, [0, HOUR // 3, 1 << 60])], gpus=1)
            for _ in range(4):
                (await server.connect()).writer.write(request())
            open_calls = await server.front.popped(4)
            status, _, answer = await (await server.connect()).ask(request())
            reason = f"model echo has 4 calls open, more than can be answered in {HOUR / MILLISECOND:g} ms"
            assert (status, answer) == overloaded(reason)
            for number, *_ in open_calls:
                server.loopback.end(number)

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
            for shapes, said in [
                ([[([1, 1], 4)], [([1, 2], 8)]], "model echo: the rows of one call have answers of unequal"),
                ([[([1, 1], 1 << 62)]] * 2, "the worker's answer is not what it said it is"),
                ([[]] * 2, "the worker's answer is not what it said it is"),
            ]:
                two_rows = {"name": "IN", "shape": [2, 1], "datatype": "FP32", "data": [1, 2]}
                connection.writer.write(request(json.dumps({"inputs": [two_rows]})))
                [(number, *_)] = await server.front.popped()
                server.loopback.end(number, shapes=shapes)
                status, _, answer = await connection.answer()
                assert (status, said in answer["error"]) == (500, True)

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


# Clients: many, slow, gone


@pytest.fixture
def descriptors() -> None:
    """Enough for both ends of a thousand connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_thousand_connections_each_get_their_own_answers(threads: int) -> None:
    async def run() -> None:
        async with running(threads=threads) as server:
            connections = [await server.connect() for _ in range(1000)]
            for turn in range(2):
                for at, connection in enumerate(connections):
                    connection.writer.write(asking([at, turn]))
                for at, connection in enumerate(connections):
                    status, _, answer = await connection.answer()
                    assert (status, answer["outputs"][0]["data"]) == (200, [at, turn])
            assert len(server.network.connections) == 1000
            assert server.tally()[:2] == (2000, 2000)
            assert all(spent > 0 for spent in server.network.native.cpu_ns())
            server.leave()
            await until(lambda: len(server.network.connections) == 0)
            assert server.front.exchange.arena.used == 0

    asyncio.run(run())


def test_one_byte_at_a_time_is_still_a_request() -> None:
    async def run() -> None:
        async with running() as server:
            connection = await server.connect()
            connection.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in request() + request():
                connection.writer.write(bytes([byte]))
                await asyncio.sleep(0)
            for _ in range(2):
                assert (await connection.answer())[0] == 200
            assert server.network.native.long_way() == {}
            assert server.network.native.held() == 0

    asyncio.run(run())


def test_a_client_that_does_not_read_gets_all_of_it_later() -> None:
    async def run() -> None:
        array = np.arange(1_000_000, dtype=np.float32)[None]
        async with running(OPEN) as server:
            connection = await server.connect()
            connection.writer.write(binary(array) + request())
            await until(lambda: server.tally()[1] >= 1)  # more than most sockets take at once
            head = await connection.reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"inference-header-content-length: ")[2].split(b"\r\n")[0])
            told = json.loads(await connection.reader.readexactly(size))
            assert told["outputs"][0]["shape"] == [1, 1_000_000]
            assert await connection.reader.readexactly(array.nbytes) == array.tobytes()
            assert (await connection.answer())[0] == 200
            assert server.front.exchange.arena.used == 0

    asyncio.run(run())


def reset(connection: Connection) -> None:
    """Leaves so that the server hears of it: by a FIN the client might only have stopped sending."""
    here = connection.writer.get_extra_info("socket")
    here.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.writer.transport.abort()


def test_a_client_that_leaves_gives_back_what_it_held() -> None:
    async def run() -> None:
        async with running(by_hand=True) as server:
            connection = await server.connect()
            another = await server.connect()
            connection.writer.write(request())
            another.writer.write(request()[:-1])
            [(number, *_)] = await server.front.popped()
            await until(lambda: server.network.native.held() == len(request()) - 1)
            reset(connection)
            another.writer.close()
            await until(lambda: len(server.network.connections) == 0)
            assert server.network.native.held() == 0
            assert server.front.exchange.admission.open() == 1
            server.loopback.end(number)
            await until(lambda: server.front.exchange.admission.open() == 0)
            assert server.front.exchange.arena.used == 0
            assert server.tally()[3] == {("in_time", ""): 1}

    asyncio.run(run())


def test_what_comes_too_early_waits_and_is_not_read_without_end() -> None:
    async def run() -> None:
        async with running(by_hand=True) as server:
            connection = await server.connect()
            connection.writer.write(request() * 5_000)
            [(number, *_)] = await server.front.popped()
            await until(lambda: server.network.native.held() > 0)
            assert server.network.native.held() < 1 << 20
            server.loopback.start()
            server.loopback.end(number)
            for _ in range(5_000):
                assert (await connection.answer())[0] == 200
            assert server.network.native.held() == 0

    asyncio.run(run())


def test_models_come_and_go_under_load() -> None:
    async def run() -> None:
        other = replace(PLAIN, name="other")
        async with running(PLAIN, other, threads=2) as server:
            going = True

            async def ask(at: int) -> int:
                connection = await server.connect()
                asked = 0
                while going:
                    status, _, answer = await connection.ask(asking([at, asked]))
                    assert (status, answer["outputs"][0]["data"]) == (200, [at, asked])
                    asked += 1
                return asked

            clients = [asyncio.create_task(ask(at)) for at in range(16)]
            for _ in range(50):
                unloaded = replace(PLAIN, state="UNAVAILABLE")
                for card in (unloaded, replace(PLAIN)):
                    server.front.models[0] = card
                    server.network.look()
                    server.network.settle()
                    await asyncio.sleep(0.001)
            going = False
            assert sum(await asyncio.gather(*clients)) >= 16
            assert server.tally()[1] > 0

    asyncio.run(run())


def test_stopping_waits_no_longer_than_it_may_and_leaves_nobody_waiting() -> None:
    async def run() -> None:
        front = LoopbackFront(PLAIN)
        http = await serve_http(FakeService(), native_front=front)
        idle = await Connection.to(http.port)
        waiting = await Connection.to(http.port)
        waiting.writer.write(request())
        while not (tickets := front.loopback.pop()):
            await asyncio.sleep(0.001)
        stopping = asyncio.create_task(http.stop(grace=0.1))
        assert await asyncio.wait_for(idle.reader.read(), 60) == b""
        await stopping
        assert await asyncio.wait_for(waiting.reader.read(), 60) == b""
        front.loopback.end(tickets[0][0])  # nobody takes it back any more, and nothing breaks
        for connection in (idle, waiting):
            connection.writer.close()

    asyncio.run(run())


# Reasons that are a policy's own


def test_a_policys_own_reason_to_drop_a_call_is_told_and_counted_as_another() -> None:
    async def run() -> None:
        async with running() as server:
            server.loopback.end_with("dropped", "other", "bored")
            status, _, answer = await (await server.connect()).ask(request())
            reason = "model echo dropped the call so that others are in time (bored)"
            assert (status, answer) == overloaded(reason)
            assert server.tally()[3] == {("dropped", "other"): 1}

    asyncio.run(run())
