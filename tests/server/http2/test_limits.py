"""What a client makes network threads keep over gRPC is bounded, and ends."""

from __future__ import annotations

import asyncio
import struct

import grpc
import pytest

from astrarium.core.optional import extension
from astrarium.server.settings import HttpLimits, Security
from tests.support.server.fakes import until
from tests.support.server.http2_client import (
    DATA,
    GO_AWAY,
    HEAD_END,
    HEADERS,
    INFER,
    PING,
    PREFACE,
    RESET,
    SETTINGS,
    STREAM,
    WINDOW,
    answered,
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


def test_a_client_that_reads_slowly_gets_all_of_its_answer_as_its_windows_allow() -> None:
    async def ask() -> None:
        async with network() as server:
            connection = await server.connect(
                PREFACE + frame(SETTINGS, 0, 0, b"\0\4" + (100).to_bytes(4, "big"))
            )
            connection.writer.write(call(1, message(size=1000)))
            got = b""
            while len(got) < 100:
                got += (await connection.until(DATA)).body
            assert len(got) == 100
            connection.writer.write(frame(PING, 0, 0, bytes(8)))
            assert (await connection.frame()).kind == PING  # nothing more came
            connection.writer.write(frame(WINDOW, 0, 1, (1000).to_bytes(4, "big")))
            got += (await connection.until(DATA)).body
            assert len(got) == 1100
            connection.writer.write(frame(SETTINGS, 0, 0, b"\0\4" + (100_000).to_bytes(4, "big")))
            rest, data = await connection.answer(1)
            assert rest[b"grpc-status"] == b"0"
            assert answered(got + data).raw_output_contents == message(size=1000).raw_input_contents

    run(ask())


def test_a_call_whose_stream_is_reset_ends_all_the_same() -> None:
    async def ask() -> None:
        async with network(PLAIN, answers=False) as server:
            connection = await server.connect()
            connection.writer.write(call(1) + call(3))
            tickets = await server.front.popped(2)
            connection.writer.write(frame(RESET, 0, 1, (8).to_bytes(4, "big")) + frame(PING, 0, 0, bytes(8)))
            await connection.until(PING)
            for number, *_ in tickets:
                server.loopback.end(number)
            await until(lambda: server.tally()[3] == {("in_time", ""): 2})
            connection.writer.write(frame(PING, 0, 0, bytes(8)))
            fields, _ = await connection.answer(3)
            assert fields[b"grpc-status"] == b"0"
            assert server.front.exchange.admission.open() == server.front.exchange.arena.used == 0

    run(ask())


def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind() -> None:
    async def ask() -> None:
        async with network(PLAIN, answers=False) as server:
            connection = await server.connect()
            connection.writer.write(
                call(1) + frame(HEADERS, HEAD_END, 3, head()) + frame(DATA, 0, 3, b"\0\0\0\xff")
            )
            tickets = await server.front.popped()
            await until(lambda: server.grpc.native.held() == 4)
            connection.writer.close()
            await until(lambda: server.grpc.native.connections() == 0)
            server.loopback.end(tickets[0][0])
            await until(lambda: server.tally()[3] == {("in_time", ""): 1})
            assert server.grpc.native.held() == server.front.exchange.arena.used == 0

    run(ask())


def test_a_message_that_is_too_large_or_stops_arriving_is_refused() -> None:
    async def ask() -> None:
        limits = HttpLimits(body_bytes=1000, request_seconds=0.05)
        async with network(limits=limits) as server:
            connection = await server.connect()
            connection.writer.write(frame(HEADERS, HEAD_END, 1, head()) + frame(DATA, 0, 1, b"\0\1\0\0\0"))
            fields, _ = await connection.answer(1)
            reason = b"SERVER: Received message larger than max (16777216 vs. 66536)"
            assert (fields[b"grpc-status"], fields[b"grpc-message"]) == (b"8", reason)
            connection.writer.write(frame(HEADERS, HEAD_END, 3, head()) + frame(DATA, 0, 3, b"\0\0\0\0\7x"))
            fields, _ = await connection.answer(3)
            assert (fields[b"grpc-status"], b"whole within 50 ms" in fields[b"grpc-message"]) == (b"4", True)
            assert server.grpc.native.held() == 0

    run(ask())


def test_what_waits_in_python_is_held_and_bounded() -> None:
    async def ask() -> None:
        async with network(limits=HttpLimits(held_bytes=18_000)) as server:
            connection = await server.connect()
            opened = frame(HEADERS, HEAD_END, 1, head(STREAM))
            connection.writer.write(
                b"".join(opened[:5] + n.to_bytes(4, "big") + opened[9:] for n in (1, 3, 5, 7))
            )
            fields, _ = await connection.answer(7)
            assert fields[b"grpc-status"] == b"8"
            assert server.grpc.native.held() > 3 * 4096
            connection.writer.write(b"".join(frame(RESET, 0, n, (8).to_bytes(4, "big")) for n in (1, 3, 5)))
            await until(lambda: server.grpc.native.held() == 0)

    run(ask())


def test_messages_without_content_are_held_too() -> None:
    async def ask() -> None:
        async with network(limits=HttpLimits(held_bytes=50_000)) as server:
            connection = await server.connect()
            connection.writer.write(
                frame(HEADERS, HEAD_END, 1, head(STREAM)) + frame(DATA, 0, 1, 1000 * prefixed(b""))
            )
            fields, _ = await connection.answer(1)
            assert (fields[b"grpc-status"], fields[b"grpc-message"][:11]) == (b"8", b"overloaded:")
            await until(lambda: server.grpc.native.held() == 0)

    run(ask())


def test_who_shows_no_key_has_no_message_kept() -> None:
    async def ask() -> None:
        async with network(security=Security(keys=("secret",))) as server:
            connection = await server.connect()
            connection.writer.write(frame(HEADERS, HEAD_END, 1, head()) + frame(DATA, 0, 1, b"\0\0\0\xff"))
            fields, _ = await connection.answer(1)
            assert fields[b"grpc-status"] == b"16"
            connection.writer.write(call(3, x_api_key="secret"))
            assert (await connection.answer(3))[0][b"grpc-status"] == b"0"
            await until(lambda: server.grpc.native.held() == 0)

    run(ask())


@pytest.mark.parametrize("path", [INFER, STREAM])
def test_a_message_that_trickles_is_refused_in_time(path: str) -> None:
    async def ask() -> None:
        async with network(limits=HttpLimits(request_seconds=0.2)) as server:
            connection = await server.connect()
            connection.writer.write(
                frame(HEADERS, HEAD_END, 1, head(path)) + frame(DATA, 0, 1, b"\0\0\0\xff")
            )
            answer = asyncio.create_task(connection.answer(1))
            while not answer.done():
                connection.writer.write(frame(DATA, 0, 1, b"x"))
                await asyncio.sleep(0.02)
            assert answer.result()[0][b"grpc-status"] == b"4"

    run(ask())


def test_a_client_that_keeps_its_window_closed_is_left_though_it_pings() -> None:
    async def ask() -> None:
        no_window = frame(SETTINGS, 0, 0, b"\0\4" + bytes(4))
        async with network(PLAIN, limits=HttpLimits(keep_alive_seconds=1)) as server:
            connection = await server.connect(PREFACE + no_window)
            connection.writer.write(call(1))
            await until(lambda: server.tally()[3] == {("in_time", ""): 1})
            while not connection.reader.at_eof():
                connection.writer.write(frame(PING, 0, 0, bytes(8)))
                await asyncio.wait({asyncio.create_task(connection.reader.read(1 << 16))}, timeout=0.1)
            assert server.grpc.native.connections() == 0

    run(ask())


def test_many_frames_about_windows_are_one_reason_to_send() -> None:
    async def ask() -> None:
        async with network(PLAIN) as server:
            connection = await server.connect(PREFACE + frame(SETTINGS, 0, 0, b"\0\4" + bytes(4)))
            connection.writer.write(call(1))
            await until(lambda: server.tally()[3] == {("in_time", ""): 1})
            some = b"".join(b"\0\4" + size.to_bytes(4, "big") for size in (0, 70_000, 0, 5))
            connection.writer.write(frame(SETTINGS, 0, 0, some) + 500 * frame(WINDOW, 0, 0, b"\0\0\0\1"))
            assert len((await connection.until(DATA, 1)).body) == 5
            connection.writer.write(frame(SETTINGS, 0, 0, b"\0\4" + (70_000).to_bytes(4, "big")))
            fields, _ = await connection.answer(1)
            assert fields[b"grpc-status"] == b"0"

    run(ask())


def test_a_reason_is_no_longer_than_clients_take() -> None:
    async def ask() -> None:
        async with network() as server:
            connection = await server.connect()
            connection.writer.write(call(1, message("m" * 8000)))
            fields, _ = await connection.answer(1)
            assert (fields[b"grpc-status"], len(fields[b"grpc-message"])) == (b"5", 4096)

    run(ask())


def test_more_streams_than_announced_are_refused_and_can_be_tried_again() -> None:
    async def ask() -> None:
        async with network(PLAIN, answers=False, most_open=10_000) as server:
            connection = await server.connect()
            *_, body = await connection.until(SETTINGS)
            most = dict(struct.iter_unpack(">HI", body))[3]
            opening = frame(HEADERS, HEAD_END, 1, head())
            numbers = [(2 * at + 1).to_bytes(4, "big") for at in range(most + 1)]
            connection.writer.write(b"".join(opening[:5] + number + opening[9:] for number in numbers))
            _, _, stream, body = await connection.until(RESET)
            assert (stream, int.from_bytes(body, "big")) == (2 * most + 1, 7)

    run(ask())


def test_who_resets_its_calls_all_the_time_opens_no_others_before_they_have_ended() -> None:
    async def ask() -> None:
        async with network(PLAIN, answers=False) as server:
            connection = await server.connect()
            *_, body = await connection.until(SETTINGS)
            most = dict(struct.iter_unpack(">HI", body))[3]
            for stream in range(1, 2 * most, 2):
                connection.writer.write(call(stream) + frame(RESET, 0, stream, bytes(4)))
            connection.writer.write(call(2 * most + 1))
            _, _, stream, body = await connection.until(RESET)
            assert (stream, int.from_bytes(body, "big")) == (2 * most + 1, 7)
            for number, *_ in await server.front.popped(most):
                server.loopback.end(number)
            await until(lambda: server.front.exchange.admission.open() == 0)
            connection.writer.write(call(2 * most + 3))
            [(number, *_)] = await server.front.popped()
            server.loopback.end(number)
            assert (await connection.answer(2 * most + 3))[0][b"grpc-status"] == b"0"

    run(ask())


def test_calls_of_a_real_client_that_gives_up_on_some_are_all_accounted_for() -> None:
    async def ask() -> None:
        async with network() as server:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc.port}") as channel:
                infer = channel.unary_unary(INFER)
                calls = [infer(message(size=1 + at * 997 % 40_000).SerializeToString()) for at in range(300)]
                for at, one in enumerate(calls):
                    if at % 3 == 0:
                        await asyncio.sleep(0)
                        one.cancel()
                answers = await asyncio.gather(*calls, return_exceptions=True)
                served = {at: answer for at, answer in enumerate(answers) if isinstance(answer, bytes)}
                assert {at for at in range(300) if at % 3} <= served.keys()
                for at, answer in served.items():
                    sizes = [len(one) for one in answered(bytes(5) + answer).raw_output_contents]
                    assert sizes == [4 * (1 + at * 997 % 40_000)]
            await until(lambda: server.front.exchange.admission.open() == 0)
            accepted, _, _, ended, *_ = server.tally()
            assert accepted == sum(ended.values()) >= len(served)
            assert server.grpc.native.held() == server.front.exchange.arena.used == 0

    run(ask())


def test_draining_says_so_first_and_then_answers_what_is_under_way() -> None:
    async def ask() -> None:
        async with network(PLAIN, answers=False) as server:
            connection = await server.connect()
            connection.writer.write(call(1))
            tickets = await server.front.popped()
            server.grpc.native.drain()
            body = (await connection.until(GO_AWAY)).body
            assert int.from_bytes(body[:4], "big") == 2**31 - 1
            ping = await connection.until(PING)
            connection.writer.write(
                call(3) + frame(PING, 1, 0, ping.body) + call(5)
            )  # the last one comes too late
            body = (await connection.until(GO_AWAY)).body
            assert int.from_bytes(body[:4], "big") == 3
            tickets += await server.front.popped()
            for number, *_ in tickets:
                server.loopback.end(number)
            assert (await connection.answer(3))[0][b"grpc-status"] == b"0"
            assert await connection.reader.read() == b""

    run(ask())


def test_metadata_that_nobody_reads_is_not_kept_and_open_streams_are_counted() -> None:
    async def ask() -> None:
        async with network(PLAIN, answers=False) as server:
            connection = await server.connect()
            connection.writer.write(
                b"".join(frame(HEADERS, HEAD_END, n, head(x="v" * 900)) for n in range(1, 401, 2))
            )
            connection.writer.write(frame(PING, 0, 0, bytes(8)))
            await connection.until(PING)
            await until(lambda: server.grpc.kept() > 200 * 400)
            assert server.grpc.kept() < 200 * 1000
            connection.writer.close()
            await until(lambda: server.grpc.kept() == 0)

    run(ask())


def test_a_connection_whose_open_calls_have_too_much_metadata_is_left() -> None:
    async def ask() -> None:
        async with network(PLAIN, answers=False, security=Security(keys=("k",))) as server:
            connection = await server.connect()
            other = await server.connect()
            kept = literal("authorization", "v" * 4000, 0x40)
            connection.writer.write(frame(HEADERS, HEAD_END, 1, head(x_api_key="k") + kept))
            for stream in range(3, 200, 2):
                connection.writer.write(frame(HEADERS, HEAD_END, stream, head(x_api_key="k") + 14 * b"\xbe"))
            body = (await connection.until(GO_AWAY)).body
            assert body[4:8] == error(11)
            await until(lambda: server.grpc.left()["metadata"] == 1)
            await until(lambda: server.grpc.native.heads() == 0)
            other.writer.write(call(1, x_api_key="k"))
            await server.front.popped()

    run(ask())


@pytest.mark.parametrize(
    "begun",
    [frame(HEADERS, 0, 1, head()), frame(HEADERS, HEAD_END, 1, head())[:-1], frame(PING, 0, 0, bytes(8))[:5]],
    ids=["a head", "a frame of a head", "the head of a frame"],
)
def test_what_stops_arriving_is_not_kept_for_ever(begun: bytes) -> None:
    async def ask() -> None:
        async with network(limits=HttpLimits(request_seconds=0.1)) as server:
            connection = await server.connect()
            connection.writer.write(begun)
            await connection.reader.read()
            assert server.grpc.left()["slow"] == 1
            await until(lambda: server.grpc.kept() == 0)

    run(ask())


def test_answers_that_wait_for_their_clients_are_held_and_the_largest_are_left() -> None:
    async def ask() -> None:
        no_window = frame(SETTINGS, 0, 0, b"\0\4" + bytes(4))
        async with network(limits=HttpLimits(held_bytes=2 << 20)) as server:
            small = await server.connect(PREFACE + no_window)
            large = await server.connect(PREFACE + no_window)
            small.writer.write(call(1, message(size=1000)))
            await until(lambda: server.grpc.native.held() > 4000)
            for stream in range(1, 401, 2):  # of 12 KB each
                large.writer.write(call(stream, message(size=3000)))
            *_, body = await large.until(GO_AWAY)
            assert body[4:8] == error(11)
            await until(lambda: 4000 < server.grpc.native.held() < 5000)
            await until(lambda: server.grpc.left()["memory"] == 1)
            small.writer.write(frame(WINDOW, 0, 1, (5000).to_bytes(4, "big")))
            assert (await small.answer(1))[0][b"grpc-status"] == b"0"
            await until(lambda: server.grpc.native.held() == 0)

    run(ask())
