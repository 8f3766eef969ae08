"""Bodies that mean harm: too large, bombs, broken, without an end, too many at once."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import zlib
from collections.abc import Iterator
from typing import Any, cast

import pytest

from astrarium.server.contract import Kind, Refused
from astrarium.server.http.bodies import BodyReader, Disconnected, decompressed
from astrarium.server.http.server import serve_http
from astrarium.server.settings import HttpLimits
from tests.support.server.fakes import WAYS, FakeService, Served, Way, served

LIMITS = HttpLimits(body_bytes=100_000, head_bytes=10_000)
BODY = json.dumps({"inputs": [{"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return cast("Way", request.param)


@pytest.fixture(scope="module")
def small(way: Way) -> Iterator[Served]:
    with served(LIMITS, way=way) as running:
        yield running


def test_a_body_that_says_it_is_too_large_is_not_read(small: Served) -> None:
    response, content = small.ask("POST", "/v2/models/echo/infer", bytes(100_001))
    assert (response.status, json.loads(content)["error"]) == (
        413,
        "body: expected at most 100000 bytes (got 100001)",
    )


def test_a_body_that_grows_too_large_is_cut_off(small: Served) -> None:
    response, content = small.ask("POST", "/v2/models/echo/infer", (bytes(10_000) for _ in range(11)))
    assert (response.status, "at most 100000 bytes" in json.loads(content)["error"]) == (413, True)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_bomb_does_not_go_off(small: Served, pack: Any) -> None:
    bomb = pack(bytes(50_000_000))
    assert len(bomb) < 100_000
    encoding = "gzip" if pack is gzip.compress else "deflate"
    response, content = small.ask("POST", "/v2/models/echo/infer", bomb, {"Content-Encoding": encoding})
    assert (response.status, "after decompression" in json.loads(content)["error"]) == (413, True)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"no gzip at all", "as Content-Encoding says"),
        (gzip.compress(BODY, mtime=0)[:-3], "it ends too early"),
        (gzip.compress(BODY, mtime=0) + b"more", "something follows it"),
        (b"", "it ends too early"),
    ],
)
def test_broken_compression_is_refused(body: bytes, what: str) -> None:
    with pytest.raises(Refused, match=what):
        asyncio.run(decompressed(body, "gzip", 1000))


def test_compression_up_to_the_limit_is_fine() -> None:
    assert asyncio.run(decompressed(gzip.compress(bytes(1000)), "gzip", 1000)) == bytes(1000)


def raw(server: Served, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.http), timeout=10) as connection:
        connection.sendall(sent)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


@pytest.mark.parametrize(
    "sent",
    [
        b"this is not HTTP\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * 20_000,
        b"GET /" + b"x" * 20_000,
    ],
)
def test_what_is_no_request_or_has_no_end_is_refused(small: Served, sent: bytes) -> None:
    head, _, body = raw(small, sent).partition(b"\r\n\r\n")
    assert head[9:12] in (b"400", b"431")
    assert json.loads(body)["error"]


class Sending:
    """An ASGI client that hands over these parts, and then nothing more."""

    def __init__(self, *parts: bytes, leaves: bool = False) -> None:
        self._parts = list(parts)
        self._leaves = leaves

    async def __call__(self) -> dict[str, Any]:
        if self._parts:
            return {"type": "http.request", "body": self._parts.pop(0), "more_body": True}
        if self._leaves:
            return {"type": "http.disconnect"}
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


HALF = b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY[:20]


@pytest.mark.parametrize("sent", [b"GET /v2 HTTP/1.1\r\nhost", HALF])
def test_a_request_that_never_ends_is_given_up(sent: bytes, way: Way) -> None:
    with served(HttpLimits(request_seconds=0.05), way=way) as impatient:
        head, _, body = raw(impatient, sent).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert json.loads(body)["error"] == "request: expected whole within 0.05 s"


def test_patience_is_for_requests_not_for_connections() -> None:
    async def talk() -> None:
        running = await serve_http(FakeService())
        connections: set[Any] = running._server.server_state.connections
        reader, writer = await asyncio.open_connection(running.host, running.port)
        for _ in range(2):
            writer.write(HALF)
            while not any(connection._deadline for connection in connections):
                await asyncio.sleep(0.001)
            writer.write(BODY[20:])
            assert (await reader.readline()).endswith(b"200 OK\r\n")
            assert [connection._deadline for connection in connections] == [None]
            await reader.readuntil(b"}]}")
        writer.close()
        await running.stop(grace=1.0)

    asyncio.run(asyncio.wait_for(talk(), timeout=20))


def test_a_client_that_leaves_takes_its_bytes_along() -> None:
    reader = BodyReader(HttpLimits())
    with pytest.raises(Disconnected):
        asyncio.run(reader.read({}, Sending(b"abc", leaves=True)))
    assert reader.held == 0


def test_all_bodies_together_are_bounded() -> None:
    reader = BodyReader(HttpLimits(held_bytes=100))

    def whole(size: int) -> Any:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": bytes(size), "more_body": False}

        return asyncio.run(reader.read({}, receive))

    first = whole(60)
    with pytest.raises(Refused, match="at most 100 bytes in all") as caught:
        whole(41)
    assert caught.value.kind is Kind.OVERLOADED
    reader.let_go(first)
    assert len(whole(100)) == 100
    assert reader.held == 100


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"", b"9" * 30])
def test_lengths_that_are_no_numbers_or_absurd(length: bytes) -> None:
    with pytest.raises(Refused):
        asyncio.run(BodyReader(HttpLimits()).read({b"content-length": length}, Sending()))
