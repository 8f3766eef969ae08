"""Clients of the native network, many or slow or gone: each has its answers, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import struct
from dataclasses import replace

import numpy as np
import pytest

from astrarium.core.optional import extension
from astrarium.server.http.server import serve_http
from tests.support.server.fakes import FakeService, LoopbackFront, until
from tests.support.server.http_connection import Connection, request
from tests.support.server.native_network import OPEN, PLAIN, asking, binary, running

pytestmark = pytest.mark.skipif(extension("_front") is None, reason="needs the native extension")


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
            answer = json.loads(await connection.reader.readexactly(size))
            assert answer["outputs"][0]["shape"] == [1, 1_000_000]
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
                turn = 0
                while going:
                    status, _, answer = await connection.ask(asking([at, turn]))
                    assert (status, answer["outputs"][0]["data"]) == (200, [at, turn])
                    turn += 1
                return turn

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
