"""Unusual requests are answered as they are without native threads, by these or by Python."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from typing import Any

import pytest

from astrarium.core.optional import extension
from astrarium.server.settings import HttpLimits
from tests.support.server.fakes import WAYS, FakeService, Way, serving, until
from tests.support.server.http_connection import BODY, LONG, Connection, request

pytestmark = pytest.mark.skipif(extension("_front") is None, reason="needs the native extension")


INFER = "POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n"
OFFER = "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"
CHUNKED = "Transfer-Encoding: chunked\r\n\r\n"


def packed(body: bytes) -> str:
    """A request with a compressed body; each character is one of its bytes."""
    return f"{INFER}Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n" + body.decode("latin-1")


def tensor_of(datatype: str, data: bytes, rows: int = 1, **more: Any) -> str:
    tensor = {"name": "IN", "shape": [rows, 2], "datatype": datatype}
    body = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": len(data)}}], **more})
    first = f"POST /v2/models/all_{datatype.lower()}/infer HTTP/1.1"
    size = len(body) + len(data)
    head = f"{first}\r\nHost: x\r\nContent-Length: {size}\r\n"
    return f"{head}Inference-Header-Content-Length: {len(body)}\r\n\r\n{body}" + data.decode("latin-1")


def texts(data: Any, **more: Any) -> str:
    """Text for a model that gives it back: rows of a JSON list, or two elements in binary."""
    if isinstance(data, bytes):
        return tensor_of("BYTES", data, **more)
    tensor = {"name": "IN", "shape": [len(data), 2], "datatype": "BYTES", "data": data}
    return request(json.dumps({"inputs": [tensor], **more}), "all_bytes").decode()


UNUSUAL = {
    "expect": f"{INFER}Expect: 100-continue\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}",
    "http 1.0": f"POST /v2/models/echo/infer HTTP/1.0\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}",
    "close": f"{INFER}Connection: close\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}",
    "head": "HEAD /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
    "lines that end with half an end": request(BODY).decode().replace("\r\n", "\n"),
    "in turns": (request(LONG) + request() + b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n" + request()).decode(),
    "no length": f"{INFER}\r\n",
    "close, then more": f"{INFER}Connection: close\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}"
    + 2 * f"{INFER}\r\n",
    "expect, and a mistake": f"{INFER}Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
    "chunks": f"{INFER}{CHUNKED}{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n",
    "chunks with an extension": f"{INFER}{CHUNKED}{len(BODY):x};a=b\r\n{BODY}\r\n0\r\n\r\n",
    "chunks with a trailer": f"{INFER}{CHUNKED}{len(BODY):x}\r\n{BODY}\r\n0\r\nA: b\r\n\r\n",
    "an unfinished chunk": f"{INFER}{CHUNKED}{len(BODY):x}\r\n{BODY}x\r\n0\r\n\r\n",
    "no chunk": f"{INFER}{CHUNKED}0\r\n\r\n",
    "a length of no chunk": f"{INFER}{CHUNKED}-1\r\n\r\n0\r\n\r\n",
    "chunks and a length": f"{INFER}Content-Length: 5\r\n{CHUNKED}0\r\n\r\n",
    "a charset": request(BODY, "echo", "Content-Type: application/json ; charset=utf-8").decode(),
    "an answer in gzip": request(BODY, "echo", "Accept-Encoding: gzip").decode("latin-1"),
    "an answer in deflate": request(BODY, "echo", "Accept-Encoding: DEFLATE").decode("latin-1"),
    "an answer in anything": request(BODY, "echo", "Accept-Encoding: gzip, br").decode("latin-1"),
    "a mistake with gzip": request("{}", "echo", "Accept-Encoding: gzip").decode("latin-1"),
    "a body in gzip": packed(gzip.compress(BODY.encode(), mtime=0)),
    "a body in deflate": packed(zlib.compress(BODY.encode())),
    "no body in gzip": packed(BODY.encode()),
    "half a body in gzip": packed(gzip.compress(BODY.encode(), mtime=0)[:-9]),
    "more than a body in gzip": packed(2 * gzip.compress(BODY.encode(), mtime=0)),
    "a bomb": packed(gzip.compress(bytes(10_000_000), mtime=0)),
    "texts": texts([["a", 'é"\\\n\x01\t'], ["", "longer than the others"]]),
    "texts in binary": texts([["a", "b"], ["", "longer"]], parameters={"binary_data_output": True}),
    "no UTF-8 in the answer": texts(b"\1\0\0\0a\x19\0\0\0it's \xff\xfe\\ no text at \n all"),
    "more text than it says": texts(b"\1\0\0\0a\xff\0\0\0it's \xff\xfe\\ no text at \n all"),
    "too few texts": texts(b"\1\0\0\0a"),
    "BF16": tensor_of("BF16", b"1234", parameters={"binary_data_output": True}),
    "BF16 in JSON": tensor_of("BF16", b"1234"),
    "an id in another alphabet": request(BODY[:-1] + ', "id": "\\u00e9\\ud83d\\ude00\\n"}').decode(),
    "unknown fields": request(
        BODY[:-1] + ', "more": "\\n", "less": null, "parameters": {"x": 1.5}}'
    ).decode(),
    "an offer to upgrade": request(BODY, "echo", *OFFER).decode(),
    "an offer to upgrade, and the end": request(
        BODY, "echo", "Connection: Upgrade, close", OFFER[1]
    ).decode(),
    "an offer to upgrade, the long way": request(LONG, "echo", *OFFER).decode(),
    "a body that offers an upgrade": texts(b"\1\0\0\0a\x13\0\0\0a: b\r\nUpgrade: h2c\r\n"),
    "an unknown field twice": request(BODY[:-1] + ', "more": 1, "more": 2}').decode(),
}
UPGRADE = b"GET /v2 HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
TOO_LARGE = f"{INFER}Content-Length: 99999999999\r\n\r\n{BODY}"
LAST = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def said(port: int, sent: bytes) -> bytes:
    """All that the server says until it closes, without dates."""
    connection = await Connection.to(port)
    connection.writer.write(sent)
    answer = await asyncio.wait_for(connection.reader.read(), 60)
    connection.writer.close()
    lines = answer.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.startswith(b"date: "))


SHORT = {
    *("expect", "http 1.0", "close", "chunks", "a charset", "an answer in gzip", "an answer in deflate"),
    *("a body in gzip", "a body in deflate", "texts", "texts in binary", "no UTF-8 in the answer", "BF16"),
    *("an id in another alphabet", "unknown fields", "an offer to upgrade"),
}


@pytest.mark.parametrize("case", sorted(SHORT))
def test_features_go_the_short_way(case: str) -> None:
    async def run() -> None:
        service = FakeService()
        async with serving(service) as server:
            await said(server.http, UNUSUAL[case].encode("latin-1") + LAST)
            assert (server.taken, service.long_way) == (1, [])

    asyncio.run(run())


@pytest.mark.parametrize("case", UNUSUAL)
def test_unusual_requests_are_answered_as_without_native_threads(case: str) -> None:
    async def by(way: Way) -> bytes:
        async with serving(FakeService(), way=way) as server:
            return await said(server.http, UNUSUAL[case].encode("latin-1") + LAST)

    async def run() -> None:
        answer = await by("native")
        assert answer == await by("long")
        assert answer

    asyncio.run(run())


def test_an_upgrade_is_not_made() -> None:
    async def run(way: Way) -> Any:
        async with serving(FakeService(), way=way) as server:
            connection = await Connection.to(server.http)
            status, _, answer = await connection.ask(UPGRADE)
            connection.writer.close()
            return status, answer

    assert asyncio.run(run("native")) == asyncio.run(run("long"))
    assert asyncio.run(run("native"))[0] == 200


LARGE = json.dumps(
    {"inputs": [{"name": "IN", "shape": [1, 300_000], "datatype": "FP32", "data": [1] * 300_000}]}
)
HALF_CLOSED = {
    "plain": (request(), 1),
    "the long way": (request(LONG), 1),
    "large": (request(LARGE), 1),
    "a page": (b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n", 1),
    "both ways after each other": (request() + request(LONG) + request() + request(LONG), 4),
    "many": (request() * 20, 20),
    "many, the long way": (request(LONG) * 20, 20),
    "and part of another": (request() + request()[:-5], 1),
    "and part of another, the long way": (request(LONG) + request(LONG)[:-5], 1),
    "part of one": (request()[:-5], 0),
    "part of a head": (b"GET /v2 HT", 0),
    "nothing": (b"", 0),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", HALF_CLOSED)
def test_a_client_that_sends_no_more_is_answered(case: str, way: Way) -> None:
    sent, answers = HALF_CLOSED[case]

    async def run() -> None:
        async with serving(FakeService(), way=way) as server:
            for _ in range(10):
                connection = await Connection.to(server.http)
                connection.writer.write(sent)
                connection.writer.write_eof()
                answer = await asyncio.wait_for(connection.reader.read(), 60)
                connection.writer.close()
                assert answer.count(b"HTTP/1.1 200 OK\r\n") == answer.count(b"HTTP/1.1") == answers

    asyncio.run(run())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("body", [BODY, LONG])
def test_a_client_that_sends_no_more_may_wait_for_its_answer(body: str, way: Way) -> None:
    async def run() -> None:
        service = FakeService(gate=asyncio.Event())
        async with serving(service, way=way) as server:
            connection = await Connection.to(server.http)
            connection.writer.write(request(body, "slow"))
            connection.writer.write_eof()
            await until(lambda: service.calls)
            await asyncio.sleep(0.05)
            assert service.gate is not None
            service.gate.set()
            assert (await connection.answer())[0] == 200
            assert await asyncio.wait_for(connection.reader.read(), 60) == b""
            connection.writer.close()

    asyncio.run(run())


def test_a_long_answer_to_a_client_that_does_not_read_waits_for_it() -> None:
    async def run() -> None:
        values = [0.5] * 1_000_000
        tensor = {"name": "IN", "shape": [1, len(values)], "datatype": "FP32", "data": values}
        async with serving(FakeService(), way="native") as server:
            connection = await Connection.to(server.http)
            connection.writer.write(request(json.dumps({"inputs": [tensor]})) + request())
            await until(lambda: server.service.calls and not server.service.held)
            assert (await connection.answer())[2]["outputs"][0]["data"] == values
            assert (await connection.answer())[0] == 200
            connection.writer.close()

    asyncio.run(run())


def test_a_request_that_is_not_whole_in_time_is_refused_by_either() -> None:
    async def by(way: Way, sent: bytes) -> bytes:
        async with serving(FakeService(), HttpLimits(request_seconds=0.05), way=way) as server:
            return await said(server.http, sent)

    async def run() -> None:
        parts = request()[:-1], request()[:20], request(LONG)[:-1], b"GET /v2 HT"
        for sent in (*parts, TOO_LARGE.encode()):
            assert await by("native", sent) == await by("long", sent)

    asyncio.run(run())
