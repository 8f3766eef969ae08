"""Who may call, and what nobody may do: keys, certificates, and bodies that mean harm."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
import subprocess
import zlib
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from astrarium.core.errors import InputError
from astrarium.server.contract import Kind, Refused
from astrarium.server.grpc.server import serve_grpc
from astrarium.server.http.bodies import BodyReader, Disconnected, decompressed
from astrarium.server.http.server import serve_http
from astrarium.server.protocol.keys import Keys
from astrarium.server.settings import HttpLimits, Security
from tests.support.server.fakes import WAYS, FakeService, Served, Way, served

KEYS = ("first-key", "second-key")
LIMITS = HttpLimits(body_bytes=100_000, head_bytes=10_000)
BODY = json.dumps({"inputs": [{"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}).encode()


# Keys


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    """How plain requests come in."""
    found: Way = request.param
    return found


@pytest.fixture(scope="module")
def locked(way: Way) -> Iterator[Served]:
    with served(LIMITS, Security(keys=KEYS), way) as running:
        yield running


def ask(
    server: Served, path: str, headers: dict[str, str] | None = None, body: Any = None
) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection("127.0.0.1", server.http, timeout=10)
    connection.request("GET" if body is None else "POST", path, body, headers or {})
    response = connection.getresponse()
    answer = response.status, dict(response.headers), response.read()
    connection.close()
    return answer


SHOWN = [
    ({}, 401),
    ({"Authorization": "Bearer first-key"}, 200),
    ({"Authorization": "bearer second-key"}, 200),
    ({"X-API-Key": "second-key"}, 200),
    ({"Authorization": "Bearer first-ke"}, 401),
    ({"Authorization": "Bearer first-keyy"}, 401),
    ({"Authorization": "Basic first-key"}, 401),
    ({"Authorization": "Bearer "}, 401),
    ({"X-API-Key": ""}, 401),
    ({"X-API-Key": "sécond"}, 401),
]


@pytest.mark.parametrize(("headers", "status"), SHOWN)
@pytest.mark.parametrize("path", ["/v2", "/metrics", "/", "/openapi.json", "/v2/models/echo/ready"])
def test_pages_want_a_key(locked: Served, path: str, headers: dict[str, str], status: int) -> None:
    assert ask(locked, path, headers)[0] == status


def test_without_a_key_nothing_is_learnt_but_health(locked: Served) -> None:
    assert ask(locked, "/v2/health/live")[0] == 200
    assert ask(locked, "/v2/health/ready")[0] == 200
    assert ask(locked, "/no/such/path")[0] == 401
    status, headers, content = ask(locked, "/v2/models/echo/infer", body=BODY)
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert "first-key" not in content.decode()
    assert len(locked.service.calls) == 0


def test_grpc_wants_the_same_keys(locked: Served) -> None:
    with triton_grpc.InferenceServerClient(locked.grpc_url) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.get_server_metadata(headers={"authorization": "Bearer first-key"}).name == "astrarium"
        assert client.get_server_metadata(headers={"x-api-key": "second-key"}).name == "astrarium"
        for headers in ({}, {"authorization": "Bearer third"}, {"x-api-key": ""}):
            with pytest.raises(InferenceServerException) as caught:
                client.get_server_metadata(headers=headers)
            assert caught.value.status() == "StatusCode.UNAUTHENTICATED"


def test_grpc_streams_want_a_key_too(locked: Served) -> None:
    with grpc.insecure_channel(locked.grpc_url) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(iter([b""]))
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("key", ["", " ", " a", "ключ"])
def test_a_key_that_cannot_be_shown_is_no_key(key: str) -> None:
    with pytest.raises(InputError, match="API key"):
        Keys(["good", key])


def test_keys_stay_out_of_logs() -> None:
    assert "first-key" not in repr(Security(keys=KEYS))


# Certificates


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certificate = folder / "certificate.pem"
    key = folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def test_both_protocols_speak_tls(certificate: tuple[Path, Path]) -> None:
    array = np.array([[1.0, 2.0]], np.float32)
    with served(security=Security(certificate=certificate[0], private_key=certificate[1])) as running:
        trust = ssl.create_default_context(cafile=str(certificate[0]))
        with triton_http.InferenceServerClient(
            f"localhost:{running.http}", ssl=True, ssl_context_factory=lambda: trust
        ) as client:
            given = triton_http.InferInput("IN", [1, 2], "FP32")
            given.set_data_from_numpy(array)
            assert np.array_equal(client.infer("echo", [given]).as_numpy("OUT_IN"), array)
        with triton_grpc.InferenceServerClient(
            f"localhost:{running.grpc}", ssl=True, root_certificates=str(certificate[0])
        ) as secure:
            other = triton_grpc.InferInput("IN", [1, 2], "FP32")
            other.set_data_from_numpy(array)
            assert np.array_equal(secure.infer("echo", [other]).as_numpy("OUT_IN"), array)


@pytest.mark.parametrize("serve", [serve_http, serve_grpc])
def test_a_certificate_that_is_not_there_is_named(serve: Any, tmp_path: Path) -> None:
    missing = Security(certificate=tmp_path / "none.pem", private_key=tmp_path / "none.key")

    async def start() -> None:
        await serve(FakeService(), security=missing)

    with pytest.raises(InputError, match=r"PEM files.*none\.(pem|key)"):
        asyncio.run(start())


# Bodies


@pytest.fixture(scope="module")
def small(way: Way) -> Iterator[Served]:
    with served(LIMITS, way=way) as running:
        yield running


def test_a_body_that_says_it_is_too_large_is_not_read(small: Served) -> None:
    status, _, content = ask(small, "/v2/models/echo/infer", body=bytes(100_001))
    assert (status, json.loads(content)["error"]) == (
        413,
        "body: expected at most 100000 bytes (got 100001)",
    )


def test_a_body_that_grows_too_large_is_cut_off(small: Served) -> None:
    status, _, content = ask(small, "/v2/models/echo/infer", body=(bytes(10_000) for _ in range(11)))
    assert (status, "at most 100000 bytes" in json.loads(content)["error"]) == (413, True)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_bomb_does_not_go_off(small: Served, pack: Any) -> None:
    bomb = pack(bytes(50_000_000))
    assert len(bomb) < 100_000
    encoding = "gzip" if pack is gzip.compress else "deflate"
    status, _, content = ask(small, "/v2/models/echo/infer", {"Content-Encoding": encoding}, bomb)
    assert (status, "after decompression" in json.loads(content)["error"]) == (413, True)


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
