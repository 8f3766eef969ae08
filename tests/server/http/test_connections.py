"""Connections of network threads: pieces, queues, changes of way, clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from astrarium.server.settings import HttpLimits, Security
from tests.support.server.fakes import WAYS, FakeService, Served, Way, serving
from tests.support.server.http_connection import BODY, LONG, Connection, request


@asynccontextmanager
async def connected(
    limits: HttpLimits | None = None, security: Security | None = None
) -> AsyncIterator[tuple[Served, Connection]]:
    service = FakeService()
    service.gate = asyncio.Event()
    async with serving(service, limits, security) as server:
        connection = Connection(*await asyncio.open_connection("127.0.0.1", server.http))
        yield server, connection
        connection.writer.close()


def test_one_connection_goes_both_ways() -> None:
    async def run() -> None:
        async with connected() as (server, connection):
            for turn in range(3):
                status, headers, answer = await connection.ask(request())
                assert (status, answer["outputs"][0]["data"]) == (200, [1.0, 2.0])
                assert {"date", "content-type", "content-length"} == set(headers)
                assert server.taken == turn + 1
                assert (await connection.ask(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"))[0] == 200
                assert (await connection.ask(request(LONG)))[0] == 200
                assert server.taken == turn + 1

    asyncio.run(run())


def test_a_body_may_come_in_pieces() -> None:
    async def run() -> None:
        async with connected() as (server, connection):
            data = request()
            head = data.index(b"\r\n\r\n") + 4
            for piece in (data[: head + 5], data[head + 5 : head + 30], data[head + 30 :]):
                connection.writer.write(piece)
                await connection.writer.drain()
                await asyncio.sleep(0.02)
            assert (await connection.answer())[0] == 200
            assert server.taken == 1

    asyncio.run(run())


def test_a_head_may_come_in_pieces() -> None:
    async def run() -> None:
        async with connected() as (server, connection):
            data = request()
            connection.writer.write(data[:30])
            await connection.writer.drain()
            await asyncio.sleep(0.05)
            assert (await connection.ask(data[30:]))[0] == 200
            assert server.taken == 1
            assert (await connection.ask(data))[0] == 200
            assert server.taken == 2

    asyncio.run(run())


def test_a_body_in_pieces_that_turns_out_unusual_goes_the_long_way_whole() -> None:
    async def run() -> None:
        async with connected() as (server, connection):
            data = request(LONG)
            connection.writer.write(data[:-10])
            await connection.writer.drain()
            await asyncio.sleep(0.05)
            assert (await connection.ask(data[-10:]))[0] == 200
            assert (await connection.ask(request()))[0] == 200
            assert server.taken == 1

    asyncio.run(run())


def test_requests_that_come_too_early_are_answered_in_order() -> None:
    async def run() -> None:
        async with connected() as (server, connection):
            assert server.service.gate is not None
            connection.writer.write(request(BODY, "slow"))
            await connection.writer.drain()
            await asyncio.sleep(0.05)
            connection.writer.write(request(LONG, "slow") + request())
            await connection.writer.drain()
            await asyncio.sleep(0.05)
            server.service.gate.set()
            names = [(await connection.answer())[2]["model_name"] for _ in range(3)]
            assert names == ["slow", "slow", "echo"]

    asyncio.run(run())


def test_large_json_goes_the_long_way_which_reads_it_in_a_thread() -> None:
    async def run() -> None:
        async with connected() as (server, connection):
            tensor = {"name": "IN", "shape": [1, 300_000], "datatype": "FP32", "data": [0.5] * 300_000}
            status, _, answer = await connection.ask(request(json.dumps({"inputs": [tensor]})))
            assert (status, answer["outputs"][0]["data"][-1]) == (200, 0.5)
            assert server.taken == 0

    asyncio.run(run())


def test_refusals_say_what_the_long_way_says() -> None:
    async def run() -> None:
        async with connected() as (server, connection):
            for model in ("overloaded", "late", "broken", "draining", "huge"):
                short = await connection.ask(request(BODY, model))
                long = await connection.ask(request(LONG, model))
                assert (short[0], short[2]) == (long[0], long[2])
                assert {**short[1], "date": ""} == {**long[1], "date": ""}
            assert server.taken == 0
            assert (await connection.ask(request(BODY, "absent")))[0] == 503
            assert (await connection.ask(request(BODY, "nobody")))[0] == 404

    asyncio.run(run())


def test_models_that_come_and_go_are_noticed() -> None:
    async def run() -> None:
        async with connected() as (server, connection):
            await server.service.unload("echo")
            assert (await connection.ask(request()))[0] == 503
            await server.service.load("echo")
            for _ in range(100):
                assert (await connection.ask(request()))[0] == 200
                if server.taken:
                    break
                await asyncio.sleep(0.02)
            assert server.taken

    asyncio.run(run())


def test_keys_are_asked_for() -> None:
    async def run() -> None:
        async with connected(security=Security(keys=("secret",))) as (server, connection):
            assert (await connection.ask(request()))[0] == 401
            assert (await connection.ask(request(BODY, "echo", "X-Api-Key: guess")))[0] == 401
            assert server.taken == 0
            assert (await connection.ask(request(BODY, "echo", "Authorization: Bearer secret")))[0] == 200
            assert (await connection.ask(request(BODY, "echo", "X-Api-Key: secret")))[0] == 200
            assert server.taken == 2

    asyncio.run(run())


def test_a_client_that_leaves_is_forgotten() -> None:
    async def run() -> None:
        async with connected() as (server, connection):
            assert server.service.gate is not None
            connection.writer.write(request(BODY, "slow"))
            await connection.writer.drain()
            await asyncio.sleep(0.05)
            connection.writer.close()
            await asyncio.sleep(0.05)
            server.service.gate.set()
            await asyncio.sleep(0.05)
            assert server.service.held == 0
            another = Connection(*await asyncio.open_connection("127.0.0.1", server.http))
            assert (await another.ask(request()))[0] == 200
            another.writer.close()

    asyncio.run(run())


def test_a_body_that_never_ends_is_given_up() -> None:
    async def run() -> None:
        async with connected(HttpLimits(request_seconds=0.2)) as (_, connection):
            assert (await connection.ask(request()[:-5]))[0] == 408
            assert await connection.reader.read() == b""

    asyncio.run(run())


def test_bodies_that_would_not_fit_together_go_the_long_way() -> None:
    async def run() -> None:
        async with connected(HttpLimits(held_bytes=120)) as (server, connection):
            connection.writer.write(request()[:-5])
            await connection.writer.drain()
            network = server.running.network
            assert network is not None
            while not network.native.long_way():
                await asyncio.sleep(0.001)
            assert (await connection.ask(request()[-5:]))[0] in (200, 429)
            assert server.taken == 0

    asyncio.run(run())


@pytest.mark.thorough
def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    async def run() -> None:
        async with connected(HttpLimits(keep_alive_seconds=3)) as (_, connection):
            for _ in range(4):
                assert (await connection.ask(request()))[0] == 200
                await asyncio.sleep(0.9)
            assert await asyncio.wait_for(connection.reader.read(), 20) == b""

    asyncio.run(run())


def test_stopping_answers_what_is_under_way() -> None:
    async def run() -> None:
        service = FakeService()
        service.gate = asyncio.Event()
        async with serving(service) as server:
            connection = Connection(*await asyncio.open_connection("127.0.0.1", server.http))
            connection.writer.write(request(BODY, "slow"))
            await connection.writer.drain()
            await asyncio.sleep(0.05)
            asyncio.get_running_loop().call_later(0.2, service.gate.set)
        assert (await connection.answer())[0] == 200
        assert await connection.reader.read() == b""

    asyncio.run(run())


@pytest.mark.parametrize("way", WAYS)
def test_connections_beyond_the_limit_are_refused_on_every_way(way: Way) -> None:
    async def run() -> None:
        async with serving(FakeService(), HttpLimits(connections=1), None, way) as server:
            connection = Connection(*await asyncio.open_connection("127.0.0.1", server.http))
            connection.writer.write(request())
            head = await asyncio.wait_for(connection.reader.readuntil(b"\r\n\r\n"), 20)
            assert b" 503 " in head
            connection.writer.close()

    asyncio.run(run())
