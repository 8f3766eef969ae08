"""Attacks over HTTP/2: their connections are left, and everybody else is served."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from astrarium.core.optional import extension
from astrarium.server.settings import Security
from tests.support.server.fakes import until
from tests.support.server.http2_client import (
    CONTINUATION,
    DATA,
    END,
    GO_AWAY,
    HEAD_END,
    HEADERS,
    INFER,
    PING,
    PRIORITY,
    RESET,
    STREAM,
    WINDOW,
    Connection,
    call,
    error,
    frame,
    head,
    literal,
    message,
    network,
    prefixed,
    run,
)
from tests.support.server.native_network import PLAIN

pytestmark = pytest.mark.skipif(extension("_front") is None, reason="needs the native extension")

LIVE = INFER.replace("ModelInfer", "ServerLive")
CALM = error(11)


def resident() -> int:
    """Bytes of this process, in which the server runs too."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def sent_all(connection: Connection, pieces: list[bytes]) -> None:
    """Send, until the server does not listen any more."""
    try:
        for piece in pieces:
            connection.writer.write(piece)
            await connection.writer.drain()
    except ConnectionError:
        return


async def left(connection: Connection) -> bytes:
    """The error that the connection was left with."""
    body = (await connection.until(GO_AWAY)).body
    return body[4:8]


@pytest.mark.parametrize("name", ["x-anything", "authorization"])
@pytest.mark.parametrize("keys", [(), ("k",)], ids=["open", "with a key"])
def test_references_to_a_large_field_take_no_memory(name: str, keys: tuple[str, ...]) -> None:
    """A field of 4,000 bytes in the table, then calls without data that name it 15 times each."""

    async def ask() -> None:
        async with network(PLAIN, answers=False, security=Security(keys=keys)) as server:
            before = resident()
            fields = head(x_api_key="k")
            attack = frame(HEADERS, HEAD_END, 1, fields + literal(name, "v" * 4000, 0x40))
            attack += b"".join(
                frame(HEADERS, HEAD_END, stream, fields + 15 * b"\xbe") for stream in range(3, 8183, 2)
            )
            connections = [await server.connect() for _ in range(15)]
            for connection in connections:
                connection.writer.write(attack)
            for connection in connections:
                assert await left(connection) == CALM
            assert resident() - before < 150 << 20
            await until(lambda: server.grpc.kept() == 0)
            other = await server.connect()
            other.writer.write(call(x_api_key="k"))
            await server.front.popped()

    run(ask())


RAPID: dict[str, bytes] = {
    # what a client sends for each stream, which is 1 here
    "of a method that Python answers": call(path=LIVE) + frame(RESET, 0, 1, error(8)),
    "of a plain call": call() + frame(RESET, 0, 1, error(8)),
    "of a call without data": frame(HEADERS, HEAD_END, 1, head()) + frame(RESET, 0, 1, error(8)),
    "of a stream of messages": frame(HEADERS, HEAD_END, 1, head(STREAM))
    + frame(DATA, 0, 1, prefixed(message().SerializeToString()))
    + frame(RESET, 0, 1, error(8)),
    "that we are made to send, by a window": frame(HEADERS, HEAD_END, 1, head())
    + frame(WINDOW, 0, 1, bytes(4)),
    "that we are made to send, by a priority": call(path=LIVE) + frame(PRIORITY, 0, 1, error(1) + b"\0"),
    "that we are made to send, by data after the end": call() + frame(DATA, END, 1, b"x"),
    "that we are made to send, by a malformed head": frame(HEADERS, HEAD_END, 1, head() + literal("X", "")),
}


def renumbered(frames: bytes, stream: int) -> bytes:
    """The same frames, all of them on *stream*."""
    copy = b""
    at = 0
    while at < len(frames):
        size = 9 + int.from_bytes(frames[at : at + 3], "big")
        body = frames[at + 9 : at + size]
        if frames[at + 3] == PRIORITY:
            body = error(stream) + body[4:]
        copy += frames[at : at + 5] + error(stream) + body
        at += size
    return copy


@pytest.mark.parametrize("what", RAPID)
def test_rapid_resets_end_the_connection_and_leave_nothing_behind(what: str) -> None:
    async def ask() -> None:
        async with network(PLAIN, answers=False, most_open=10_000) as server:
            connection = await server.connect()
            other = await server.connect()
            pieces = [renumbered(RAPID[what], stream) for stream in range(1, 8001, 2)]
            sending = asyncio.create_task(sent_all(connection, pieces))
            assert await left(connection) == CALM
            await sending
            assert server.grpc.left()["resets"] == 1
            other.writer.write(call(path=LIVE))
            assert (await other.answer(1))[0][b"grpc-status"] == b"0"
            while server.front.exchange.admission.open():
                for number, *_ in server.loopback.pop():
                    server.loopback.end(number)
                await asyncio.sleep(0.001)
            await until(lambda: server.grpc.native.long_calls() == server.grpc.kept() == 0)

    run(ask())


def test_calls_that_are_reset_before_python_has_them_never_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        async with network(PLAIN) as server:
            served: list[object] = []
            begin = server.grpc._begin

            def count(number: tuple[int, int], about: Any, calls: Any) -> None:
                served.append(number)
                begin(number, about, calls)

            monkeypatch.setattr(server.grpc, "_begin", count)
            connection = await server.connect()
            attack = [
                renumbered(call(path=LIVE) + frame(RESET, 0, 1, error(8)), n) for n in range(1, 1001, 2)
            ]
            connection.writer.write(b"".join(attack) + frame(PING, 0, 0, bytes(8)))
            await connection.until(PING)
            await until(lambda: server.grpc.native.long_calls() == 0)
            assert len(served) < 250  # most were withdrawn
            connection.writer.write(call(1001, path=LIVE))
            assert (await connection.answer(1001))[0][b"grpc-status"] == b"0"

    run(ask())


def test_who_gives_up_on_half_of_its_calls_is_never_left() -> None:
    async def ask() -> None:
        async with network(PLAIN) as server:
            connection = await server.connect()
            connection.writer.write(frame(WINDOW, 0, 0, (1 << 30).to_bytes(4, "big")))
            for stream in range(1, 24_001, 4):
                connection.writer.write(call(stream) + frame(RESET, 0, stream, error(8)) + call(stream + 2))
                if stream % 400 == 1:
                    await connection.answer(stream + 2)
            connection.writer.write(frame(PING, 0, 0, bytes(8)))
            assert (await connection.until(PING)).kind == PING
            assert not any(server.grpc.left().values())

    run(ask())


def test_who_gives_up_after_a_while_is_never_left() -> None:
    """A server that is stuck lets all calls of its clients run into their deadlines."""

    async def ask() -> None:
        async with network(PLAIN, answers=False, most_open=10_000) as server:
            connection = await server.connect()
            for turn in range(5):
                streams = range(1 + 2000 * turn, 2001 + 2000 * turn, 2)
                connection.writer.write(b"".join(call(stream) for stream in streams))
                tickets = await server.front.popped(1000)
                await asyncio.sleep(0.06)
                connection.writer.write(b"".join(frame(RESET, 0, stream, error(8)) for stream in streams))
                connection.writer.write(frame(PING, 0, 0, bytes(8)))
                await connection.until(PING)
                for number, *_ in tickets:
                    server.loopback.end(number)
                await until(lambda: server.front.exchange.admission.open() == 0)
            assert not any(server.grpc.left().values())

    run(ask())


def test_a_flood_of_calls_for_python_lets_others_have_their_turn() -> None:
    async def ask() -> None:
        async with network(PLAIN) as server:
            connection = await server.connect()
            other = await server.connect()
            flood = b"".join(renumbered(call(path=LIVE), n) for n in range(1, 2001, 2))
            connection.writer.write(flood)
            await connection.until(HEADERS)
            other.writer.write(call(path=LIVE))
            assert (await other.answer(1))[0][b"grpc-status"] == b"0"
            answers = 1
            while answers < 999:  # none of them is lost, though few wait in Python at once
                _, flags, stream, _ = await connection.until(HEADERS)
                answers += bool(flags & END and stream)
            assert not any(server.grpc.left().values())

    run(ask())


def test_heads_that_unfold_end_the_connection() -> None:
    async def ask() -> None:
        async with network() as server:
            connection = await server.connect()
            large = literal("x", "v" * 4000, 0x40)
            connection.writer.write(frame(HEADERS, HEAD_END, 1, head() + large + 400 * b"\xbe"))
            assert await left(connection) == CALM
            assert server.grpc.left()["head"] == 1

    run(ask())


def test_a_head_without_an_end_ends_the_connection() -> None:
    async def ask() -> None:
        async with network() as server:
            connection = await server.connect()
            flood = [frame(CONTINUATION, 0, 1) for _ in range(3000)]
            await sent_all(connection, [frame(HEADERS, 0, 1, head()), *flood])
            assert await left(connection) == CALM

    run(ask())
