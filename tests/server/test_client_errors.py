"""What clients do that is no call (nonsense, silence, too many) is counted, told, and costs little."""

from __future__ import annotations

import asyncio
import json
import logging
import socket

import pytest

from astrarium.server.http import json_outline, json_tensors
from astrarium.server.process.logs import ThrottledWarnings
from astrarium.server.settings import LARGE, HttpLimits
from tests.support.server.fakes import WAYS, FakeService, Way, serving, until
from tests.support.server.http_connection import LONG, Connection, request


@pytest.mark.parametrize("way", WAYS)
def test_garbage_is_logged_by_address_and_sparingly(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> FakeService:
        async with serving(service := FakeService(), way=way) as server:
            for _ in range(50):
                connection = await Connection.to(server.http)
                connection.writer.write(b"garbage\r\n")
                await asyncio.wait_for(connection.reader.read(), 60)
                connection.writer.close()
        return service

    service = asyncio.run(run())
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert service.client_errors.bad_requests == {"400": 50}
    assert len(lines) == 5
    for line in lines:
        assert line.startswith("a client at 127.0.0.1:")
        assert "got 400: request: expected 'METHOD target HTTP/1.1' (got b'garbage')" in line


def test_a_few_lines_are_written_and_the_rest_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    sparing = ThrottledWarnings(logging.getLogger("test"), seconds=60, clock=lambda: now[0], burst=2)
    for now[0] in (0, 1, 2, 59, 60, 61, 62):
        sparing.warning("at %d", now[0])
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["at 0", "at 1", "at 60 (2 more since the last such line)", "at 61"]


def test_the_count_is_told_when_the_time_is_over(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        sparing = ThrottledWarnings(logging.getLogger("test"), seconds=0.05)
        for _ in range(4):
            sparing.warning("again")
        await until(lambda: len(caplog.records) == 2)

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == ["again", "3 more such lines were left out"]


LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
MORE_THAN_BUFFERS = 50_000_000  # bytes, of sockets on both sides
# Silence: both ways have the same limits


@pytest.mark.parametrize("way", WAYS)
def test_who_never_says_anything_is_left(way: Way) -> None:
    async def run() -> None:
        async with serving(FakeService(), HttpLimits(keep_alive_seconds=1), way=way) as server:
            connection = await Connection.to(server.http)
            assert await asyncio.wait_for(connection.reader.read(), 60) == b""
            connection.writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("way", WAYS)
def test_who_takes_nothing_of_its_answer_is_left(way: Way) -> None:
    async def run() -> None:
        limits = HttpLimits(keep_alive_seconds=1)
        async with serving(FakeService(), limits, way=way) as server:
            connections = server.running.connections
            size = 3_000_000
            tensor = {"name": "IN", "shape": [1, size], "datatype": "FP32"}
            body = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": 4 * size}}]})
            head = f"Content-Length: {len(body) + 4 * size}\r\nInference-Header-Content-Length: {len(body)}"
            first = "POST /v2/models/echo/infer HTTP/1.1\r\nHost: x"
            with socket.create_connection(("127.0.0.1", server.http)) as line:
                line.setblocking(False)
                sent = f"{first}\r\n{head}\r\n\r\n{body}".encode() + bytes(4 * size)
                await asyncio.get_running_loop().sock_sendall(line, sent)
                await until(lambda: server.service.calls)
                await until(lambda: connections() == 0)

    asyncio.run(run())


@pytest.mark.parametrize("way", WAYS)
def test_requests_that_come_too_early_are_not_read_without_end(way: Way) -> None:
    async def run() -> None:
        service = FakeService(gate=asyncio.Event())
        async with serving(service, way=way) as server:
            with socket.create_connection(("127.0.0.1", server.http)) as line:
                line.setblocking(False)
                line.send(request(LONG, "slow"))
                await until(lambda: service.calls)
                sent = 0
                refused = 0
                while sent < MORE_THAN_BUFFERS and refused < 50:
                    try:
                        sent += line.send(LIVE * 1000)
                        refused = 0
                    except BlockingIOError:
                        refused += 1
                        await asyncio.sleep(0.01)
                assert sent < MORE_THAN_BUFFERS

    asyncio.run(run())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", ["id", "parameters", "spaces", "many fields"])
def test_json_beside_tensors_has_its_limit_below_a_mebibyte(where: str, way: Way) -> None:
    body = {"inputs": [{"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
    text = json.dumps(body)[:-1]
    more = {
        "id": f', "id": "{"x" * 300_000}"}}',
        "parameters": f', "parameters": {{"x": "{"x" * 300_000}"}}}}',
        "spaces": " " * 300_000 + "}",
        "many fields": "".join(f', "f{i}": {i}' for i in range(20_000)) + "}",
    }[where]

    async def run() -> None:
        async with serving(FakeService(), way=way) as server:
            connection = await Connection.to(server.http)
            status, _, answer = await connection.ask(request(text + more))
            assert status == 413
            expected = f"body: expected at most {LARGE} bytes of JSON beside the elements of tensors (got "
            assert answer["error"].startswith(expected)
            connection.writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", ["data", "name"])
def test_elements_of_tensors_do_not_count(first: str, way: Way) -> None:
    tensor = {"data": [0.5] * 100_000, "name": "IN", "shape": [1, 100_000], "datatype": "FP32"}
    if first == "name":
        tensor["data"] = tensor.pop("data")
    body = json.dumps({"inputs": [tensor], "id": "x" * 200_000})
    assert LARGE < len(body) < 1 << 20

    async def run() -> None:
        async with serving(FakeService(), way=way) as server:
            connection = await Connection.to(server.http)
            assert (await connection.ask(request(body)))[0] == 200
            assert server.taken == (way == "native")
            connection.writer.close()

    asyncio.run(run())


def test_the_limit_holds_without_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (json_outline, json_tensors):
        monkeypatch.setattr(module, "extension", lambda name: None)
    tensor = {"name": "IN", "shape": [1, 100_000], "datatype": "FP32", "data": [0.5] * 100_000}

    async def run() -> None:
        async with serving(FakeService(), way="long") as server:
            connection = await Connection.to(server.http)
            for size, status in [(200_000, 200), (300_000, 413)]:
                body = json.dumps({"inputs": [tensor], "id": "x" * size})
                assert (await connection.ask(request(body)))[0] == status
            connection.writer.close()

    asyncio.run(run())
