"""Calls of gRPC over HTTP/2: what is no call, how many messages it has, and how long it may take."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.server.fakes import until
from tests.support.server.http2_client import (
    BODY,
    DATA,
    END,
    GRPC,
    INFER,
    POST,
    block,
    call,
    frame,
    head,
    literal,
    network,
    replacing,
    run,
    with_head,
)

NO_CALLS: dict[str, tuple[bytes, str, int, str]] = {
    "another method": (replacing(":method", "GET"), "405", 13, ":method: expected POST"),
    "another content-type": (
        block(*POST, ("content-type", "application/json")),
        "415",
        13,
        "content-type: expected application/grpc",
    ),
    "one that begins like it": (
        block(*POST, ("content-type", "application/grpc-web")),
        "415",
        13,
        "content-type: expected application/grpc",
    ),
    "no content-type": (block(*POST), "415", 13, "content-type: expected application/grpc"),
    "too large a head": (
        block(*POST, GRPC) + literal("x", "v" * 1000, 0x40) + 70 * b"\xbe",
        "431",
        8,
        "metadata: expected at most 65536 bytes with 32 for each field (got",
    ),
}


@pytest.mark.parametrize("what", NO_CALLS)
def test_what_is_no_call_is_told_so_in_http_too(what: str) -> None:
    head_fields, http_status, status, reason = NO_CALLS[what]

    async def ask() -> None:
        async with network() as server:
            connection = await server.connect()
            connection.writer.write(with_head(head_fields))
            fields, _ = await connection.answer(1)
            assert (fields[b":status"], fields[b"grpc-status"]) == (
                http_status.encode(),
                str(status).encode(),
            )
            assert fields[b"grpc-message"].decode().startswith(reason)
            assert (b"allow" in fields) == (http_status == "405")
            connection.writer.write(call(3))
            assert (await connection.answer(3))[0][b"grpc-status"] == b"0"

    run(ask())


BAD_TIMEOUTS = ["", "n", "5", "5x", "-5S", "+5S", "1.5S", "123456789S", "5 S", "0x5S", "S5", "5s"]


@pytest.mark.parametrize("path", [INFER, "/inference.GRPCInferenceService/ModelStreamInfer"])
@pytest.mark.parametrize("timeout", BAD_TIMEOUTS[1:])
def test_a_timeout_that_is_none_is_refused(timeout: str, path: str) -> None:
    async def ask() -> None:
        async with network() as server:
            connection = await server.connect()
            connection.writer.write(call(path=path, grpc_timeout=timeout))
            fields, _ = await connection.answer(1)
            assert fields[b"grpc-status"] == b"3"
            assert fields[b"grpc-message"].startswith(b"grpc-timeout: expected 1 to 8 digits")
            assert fields[b"grpc-message"].endswith(f"(got '{timeout}')".encode())

    run(ask())


METHODS = ["ModelInfer", "ServerLive", "ModelStreamInfer"]


@pytest.mark.parametrize("timeout", ["0n", "0H", "00000000m"])
@pytest.mark.parametrize("method", METHODS)
def test_no_time_at_all_is_over_when_it_begins(method: str, timeout: str) -> None:
    async def ask() -> None:
        async with network() as server:
            server.loopback.plan([(10**9, [0, 10**6])], 1)
            connection = await server.connect()
            connection.writer.write(call(path=INFER.replace("ModelInfer", method), grpc_timeout=timeout))
            assert (await connection.answer(1))[0][b"grpc-status"] == b"4"

    run(ask())


TWO = b"expected one message, and more came"
CARDINALITY: dict[str, tuple[bytes, bytes]] = {
    "two messages at once": (frame(DATA, END, 1, BODY + BODY), TWO),
    "two messages": (
        frame(DATA, 0, 1, BODY) + frame(DATA, END, 1, BODY),
        TWO,
    ),
    "a bit of another": (
        frame(DATA, 0, 1, BODY) + frame(DATA, 0, 1, b"\0"),
        TWO,
    ),
    "none": (frame(DATA, END, 1), b"expected a message, and none came"),
}


@pytest.mark.parametrize("path", [INFER, INFER.replace("ModelInfer", "ModelReady")])
@pytest.mark.parametrize("what", CARDINALITY)
def test_a_unary_call_has_one_message(what: str, path: str) -> None:
    sent, reason = CARDINALITY[what]

    async def ask() -> None:
        async with network(answers=False) as server:
            connection = await server.connect()
            connection.writer.write(with_head(head(path)) + sent)
            fields, _ = await connection.answer(1)
            assert (fields[b"grpc-status"], fields[b"grpc-message"]) == (b"12", reason)
            for number_, *_ in server.loopback.pop():
                server.loopback.end(number_)
            await until(lambda: server.grpc.native.held() == server.grpc.native.long_calls() == 0)

    run(ask())


BAD_MESSAGES: dict[str, bytes] = {
    "a message that begins with two": frame(DATA, END, 1, b"\2" + BODY[1:]),
    "a message that begins with 255": frame(DATA, 0, 1, b"\xff"),
    "half a message": frame(DATA, END, 1, BODY[:-1]),
    "half a message's length": frame(DATA, END, 1, BODY[:3]),
}


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize("what", BAD_MESSAGES)
def test_bytes_that_are_no_message_end_the_call(what: str, method: str) -> None:
    async def ask() -> None:
        async with network() as server:
            connection = await server.connect()
            connection.writer.write(with_head(head(INFER.replace("ModelInfer", method))) + BAD_MESSAGES[what])
            assert (await connection.answer(1))[0][b"grpc-status"] == b"13"
            await asyncio.sleep(0)
            await until(lambda: server.grpc.native.held() == server.grpc.native.long_calls() == 0)

    run(ask())
