"""gRPC as network threads speak it: HPACK, frames in any pieces, bad clients, and what grpc.aio would say."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
import uvloop
from tritonclient.grpc import service_pb2

from astrarium.core.errors import extension
from astrarium.core.units import MILLISECOND, SECOND
from astrarium.server.contract import Kind
from astrarium.server.grpc.server import NativeGrpc, serve_grpc
from astrarium.server.settings import HttpLimits, Security
from astrarium.serving.live.tensors import TensorSpec
from tests.support.server.fakes import WAYS, FakeService, LoopbackFront, serving, until
from tests.support.server.native_network import OPEN, PLAIN

pytestmark = pytest.mark.skipif(extension("_front") is None, reason="needs the native extension")

front: Any = extension("_front")


# HPACK, by the examples of RFC 7541


def fields(*pairs: tuple[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in pairs]


FIRST = fields((":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com"))
WITH_CACHE = [*FIRST, *fields(("cache-control", "no-cache"))]
THIRD = fields(
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/index.html"),
    (":authority", "www.example.com"),
    ("custom-key", "custom-value"),
)
DATES = "Mon, 21 Oct 2013 20:13:21 GMT", "Mon, 21 Oct 2013 20:13:22 GMT"
FOUND = fields(
    (":status", "302"),
    ("cache-control", "private"),
    ("date", DATES[0]),
    ("location", "https://www.example.com"),
)
COOKIE = "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
OK = fields(
    (":status", "200"),
    ("cache-control", "private"),
    ("date", DATES[1]),
    ("location", "https://www.example.com"),
    ("content-encoding", "gzip"),
    ("set-cookie", COOKIE),
)
EXAMPLES: dict[str, tuple[int, list[tuple[str, list[tuple[bytes, bytes]], int]]]] = {
    # section: size of the table, and for each block its bytes, fields and the bytes in the table
    "C.2.1": (
        4096,
        [
            (
                "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
                fields(("custom-key", "custom-header")),
                55,
            )
        ],
    ),
    "C.2.2": (4096, [("040c 2f73 616d 706c 652f 7061 7468", fields((":path", "/sample/path")), 0)]),
    "C.2.3": (4096, [("1008 7061 7373 776f 7264 0673 6563 7265 74", fields(("password", "secret")), 0)]),
    "C.3": (
        4096,
        [
            ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", FIRST, 57),
            ("8286 84be 5808 6e6f 2d63 6163 6865", WITH_CACHE, 110),
            ("8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", THIRD, 164),
        ],
    ),
    "C.4": (
        4096,
        [
            ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", FIRST, 57),
            ("8286 84be 5886 a8eb 1064 9cbf", WITH_CACHE, 110),
            ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", THIRD, 164),
        ],
    ),
    "C.6": (
        256,
        [
            (
                "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e"
                "919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
                FOUND,
                222,
            ),
            ("4883 640e ffc1 c0bf", [(b":status", b"307"), *FOUND[1:]], 222),
            (
                "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7"
                "821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587"
                "3160 65c0 03ed 4ee5 b106 3d50 07",
                OK,
                215,
            ),
        ],
    ),
}


@pytest.mark.parametrize("section", EXAMPLES)
def test_header_blocks_are_read_as_the_standard_reads_them(section: str) -> None:
    table, blocks = EXAMPLES[section]
    found = front.read_blocks([bytes.fromhex(block) for block, _, _ in blocks], table)
    assert found == [(list(map(tuple, wanted)), size) for _, wanted, size in blocks]


BROKEN = {
    "an index that there is not": "be",
    "the index zero": "80",
    "a number without an end": "ffffffffffff7f",
    "a text that is longer than its block": "000561",
    "padding of a whole byte": "0081ff00",
    "the code of the end": "0084ffffffff00",
    "padding that is no ones": "00811800",
    "a table that is larger than allowed": "3fe21f",
    "a table that changes in the middle": "8220",
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_header_block_is_found_out(what: str) -> None:
    assert front.read_blocks([bytes.fromhex(BROKEN[what])], 4096) is None


# A client by hand


DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GO_AWAY, WINDOW, CONTINUATION = range(10)
END, HEAD_END, PADDED = 1, 4, 8
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def frame(kind: int, flags: int = 0, stream: int = 0, body: bytes = b"", size: int | None = None) -> bytes:
    length = len(body) if size is None else size
    return length.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def literal(name: str, value: str) -> bytes:
    def text(given: str) -> bytes:
        size = len(given)
        return (bytes([size]) if size < 127 else bytes([127, size - 127])) + given.encode()

    return b"\0" + text(name) + text(value)


def head(path: str = INFER, **more: str) -> bytes:
    named = {":path": path, **{name.replace("_", "-"): value for name, value in more.items()}}
    return b"\x83\x86" + b"".join(literal(name, value) for name, value in named.items())


def message(model: str = "echo", rows: int = 1, size: int = 2, name: str = "x") -> Any:
    request = service_pb2.ModelInferRequest(model_name=model, id=name)
    request.inputs.add(name="IN", datatype="FP32", shape=[rows, size])
    request.raw_input_contents.append(np.arange(rows * size, dtype=np.float32).tobytes())
    return request


def prefixed(data: bytes, compressed: bool = False) -> bytes:
    return struct.pack(">BI", compressed, len(data)) + data


def call(stream: int = 1, request: Any = None, path: str = INFER, **more: str) -> bytes:
    data = prefixed((request or message()).SerializeToString())
    return frame(HEADERS, HEAD_END, stream, head(path, **more)) + frame(DATA, END, stream, data)


class Line:
    """A connection that has said hello, and what came over it frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def frame(self) -> tuple[int, int, int, bytes]:
        top = await self.reader.readexactly(9)
        body = await self.reader.readexactly(int.from_bytes(top[:3], "big"))
        return top[3], top[4], int.from_bytes(top[5:], "big"), body

    async def until(self, kind: int, stream: int | None = None) -> tuple[int, int, int, bytes]:
        while True:
            found = await self.frame()
            if found[0] == kind and stream in (None, found[2]):
                return found

    async def answer(self, stream: int) -> tuple[dict[bytes, bytes], bytes]:
        """The fields of both heads, and the data."""
        told: dict[bytes, bytes] = {}
        data = b""
        while True:
            kind, flags, which, body = await self.frame()
            if which == stream and kind == DATA:
                data += body
            if which == stream and kind == HEADERS:
                [(found, _)] = front.read_blocks([body], 4096)
                told |= dict(found)
                if flags & END:
                    return told, data


class Network:
    """A network of gRPC over a loopback."""

    def __init__(self, given: LoopbackFront, grpc_: NativeGrpc) -> None:
        self.front, self.loopback, self.grpc = given, given.loopback, grpc_
        self._lines: list[Line] = []

    async def line(self, greeting: bytes = PREFACE + frame(SETTINGS)) -> Line:
        line = Line(*await asyncio.open_connection("127.0.0.1", self.grpc.port))
        self._lines.append(line)
        line.writer.write(greeting)
        return line

    def tally(self) -> Any:
        self.grpc.settle()
        return self.front.exchange.tally(0)

    def leave(self) -> None:
        for line in self._lines:
            line.writer.close()


@asynccontextmanager
async def network(
    *cards: Any,
    limits: HttpLimits | None = None,
    answers: bool = True,
    security: Security | None = None,
    **more: Any,
) -> AsyncIterator[Network]:
    given = LoopbackFront(*(cards or (OPEN,)), **more)
    if answers:
        given.loopback.start()
    running = await serve_grpc(FakeService(), limits=limits, security=security, native_front=given)
    assert isinstance(running, NativeGrpc)
    found = Network(given, running)
    try:
        yield found
    finally:
        found.leave()
        await running.stop(1.0)
        given.loopback.stop()


def run(work: Coroutine[Any, Any, None]) -> None:
    uvloop.run(asyncio.wait_for(work, 60))


def answered(data: bytes) -> Any:
    return service_pb2.ModelInferResponse.FromString(data[5:])


def test_a_call_may_come_byte_by_byte_and_its_answer_is_whole() -> None:
    async def ask() -> None:
        async with network() as server:
            line = await server.line(b"")
            for byte in PREFACE + frame(SETTINGS) + call(1) + call(3, message(name="y")):
                line.writer.write(bytes([byte]))
                await line.writer.drain()
                await asyncio.sleep(0)
            told, data = await line.answer(1)
            assert (told[b":status"], told[b"grpc-status"], answered(data).id) == (b"200", b"0", "x")
            assert answered((await line.answer(3))[1]).raw_output_contents == message().raw_input_contents

    run(ask())


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_a_head_and_a_message_may_come_in_many_padded_frames(piece: int) -> None:
    async def ask() -> None:
        async with network() as server:
            line = await server.line()
            block, data = head(), prefixed(message().SerializeToString())
            whole = frame(HEADERS, 0x20, 1, bytes(5) + block[:piece])
            whole += b"".join(
                frame(CONTINUATION, 0, 1, block[at : at + piece]) for at in range(piece, len(block), piece)
            )
            whole += frame(CONTINUATION, HEAD_END, 1)
            for at in range(0, len(data), piece):
                whole += frame(DATA, PADDED, 1, b"\3" + data[at : at + piece] + bytes(3))
            line.writer.write(whole + frame(DATA, END, 1))
            assert answered((await line.answer(1))[1]).id == "x"

    run(ask())


MALFORMED = {  # what, and the error that the client is told
    "no settings of six bytes": (frame(SETTINGS, 0, 0, bytes(5)), 6),
    "settings of a stream": (frame(SETTINGS, 0, 1), 1),
    "a window that is too large": (frame(SETTINGS, 0, 0, b"\0\4" + b"\xff" * 4), 3),
    "frames that are too small": (frame(SETTINGS, 0, 0, b"\0\5" + bytes(4)), 1),
    "a frame that is too large": (frame(DATA, 0, 1, b"", size=1 << 20), 6),
    "data of a stream that was never opened": (frame(DATA, 0, 1, b"x"), 1),
    "a head of an even stream": (frame(HEADERS, HEAD_END, 2, head()), 1),
    "padding that is longer than its frame": (frame(HEADERS, HEAD_END | PADDED, 1, b"\xff" + head()), 1),
    "a head that cannot be read": (frame(HEADERS, HEAD_END, 1, b"\xff\xff\xff\xff\xff\xff"), 9),
    "a head without an end": (frame(HEADERS, 0, 1, head()) + frame(PING, 0, 0, bytes(8)), 1),
    "a continuation of nothing": (frame(CONTINUATION, HEAD_END, 1, head()), 1),
    "a head of a megabyte": (
        frame(HEADERS, 0, 1, head()) + 64 * frame(CONTINUATION, 0, 1, bytes(1 << 14)),
        11,
    ),
    "a head that unfolds": (
        frame(HEADERS, HEAD_END, 1, b"\x40\1a\x7f\xa1\x1f" + b"v" * 4128 + b"\xbe" * 100),
        9,
    ),
    "a push": (frame(PUSH, 0, 1, bytes(4)), 1),
    "a ping of seven bytes": (frame(PING, 0, 0, bytes(7)), 6),
    "a window of nothing": (frame(WINDOW, 0, 0, bytes(4)), 1),
    "windows beyond all bounds": (2 * frame(WINDOW, 0, 0, (0x7FFFFFFF).to_bytes(4, "big")), 3),
    "a reset of a stream that was never opened": (frame(RESET, 0, 9, bytes(4)), 1),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_who_breaks_the_protocol_is_told_so_and_others_are_served(what: str) -> None:
    wrong, error = MALFORMED[what]

    async def ask() -> None:
        async with network() as server:
            bad, good = await server.line(), await server.line()
            bad.writer.write(wrong)
            *_, body = await bad.until(GO_AWAY)
            assert int.from_bytes(body[4:8], "big") == error
            good.writer.write(call())
            assert (await good.answer(1))[0][b"grpc-status"] == b"0"
            await until(lambda: server.grpc.native.connections() == 1)
            assert server.grpc.native.held() == 0

    run(ask())


def test_who_speaks_something_else_is_closed() -> None:
    async def ask() -> None:
        async with network() as server:
            line = await server.line(b"GET / HTTP/1.1\r\n\r\n")
            await line.reader.read()
            await until(lambda: server.grpc.native.connections() == 0)

    run(ask())


def test_pings_are_answered_and_unknown_frames_are_nothing() -> None:
    async def ask() -> None:
        async with network() as server:
            line = await server.line()
            line.writer.write(frame(99, 255, 7, b"?") + frame(PRIORITY, 0, 3, bytes(5)))
            line.writer.write(frame(PING, 0, 0, b"12345678"))
            assert await line.until(PING) == (PING, 1, 0, b"12345678")

    run(ask())


# Limits


def test_a_client_that_reads_slowly_gets_all_of_its_answer_as_its_windows_allow() -> None:
    async def ask() -> None:
        async with network() as server:
            line = await server.line(PREFACE + frame(SETTINGS, 0, 0, b"\0\4" + (100).to_bytes(4, "big")))
            line.writer.write(call(1, message(size=1000)))
            got = b""
            while len(got) < 100:
                got += (await line.until(DATA))[3]
            assert len(got) == 100
            line.writer.write(frame(PING, 0, 0, bytes(8)))
            assert (await line.frame())[0] == PING  # nothing more came
            line.writer.write(frame(WINDOW, 0, 1, (1000).to_bytes(4, "big")))
            got += (await line.until(DATA))[3]
            assert len(got) == 1100
            line.writer.write(frame(SETTINGS, 0, 0, b"\0\4" + (100_000).to_bytes(4, "big")))
            rest, data = await line.answer(1)
            assert rest[b"grpc-status"] == b"0"
            assert answered(got + data).raw_output_contents == message(size=1000).raw_input_contents

    run(ask())


def test_a_call_whose_stream_is_reset_ends_all_the_same() -> None:
    async def ask() -> None:
        async with network(PLAIN, answers=False) as server:
            line = await server.line()
            line.writer.write(call(1) + call(3))
            tickets = await server.front.popped(2)
            line.writer.write(frame(RESET, 0, 1, (8).to_bytes(4, "big")) + frame(PING, 0, 0, bytes(8)))
            await line.until(PING)
            for number, *_ in tickets:
                server.loopback.end(number)
            await until(lambda: server.tally()[3] == {("in_time", ""): 2})
            line.writer.write(frame(PING, 0, 0, bytes(8)))
            told, _ = await line.answer(3)
            assert told[b"grpc-status"] == b"0"
            assert server.front.exchange.admission.open() == server.front.exchange.arena.used == 0

    run(ask())


def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind() -> None:
    async def ask() -> None:
        async with network(PLAIN, answers=False) as server:
            line = await server.line()
            line.writer.write(
                call(1) + frame(HEADERS, HEAD_END, 3, head()) + frame(DATA, 0, 3, b"\0\0\0\xff")
            )
            tickets = await server.front.popped()
            await until(lambda: server.grpc.native.held() == 4)
            line.writer.close()
            await until(lambda: server.grpc.native.connections() == 0)
            server.loopback.end(tickets[0][0])
            await until(lambda: server.tally()[3] == {("in_time", ""): 1})
            assert server.grpc.native.held() == server.front.exchange.arena.used == 0

    run(ask())


def test_a_message_that_is_too_large_or_stops_arriving_is_refused() -> None:
    async def ask() -> None:
        limits = HttpLimits(body_bytes=1000, request_seconds=0.05)
        async with network(limits=limits) as server:
            line = await server.line()
            line.writer.write(frame(HEADERS, HEAD_END, 1, head()) + frame(DATA, 0, 1, b"\0\1\0\0\0"))
            told, _ = await line.answer(1)
            reason = b"SERVER: Received message larger than max (16777216 vs. 66536)"
            assert (told[b"grpc-status"], told[b"grpc-message"]) == (b"8", reason)
            line.writer.write(frame(HEADERS, HEAD_END, 3, head()) + frame(DATA, 0, 3, b"\0\0\0\0\7x"))
            told, _ = await line.answer(3)
            assert (told[b"grpc-status"], b"whole within 50 ms" in told[b"grpc-message"]) == (b"4", True)
            assert server.grpc.native.held() == 0

    run(ask())


def test_what_waits_in_python_is_held_and_bounded() -> None:
    async def ask() -> None:
        async with network(limits=HttpLimits(held_bytes=20_000)) as server:
            line = await server.line()
            opened = frame(HEADERS, HEAD_END, 1, head(STREAM))
            line.writer.write(b"".join(opened[:5] + n.to_bytes(4, "big") + opened[9:] for n in (1, 3, 5, 7)))
            told, _ = await line.answer(7)
            assert told[b"grpc-status"] == b"8"
            assert server.grpc.native.held() > 3 * 4096
            line.writer.write(b"".join(frame(RESET, 0, n, (8).to_bytes(4, "big")) for n in (1, 3, 5)))
            await until(lambda: server.grpc.native.held() == 0)

    run(ask())


def test_messages_without_content_are_held_too() -> None:
    async def ask() -> None:
        async with network(limits=HttpLimits(held_bytes=50_000)) as server:
            line = await server.line()
            line.writer.write(
                frame(HEADERS, HEAD_END, 1, head(STREAM)) + frame(DATA, 0, 1, 1000 * prefixed(b""))
            )
            told, _ = await line.answer(1)
            assert (told[b"grpc-status"], told[b"grpc-message"][:11]) == (b"8", b"overloaded:")
            await until(lambda: server.grpc.native.held() == 0)

    run(ask())


def test_who_shows_no_key_has_no_message_kept() -> None:
    async def ask() -> None:
        async with network(security=Security(keys=("secret",))) as server:
            line = await server.line()
            line.writer.write(frame(HEADERS, HEAD_END, 1, head()) + frame(DATA, 0, 1, b"\0\0\0\xff"))
            told, _ = await line.answer(1)
            assert told[b"grpc-status"] == b"16"
            line.writer.write(call(3, x_api_key="secret"))
            assert (await line.answer(3))[0][b"grpc-status"] == b"0"
            await until(lambda: server.grpc.native.held() == 0)

    run(ask())


@pytest.mark.parametrize("path", [INFER, STREAM])
def test_a_message_that_trickles_is_refused_in_time(path: str) -> None:
    async def ask() -> None:
        async with network(limits=HttpLimits(request_seconds=0.2)) as server:
            line = await server.line()
            line.writer.write(frame(HEADERS, HEAD_END, 1, head(path)) + frame(DATA, 0, 1, b"\0\0\0\xff"))
            answer = asyncio.create_task(line.answer(1))
            while not answer.done():
                line.writer.write(frame(DATA, 0, 1, b"x"))
                await asyncio.sleep(0.02)
            assert answer.result()[0][b"grpc-status"] == b"4"

    run(ask())


def test_a_client_that_keeps_its_window_closed_is_left_though_it_pings() -> None:
    async def ask() -> None:
        no_window = frame(SETTINGS, 0, 0, b"\0\4" + bytes(4))
        async with network(PLAIN, limits=HttpLimits(keep_alive_seconds=1)) as server:
            line = await server.line(PREFACE + no_window)
            line.writer.write(call(1))
            await until(lambda: server.tally()[3] == {("in_time", ""): 1})
            while not line.reader.at_eof():
                line.writer.write(frame(PING, 0, 0, bytes(8)))
                await asyncio.wait({asyncio.create_task(line.reader.read(1 << 16))}, timeout=0.1)
            assert server.grpc.native.connections() == 0

    run(ask())


def test_many_frames_about_windows_are_one_reason_to_send() -> None:
    async def ask() -> None:
        async with network(PLAIN) as server:
            line = await server.line(PREFACE + frame(SETTINGS, 0, 0, b"\0\4" + bytes(4)))
            line.writer.write(call(1))
            await until(lambda: server.tally()[3] == {("in_time", ""): 1})
            some = b"".join(b"\0\4" + size.to_bytes(4, "big") for size in (0, 70_000, 0, 5))
            line.writer.write(frame(SETTINGS, 0, 0, some) + 500 * frame(WINDOW, 0, 0, b"\0\0\0\1"))
            assert len((await line.until(DATA, 1))[3]) == 5
            line.writer.write(frame(SETTINGS, 0, 0, b"\0\4" + (70_000).to_bytes(4, "big")))
            told, _ = await line.answer(1)
            assert told[b"grpc-status"] == b"0"

    run(ask())


def test_a_reason_is_no_longer_than_clients_take() -> None:
    async def ask() -> None:
        async with network() as server:
            line = await server.line()
            line.writer.write(call(1, message("m" * 8000)))
            told, _ = await line.answer(1)
            assert (told[b"grpc-status"], len(told[b"grpc-message"])) == (b"5", 4096)

    run(ask())


def test_more_streams_than_announced_are_refused_and_can_be_tried_again() -> None:
    async def ask() -> None:
        async with network(PLAIN, answers=False, most_open=10_000) as server:
            line = await server.line()
            *_, body = await line.until(SETTINGS)
            most = dict(struct.iter_unpack(">HI", body))[3]
            opening = frame(HEADERS, HEAD_END, 1, head())
            numbers = [(2 * at + 1).to_bytes(4, "big") for at in range(most + 1)]
            line.writer.write(b"".join(opening[:5] + number + opening[9:] for number in numbers))
            _, _, stream, body = await line.until(RESET)
            assert (stream, int.from_bytes(body, "big")) == (2 * most + 1, 7)

    run(ask())


def test_who_resets_its_calls_all_the_time_opens_no_others_before_they_have_ended() -> None:
    async def ask() -> None:
        async with network(PLAIN, answers=False) as server:
            line = await server.line()
            *_, body = await line.until(SETTINGS)
            most = dict(struct.iter_unpack(">HI", body))[3]
            for stream in range(1, 2 * most, 2):
                line.writer.write(call(stream) + frame(RESET, 0, stream, bytes(4)))
            line.writer.write(call(2 * most + 1))
            _, _, stream, body = await line.until(RESET)
            assert (stream, int.from_bytes(body, "big")) == (2 * most + 1, 7)
            for number, *_ in await server.front.popped(most):
                server.loopback.end(number)
            await until(lambda: server.front.exchange.admission.open() == 0)
            line.writer.write(call(2 * most + 3))
            [(number, *_)] = await server.front.popped()
            server.loopback.end(number)
            assert (await line.answer(2 * most + 3))[0][b"grpc-status"] == b"0"

    run(ask())


def test_calls_of_a_real_client_that_gives_up_on_some_are_all_accounted_for() -> None:
    async def ask() -> None:
        async with network() as server:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc.port}") as channel:
                asked = channel.unary_unary(INFER)
                calls = [asked(message(size=1 + at * 997 % 40_000).SerializeToString()) for at in range(300)]
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
            line = await server.line()
            line.writer.write(call(1))
            tickets = await server.front.popped()
            server.grpc.native.drain()
            *_, body = await line.until(GO_AWAY)
            assert int.from_bytes(body[:4], "big") == 2**31 - 1
            *_, asked = await line.until(PING)
            line.writer.write(call(3) + frame(PING, 1, 0, asked) + call(5))  # the last one comes too late
            *_, body = await line.until(GO_AWAY)
            assert int.from_bytes(body[:4], "big") == 3
            tickets += await server.front.popped()
            for number, *_ in tickets:
                server.loopback.end(number)
            assert (await line.answer(3))[0][b"grpc-status"] == b"0"
            assert await line.reader.read() == b""

    run(ask())


# The same calls by network threads and by grpc.aio


async def told_by_each_way(
    path: str, data: bytes, limits: HttpLimits | None = None, **more: Any
) -> list[Any]:
    """What network threads and grpc.aio answer, or why they do not."""
    told: list[Any] = []
    for way in WAYS:
        async with (
            serving(FakeService(), limits, way=way) as running,
            grpc.aio.insecure_channel(running.grpc_url) as channel,
        ):
            try:
                told.append(await channel.unary_unary(path)(data, timeout=30, **more))
            except grpc.aio.AioRpcError as error:
                trailing = sorted((str(name), str(value)) for name, value in error.trailing_metadata() or ())
                told.append((error.code(), error.details(), trailing))
    return told


def changed(**changes: Any) -> Any:
    request = message()
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def with_parameter(name: str, kind: str, value: Any) -> Any:
    request = message()
    setattr(request.parameters[name], kind, value)
    return request


SAME: dict[str, Any] = {
    "plain": message(rows=3, size=5),
    "another version": changed(model_version="2"),
    "the version": changed(model_version="1"),
    "an id that is no ASCII": changed(id="ä" * 200),
    "no such model": changed(model_name="nobody%"),
    "not loaded": changed(model_name="absent"),
    "a sequence": with_parameter("sequence_id", "int64_param", 3),
    "some parameter": with_parameter("verbose", "bool_param", True),
    "no timeout": with_parameter("timeout", "int64_param", -1),
    "a priority": with_parameter("priority", "uint64_param", 2),
    "no such priority": with_parameter("priority", "string_param", "2"),
    "an application": with_parameter("application", "string_param", "maps"),
    "a long application": with_parameter("application", "string_param", "m" * 300),
    "no message": b"\xff",
    "nothing": b"",
    "overloaded": changed(model_name="overloaded"),
    "our own fault": changed(model_name="buggy"),
}


@pytest.mark.parametrize("what", SAME)
def test_network_threads_and_grpc_aio_say_the_same(what: str) -> None:
    given = SAME[what]

    async def compare() -> None:
        data = given if isinstance(given, bytes) else given.SerializeToString()
        natively, by_python = await told_by_each_way(INFER, data)
        assert natively == by_python

    run(compare())


@pytest.mark.parametrize("path", ["/inference.GRPCInferenceService/Nothing", "/other.Service/Method"])
def test_a_method_that_there_is_not_is_unimplemented(path: str) -> None:
    async def compare() -> None:
        wanted = grpc.StatusCode.UNIMPLEMENTED, "Method not found!"
        assert [told[:2] for told in await told_by_each_way(path, b"")] == [wanted, wanted]

    run(compare())


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_message_beyond_the_limit_is_refused_in_the_same_words(compression: grpc.Compression) -> None:
    async def compare() -> None:
        limits = HttpLimits(body_bytes=1000)
        natively, by_python = await told_by_each_way(INFER, bytes(200_000), limits, compression=compression)
        assert natively == by_python
        assert natively[0] is grpc.StatusCode.RESOURCE_EXHAUSTED

    run(compare())


# What network threads refuse themselves


def test_a_deadline_of_the_call_brings_the_objective_forward() -> None:
    async def ask() -> None:
        async with network(PLAIN, answers=False) as server:
            server.loopback.plan([(10 * SECOND, [0, 20 * MILLISECOND])], 1)
            line = await server.line()
            line.writer.write(call(1, grpc_timeout="10m"))
            told, _ = await line.answer(1)
            assert told[b"grpc-status"] == str(grpc.StatusCode[Kind.DEADLINE.grpc].value[0]).encode()
            reason = b"model echo cannot answer within 10 ms: one request alone takes"
            assert told[b"grpc-message"].startswith(reason)
            line.writer.write(call(3, grpc_timeout="9S"))
            tickets = await server.front.popped()
            _, _, _, _, received, deadline, *_ = tickets[0]
            assert deadline - received == 9 * SECOND
            server.loopback.end(tickets[0][0])
            await line.answer(3)

    run(ask())


def test_a_full_house_says_when_to_come_back() -> None:
    async def ask() -> None:
        async with network(PLAIN, answers=False, most_open=1) as server:
            line = await server.line()
            line.writer.write(call(1) + call(3))
            told, _ = await line.answer(3)
            assert told[b"grpc-status"] == b"8"
            assert told[b"grpc-message"] == b"overloaded: 1 calls are open already, the most that may be"
            assert (told[b"grpc-retry-pushback-ms"], told[b"retry-after"]) == (b"1000", b"1")
            assert server.tally()[4] == {"deadline": 0, "overloaded": 1, "unavailable": 0, "bad_request": 0}
            for number, *_ in server.loopback.pop():
                server.loopback.end(number, "failed", "model_error", "100 % wrong\n")
            told, _ = await line.answer(1)
            reason = b"model echo failed: 100 %25 wrong%0A"
            assert (told[b"grpc-status"], told[b"grpc-message"]) == (b"13", reason)

    run(ask())


def test_reasons_for_the_long_way_are_counted() -> None:
    texts = TensorSpec("IN", "BYTES", (-1,)), TensorSpec("OUT_IN", "BYTES", (-1,))
    words = type(PLAIN)("words", "fake", texts[:1], texts[1:], max_batch=8, slo=SECOND)

    async def ask() -> None:
        async with network(OPEN, words) as server:
            line = await server.line()
            line.writer.write(call(1, changed(model_name="nobody")) + call(3, x_astrarium_timeline="1"))
            line.writer.write(call(5, changed(model_version="7")) + call(7, changed(model_name="words")))
            for stream in (1, 3, 5, 7):
                await line.answer(stream)
            wanted = {"unknown_model": 1, "x-astrarium-timeline": 1, "version": 1, "text": 1}
            assert server.grpc.native.long_way() == wanted

    run(ask())
