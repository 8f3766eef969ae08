"""RFC 9113 as network threads keep it: what is an error, of what kind, and of a stream or of the connection.

The cases are those of h2spec (its generic, http2 and hpack sections) and more, each against a server that
answers no call, or that has answered one.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from astrarium.core.optional import extension
from tests.support.server.fakes import until
from tests.support.server.http2_client import (
    BODY,
    CONTINUATION,
    DATA,
    END,
    GO_AWAY,
    GRPC,
    HEAD_END,
    HEADERS,
    PADDED,
    PING,
    POST,
    PREFACE,
    PRIORITY,
    PUSH,
    RESET,
    SETTINGS,
    WINDOW,
    Connection,
    answered,
    block,
    call,
    error,
    frame,
    head,
    literal,
    message,
    network,
    number,
    replacing,
    run,
    with_head,
)

pytestmark = pytest.mark.skipif(extension("_front") is None, reason="needs the native extension")

NONE = 0
PROTOCOL = 1
FLOW = 3
CLOSED = 5
SIZE = 6
REFUSED = 7
CANCEL = 8
COMPRESSION = 9
CALM = 11
HAS_PRIORITY = 0x20
LARGEST = 0x7FFFFFFF


def opened(stream: int = 1, **more: str) -> bytes:
    return frame(HEADERS, HEAD_END, stream, head(**more))


def setting(name: int, value: int) -> bytes:
    return frame(SETTINGS, 0, 0, name.to_bytes(2, "big") + value.to_bytes(4, "big"))


def window(stream: int, more: int) -> bytes:
    return frame(WINDOW, 0, stream, more.to_bytes(4, "big"))


CONNECTION_ERRORS: dict[str, tuple[bytes, int]] = {
    # 4.1, 4.2: frames
    "a frame that is larger than announced": (opened() + frame(DATA, 0, 1, b"", size=(1 << 14) + 1), SIZE),
    "a head that is larger than a frame": (frame(HEADERS, HEAD_END, 1, b"", size=1 << 20), SIZE),
    "settings that are larger than a frame": (frame(SETTINGS, 0, 0, b"", size=1 << 15), SIZE),
    # 4.3, 6.10: a head in several frames
    "a priority within a head": (
        with_head(head(), 0) + frame(PRIORITY, 0, 1, bytes(5)) + frame(CONTINUATION, HEAD_END, 1),
        PROTOCOL,
    ),
    "a ping within a head": (with_head(head(), 0) + frame(PING, 0, 0, bytes(8)), PROTOCOL),
    "data within a head": (with_head(head(), 0) + frame(DATA, END, 1, BODY), PROTOCOL),
    "a frame of no known kind within a head": (with_head(head(), 0) + frame(99, 0, 1), PROTOCOL),
    "a head within a head": (with_head(head(), 0) + with_head(head(), HEAD_END, 3), PROTOCOL),
    "a continuation of another stream": (with_head(head(), 0) + frame(CONTINUATION, HEAD_END, 3), PROTOCOL),
    "a continuation of no stream": (with_head(head(), 0) + frame(CONTINUATION, HEAD_END, 0), PROTOCOL),
    "a continuation of nothing": (frame(CONTINUATION, HEAD_END, 1, head()), PROTOCOL),
    "a continuation of a whole head": (opened() + frame(CONTINUATION, HEAD_END, 1, head()), PROTOCOL),
    "a continuation after data": (
        opened() + frame(DATA, 0, 1, b"") + frame(CONTINUATION, HEAD_END, 1),
        PROTOCOL,
    ),
    "a head of a megabyte": (with_head(head(), 0) + 64 * frame(CONTINUATION, 0, 1, bytes(1 << 14)), CALM),
    "a head in ever more frames": (with_head(head(), 0) + 2000 * frame(CONTINUATION, 0, 1), CALM),
    # 5.1: idle streams
    "data on an idle stream": (frame(DATA, 0, 1, b"x"), PROTOCOL),
    "a reset of an idle stream": (frame(RESET, 0, 1, error(CANCEL)), PROTOCOL),
    "a window of an idle stream": (window(1, 100), PROTOCOL),
    "data on an even stream": (frame(DATA, 0, 2, b"x"), PROTOCOL),
    "a window of an even stream": (opened(5) + window(2, 100), PROTOCOL),
    "a reset of an even stream": (opened(5) + frame(RESET, 0, 2, error(CANCEL)), PROTOCOL),
    # 5.1: closed streams
    "data on a stream that the client has reset": (
        opened() + frame(RESET, 0, 1, error(CANCEL)) + frame(DATA, END, 1, BODY),
        CLOSED,
    ),
    "a head on a stream that the client has reset": (
        opened() + frame(RESET, 0, 1, error(CANCEL)) + opened(),
        CLOSED,
    ),
    "a continuation of a stream that was reset": (
        opened() + frame(RESET, 0, 1, error(CANCEL)) + frame(CONTINUATION, HEAD_END, 1),
        PROTOCOL,
    ),
    # 5.1.1: numbers of streams
    "a head of an even stream": (opened(2), PROTOCOL),
    "a head of no stream": (opened(0), PROTOCOL),
    "a smaller number than before": (opened(5) + opened(3), PROTOCOL),
    "a smaller number after many": (b"".join(map(opened, range(1, 99, 4))) + opened(95), PROTOCOL),
    # 5.3.1: an idle stream cannot be reset
    "an idle stream that depends on itself": (frame(PRIORITY, 0, 1, error(1) + b"\0"), PROTOCOL),
    # 6.1, 6.2: data and heads
    "data of no stream": (frame(DATA, 0, 0, b"x"), PROTOCOL),
    "data with longer padding than its frame": (opened() + frame(DATA, PADDED, 1, b"\5abcd"), PROTOCOL),
    "data with padding and no length": (opened() + frame(DATA, PADDED, 1), SIZE),
    "a head with longer padding than its frame": (
        frame(HEADERS, HEAD_END | PADDED, 1, b"\xff" + head()),
        PROTOCOL,
    ),
    "a head with padding and no length": (frame(HEADERS, HEAD_END | PADDED, 1), SIZE),
    "a head too short for its priority": (frame(HEADERS, HEAD_END | HAS_PRIORITY, 1, bytes(4)), SIZE),
    # 6.3, 6.4: priority and reset
    "a priority of no stream": (frame(PRIORITY, 0, 0, bytes(5)), PROTOCOL),
    "a priority of the wrong length on an idle stream": (frame(PRIORITY, 0, 1, bytes(4)), SIZE),
    "a reset of no stream": (frame(RESET, 0, 0, error(CANCEL)), PROTOCOL),
    "a reset of three bytes": (opened() + frame(RESET, 0, 1, bytes(3)), SIZE),
    "a reset of five bytes": (opened() + frame(RESET, 0, 1, bytes(5)), SIZE),
    # 6.5: settings
    "an acknowledgement with settings": (frame(SETTINGS, 1, 0, bytes(6)), SIZE),
    "an acknowledgement with a byte": (frame(SETTINGS, 1, 0, b"\0"), SIZE),
    "settings of a stream": (frame(SETTINGS, 0, 1), PROTOCOL),
    "settings of three bytes": (frame(SETTINGS, 0, 0, bytes(3)), SIZE),
    "settings of seven bytes": (frame(SETTINGS, 0, 0, bytes(7)), SIZE),
    "push that is neither on nor off": (setting(2, 2), PROTOCOL),
    "a first window that is too large": (setting(4, LARGEST + 1), FLOW),
    "frames smaller than may be": (setting(5, (1 << 14) - 1), PROTOCOL),
    "frames larger than may be": (setting(5, 1 << 24), PROTOCOL),
    # 6.6: we never push, and nor may clients
    "a push": (opened() + frame(PUSH, HEAD_END, 1, error(2) + head()), PROTOCOL),
    # 6.7, 6.8: ping and GOAWAY
    "a ping of seven bytes": (frame(PING, 0, 0, bytes(7)), SIZE),
    "a ping of nine bytes": (frame(PING, 0, 0, bytes(9)), SIZE),
    "a ping of a stream": (frame(PING, 0, 1, bytes(8)), PROTOCOL),
    "a GOAWAY of a stream": (frame(GO_AWAY, 0, 1, bytes(8)), PROTOCOL),
    "a GOAWAY of seven bytes": (frame(GO_AWAY, 0, 0, bytes(7)), SIZE),
    # 6.9: windows
    "a window of nothing": (window(0, 0), PROTOCOL),
    "windows beyond all bounds": (2 * window(0, LARGEST), FLOW),
    "a window of three bytes": (frame(WINDOW, 0, 0, bytes(3)), SIZE),
    "a window of five bytes": (frame(WINDOW, 0, 0, bytes(5)), SIZE),
    "a first window that lets a stream's overflow": (
        opened() + window(1, LARGEST - 65_535) + setting(4, 65_536),
        FLOW,
    ),
    "a first window that lets one of many overflow": (
        b"".join(map(opened, range(1, 21, 2)))
        + window(7, LARGEST - 70_000)
        + setting(4, 5)
        + setting(4, 70_001),
        FLOW,
    ),
    # RFC 7541
    "the index zero": (with_head(b"\x80"), COMPRESSION),
    "an index that there is not": (with_head(head() + b"\xff\x20"), COMPRESSION),
    "a name by an index that there is not": (with_head(head() + b"\x7f\xff\x20\1x"), COMPRESSION),
    "a number without an end": (with_head(head() + b"\xff\xff\xff\xff\xff\xff"), COMPRESSION),
    "a text longer than its block": (with_head(head() + b"\0\5ab"), COMPRESSION),
    "padding of eight ones": (with_head(head() + b"\0\x82\x1f\xff\1x"), COMPRESSION),
    "padding of zeros": (with_head(head() + b"\0\x81\x18\1x"), COMPRESSION),
    "the end of texts within one": (with_head(head() + b"\0\x84\xff\xff\xff\xff\1x"), COMPRESSION),
    "a table larger than announced": (with_head(number(4097, 5, 0x20) + head()), COMPRESSION),
    "a table that changes after a field": (with_head(head() + b"\x20"), COMPRESSION),
    "trailers that cannot be read": (opened() + frame(HEADERS, HEAD_END | END, 1, b"\x80"), COMPRESSION),
}


class Left(NamedTuple):
    """How a client was left: the error, and the last stream that was looked at."""

    error: int
    last: int


async def left(connection: Connection) -> Left:
    body = (await connection.until(GO_AWAY)).body
    while await connection.reader.read(1 << 16):
        pass
    connection.writer.close()
    return Left(int.from_bytes(body[4:8], "big"), int.from_bytes(body[:4], "big"))


@pytest.mark.parametrize("what", CONNECTION_ERRORS)
def test_who_breaks_the_protocol_is_told_so_and_others_are_served(what: str) -> None:
    wrong, code = CONNECTION_ERRORS[what]

    async def ask() -> None:
        async with network() as server:
            bad = await server.connect()
            good = await server.connect()
            bad.writer.write(wrong)
            assert (await left(bad)).error == code
            good.writer.write(call())
            assert (await good.answer(1))[0][b"grpc-status"] == b"0"
            await until(lambda: server.grpc.native.connections() == 1)
            assert server.grpc.native.held() == 0
            assert sum(server.grpc.left().values()) == 1

    run(ask())


PREFACES: dict[str, bytes] = {
    "no settings": PREFACE + frame(PING, 0, 0, bytes(8)),
    "an acknowledgement": PREFACE + frame(SETTINGS, 1),
    "a head": PREFACE + opened(),
    "a window": PREFACE + window(0, 100),
    "a frame of no known kind": PREFACE + frame(99),
}


@pytest.mark.parametrize("what", PREFACES)
def test_a_connection_begins_with_settings(what: str) -> None:
    async def ask() -> None:
        async with network() as server:
            connection = await server.connect(PREFACES[what] + frame(SETTINGS))
            assert await left(connection) == (PROTOCOL, 0)

    run(ask())


@pytest.mark.parametrize(
    "greeting", [b"GET / HTTP/1.1\r\n\r\n", PREFACE[:-1] + b"X", b"PRI * HTTP/2.0\r\n\n"]
)
def test_who_speaks_something_else_is_closed(greeting: bytes) -> None:
    async def ask() -> None:
        async with network() as server:
            connection = await server.connect(greeting)
            await connection.reader.read()
            connection.writer.close()
            await until(lambda: server.grpc.native.connections() == 0)
            assert server.grpc.left()["not_http2"] == 1

    run(ask())


def without(name: str) -> bytes:
    return block(*(field for field in POST if field[0] != name), GRPC)


MALFORMED_HEADS: dict[str, bytes] = {
    # 8.2.1: characters
    "a name with a capital": block(*POST, GRPC, ("X-Test", "1")),
    "a name with a space": block(*POST, GRPC, ("x test", "1")),
    "a name with a space behind": block(*POST, GRPC, ("x-test ", "1")),
    "a name with a colon": block(*POST, GRPC, ("x:test", "1")),
    "a name with NUL": block(*POST, GRPC, ("x\0", "1")),
    "a name with CR": block(*POST, GRPC, ("x\r", "1")),
    "a name with LF": block(*POST, GRPC, ("x\nhost", "1")),
    "a name with DEL": block(*POST, GRPC, ("x\x7f", "1")),
    "a name beyond ASCII": block(*POST, GRPC, ("x\xe4", "1")),
    "a name with a bracket": block(*POST, GRPC, ("x(y)", "1")),
    "an empty name": block(*POST, GRPC, ("", "1")),
    "a value with NUL": block(*POST, GRPC, ("x", "a\0b")),
    "a value with CR": block(*POST, GRPC, ("x", "a\rb")),
    "a value with LF": block(*POST, GRPC, ("x", "a\nb")),
    "a value with a space in front": block(*POST, GRPC, ("x", " a")),
    "a value with a space behind": block(*POST, GRPC, ("x", "a ")),
    "a value with a tab in front": block(*POST, GRPC, ("x", "\ta")),
    "a value with a tab behind": block(*POST, GRPC, ("x", "a\t")),
    "a path with LF": replacing(":path", "/a\nb"),
    "an unclean field from the table": block(*POST, GRPC) + literal("X", "1", 0x40) + b"\xbe",
    "an unclean name from the table": block(*POST, GRPC) + literal("X", "1", 0x40) + b"\x0f\x2f\1a",
    # 8.2.2: fields about the connection
    "connection": block(*POST, GRPC, ("connection", "keep-alive")),
    "proxy-connection": block(*POST, GRPC, ("proxy-connection", "keep-alive")),
    "keep-alive": block(*POST, GRPC, ("keep-alive", "5")),
    "transfer-encoding": block(*POST, GRPC, ("transfer-encoding", "chunked")),
    "upgrade": block(*POST, GRPC, ("upgrade", "h2c")),
    "te of something else": block(*POST, GRPC, ("te", "trailers, deflate;q=0.5")),
    "te of gzip": block(*POST, GRPC, ("te", "gzip")),
    # 8.3: pseudo-header fields
    "an unknown one": block(*POST, (":test", "ok"), GRPC),
    "one of answers": block(*POST, (":status", "200"), GRPC),
    "one of extended CONNECT": block(*POST, (":protocol", "websocket"), GRPC),
    "one after others": block(POST[0], POST[1], GRPC, POST[2]),
    "an authority after others": block(*POST, GRPC, (":authority", "a")),
    "no method": without(":method"),
    "no scheme": without(":scheme"),
    "no path": without(":path"),
    "none at all": block(GRPC),
    "two methods": block(POST[0], *POST, GRPC),
    "two schemes": block(POST[1], *POST, GRPC),
    "two paths": block(POST[2], *POST, GRPC),
    "two authorities": block(*POST, (":authority", "a"), (":authority", "a"), GRPC),
    "an empty path": replacing(":path", ""),
    "an empty method": replacing(":method", ""),
    "an empty scheme": replacing(":scheme", ""),
    "a path without a slash": replacing(":path", "inference"),
    "a whole address as path": replacing(":path", "http://example.com/"),
    "an authority with a user": block(*POST, (":authority", "me@example.com"), GRPC),
    "a host that is not the authority": block(*POST, (":authority", "a"), GRPC, ("host", "b")),
    "two hosts": block(*POST, GRPC, ("host", "a"), ("host", "b")),
    "CONNECT": block((":method", "CONNECT"), (":authority", "a:1"), GRPC),
    # 8.1.1: content-length
    "a length that is none": block(*POST, GRPC, ("content-length", "+5")),
    "a negative length": block(*POST, GRPC, ("content-length", "-1")),
    "an empty length": block(*POST, GRPC, ("content-length", "")),
    "a list of lengths": block(*POST, GRPC, ("content-length", "5, 5")),
    "two lengths": block(*POST, GRPC, ("content-length", "5"), ("content-length", "6")),
}


@pytest.mark.parametrize("what", MALFORMED_HEADS)
def test_a_malformed_request_is_an_error_of_its_stream_alone(what: str) -> None:
    async def ask() -> None:
        async with network() as server:
            connection = await server.connect()
            connection.writer.write(with_head(MALFORMED_HEADS[what]) + frame(DATA, END, 1, BODY))
            assert await connection.until(RESET) == (RESET, 0, 1, error(PROTOCOL))
            connection.writer.write(call(3))
            assert (await connection.answer(3))[0][b"grpc-status"] == b"0"

    run(ask())


STREAM_ERRORS: dict[str, tuple[bytes, int]] = {
    # 5.1: half-closed by the client
    "data after the end": (call() + frame(DATA, END, 1, b"x"), CLOSED),
    "empty data after the end": (call() + frame(DATA, 0, 1), CLOSED),
    "a head after the end": (call() + frame(HEADERS, HEAD_END | END, 1, block(("x", "1"))), CLOSED),
    "a head in pieces after the end": (
        call() + frame(HEADERS, END, 1, block(("x", "1"))) + frame(CONTINUATION, HEAD_END, 1),
        CLOSED,
    ),
    # 5.3.1, 6.3
    "a head that depends on itself": (
        frame(HEADERS, HEAD_END | HAS_PRIORITY, 1, error(1) + b"\0" + head()),
        PROTOCOL,
    ),
    "a priority that depends on itself": (opened() + frame(PRIORITY, 0, 1, error(1) + b"\0"), PROTOCOL),
    "a priority of four bytes": (opened() + frame(PRIORITY, 0, 1, bytes(4)), SIZE),
    "a priority of six bytes": (opened() + frame(PRIORITY, 0, 1, bytes(6)), SIZE),
    # 6.9
    "a window of nothing": (opened() + window(1, 0), PROTOCOL),
    "windows beyond all bounds": (opened() + 2 * window(1, LARGEST), FLOW),
    # 8.1
    "trailers that do not end the stream": (opened() + with_head(block(("x", "1"))), PROTOCOL),
    "trailers with a pseudo-header": (
        opened() + with_head(block((":path", "/")), HEAD_END | END),
        PROTOCOL,
    ),
    "trailers with a capital": (opened() + with_head(block(("X", "1")), HEAD_END | END), PROTOCOL),
    "trailers about the connection": (
        opened() + with_head(block(("connection", "close")), HEAD_END | END),
        PROTOCOL,
    ),
    # 8.1.1
    "less data than announced": (
        with_head(head(content_length=str(len(BODY) + 1))) + frame(DATA, END, 1, BODY),
        PROTOCOL,
    ),
    "more data than announced": (with_head(head(content_length="3")) + frame(DATA, 0, 1, BODY), PROTOCOL),
    "more data than announced in pieces": (
        with_head(head(content_length="3")) + frame(DATA, 0, 1, b"\0\0") + frame(DATA, END, 1, b"\0\0"),
        PROTOCOL,
    ),
    "less data than announced before trailers": (
        with_head(head(content_length="3"))
        + frame(DATA, 0, 1, b"\0")
        + with_head(block(("x", "1")), HEAD_END | END),
        PROTOCOL,
    ),
    "no data where some was announced": (
        with_head(head(content_length="3"), HEAD_END | END),
        PROTOCOL,
    ),
}


@pytest.mark.parametrize("what", STREAM_ERRORS)
def test_an_error_of_a_stream_leaves_the_others_alone(what: str) -> None:
    wrong, code = STREAM_ERRORS[what]

    async def ask() -> None:
        async with network(answers=False) as server:
            connection = await server.connect()
            connection.writer.write(wrong)
            assert await connection.until(RESET) == (RESET, 0, 1, error(code))
            connection.writer.write(call(3))
            await server.front.popped()
            assert server.grpc.native.connections() == 1

    run(ask())


AFTER_AN_ANSWER: dict[str, tuple[bytes, int | None]] = {
    "data": (frame(DATA, END, 1, b"x"), CLOSED),
    "a head": (opened(), CLOSED),
    "trailers": (with_head(block(("x", "1")), HEAD_END | END), CLOSED),
    "a continuation": (frame(CONTINUATION, HEAD_END, 1), PROTOCOL),
    # These may have crossed the end of the answer.
    "a window": (window(1, 100), None),
    "a reset": (frame(RESET, 0, 1, error(CANCEL)), None),
    "a priority": (frame(PRIORITY, 0, 1, bytes(5)), None),
}


@pytest.mark.parametrize("what", AFTER_AN_ANSWER)
def test_a_closed_stream_stays_closed(what: str) -> None:
    more, code = AFTER_AN_ANSWER[what]

    async def ask() -> None:
        async with network() as server:
            connection = await server.connect()
            connection.writer.write(call())
            await connection.answer(1)
            connection.writer.write(more)
            if code is not None:
                assert await left(connection) == (code, 1)
                return
            connection.writer.write(call(3))
            assert (await connection.answer(3))[0][b"grpc-status"] == b"0"

    run(ask())


def test_what_a_client_sends_before_it_knows_that_it_is_refused_is_nothing() -> None:
    async def ask() -> None:
        async with network() as server:
            connection = await server.connect()
            connection.writer.write(opened(content_type="text/plain"))
            await connection.until(RESET)
            trailers = frame(HEADERS, HEAD_END | END, 1, literal("kept", "in the table", 0x40))
            connection.writer.write(frame(DATA, 0, 1, BODY) + window(1, 5) + trailers)
            connection.writer.write(frame(HEADERS, HEAD_END, 3, head() + b"\xbe") + frame(DATA, END, 3, BODY))
            assert (await connection.answer(3))[0][b"grpc-status"] == b"0"

    run(ask())


FINE: dict[str, bytes] = {
    "a plain call": call(),
    "frames of no known kind": frame(99, 255, 7, b"?") + call(),
    "flags of no meaning": frame(HEADERS, HEAD_END | 0xD2, 1, head()) + frame(DATA, END | 0xF6, 1, BODY),
    "a reserved bit": frame(PING, 0, 1 << 31, bytes(8)) + call(),
    "a priority of an idle stream": frame(PRIORITY, 0, 7, bytes(5)) + call(),
    "a priority of an even stream": frame(PRIORITY, 0, 8, bytes(5)) + call(),
    "settings of no meaning": setting(99, 5) + call(),
    "settings of everything": setting(1, 0) + setting(2, 0) + setting(3, 0) + setting(6, 100) + call(),
    "many settings": frame(SETTINGS, 0, 0, (b"\0\4" + error(65_535)) * 100) + call(),
    "a ping's answer that nobody asked for": frame(PING, 1, 0, bytes(8)) + call(),
    "an acknowledgement that nobody asked for": 3 * frame(SETTINGS, 1) + call(),
    "a GOAWAY": frame(GO_AWAY, 0, 0, bytes(8) + b"because") + call(),
    "padding": frame(HEADERS, HEAD_END | PADDED, 1, b"\2" + head() + bytes(2))
    + frame(DATA, END | PADDED, 1, b"\0" + BODY),
    "a priority in the head": frame(HEADERS, HEAD_END | HAS_PRIORITY, 1, error(3) + b"\7" + head())
    + frame(DATA, END, 1, BODY),
    "empty continuations": with_head(head(), 0)
    + 3 * frame(CONTINUATION, 0, 1)
    + frame(CONTINUATION, HEAD_END, 1)
    + frame(DATA, END, 1, BODY),
    "trailers": opened() + frame(DATA, 0, 1, BODY) + with_head(block(("x", "1")), HEAD_END | END),
    "an end of its own": opened() + frame(DATA, 0, 1, BODY) + frame(DATA, END, 1),
    "the right length": call(content_length=str(len(BODY))),
    "the same length twice": with_head(
        head(content_length=str(len(BODY))) + block(("content-length", str(len(BODY))))
    )
    + frame(DATA, END, 1, BODY),
    "te of trailers": call(te="trailers"),
    "an empty value": call(x_test=""),
    "a value with spaces and tabs inside": call(x_test="a \t b"),
    "a value beyond ASCII": call(x_test="\xe4\xff"),
    "an authority and the same host": with_head(
        block(*POST, (":authority", "Example.com:80"), GRPC, ("host", "example.com:80"))
    )
    + frame(DATA, END, 1, BODY),
    "windows up to the bound": opened() + window(1, LARGEST - 65_535) + frame(DATA, END, 1, BODY),
    "a first window that fits beside the others": opened(5)
    + window(5, LARGEST - 65_535)
    + frame(RESET, 0, 5, error(CANCEL))
    + setting(4, LARGEST)
    + frame(HEADERS, HEAD_END, 7, head()),
    "a content-type with more": call(content_type="application/grpc+proto"),
    "a content-type with parameters": call(content_type="application/grpc;charset=utf-8"),
    "a smaller table, then a field in it": with_head(b"\x20" + number(100, 5, 0x20) + head())
    + frame(DATA, END, 1, BODY),
}


@pytest.mark.parametrize("what", FINE)
def test_what_the_standard_allows_is_served(what: str) -> None:
    async def ask() -> None:
        async with network() as server:
            connection = await server.connect()
            last = 9 if frame(HEADERS, HEAD_END, 7, head()) in FINE[what] else 1
            connection.writer.write(FINE[what] + (call(last) if last > 1 else b""))
            fields, data = await connection.answer(last)
            assert (fields[b"grpc-status"], answered(data).id) == (b"0", "x")

    run(ask())


def test_pings_are_answered() -> None:
    async def ask() -> None:
        async with network() as server:
            connection = await server.connect()
            connection.writer.write(frame(PING, 0, 0, b"12345678"))
            assert await connection.until(PING) == (PING, 1, 0, b"12345678")

    run(ask())


def test_settings_are_acknowledged_and_ours_announce_our_limits() -> None:
    async def ask() -> None:
        async with network() as server:
            connection = await server.connect()
            body = (await connection.until(SETTINGS)).body
            settings = {
                body[at + 1]: int.from_bytes(body[at + 2 : at + 6], "big") for at in range(0, len(body), 6)
            }
            assert settings == {3: 1024, 4: 1 << 20, 6: 64 * 1024}
            assert await connection.until(SETTINGS) == (SETTINGS, 1, 0, b"")

    run(ask())


def test_a_changed_first_window_counts_for_open_streams_also_where_it_is_negative_then() -> None:
    async def ask() -> None:
        async with network() as server:
            connection = await server.connect(PREFACE + setting(4, 50))
            connection.writer.write(call(1, message(size=100)))
            got = len((await connection.until(DATA, 1)).body)
            connection.writer.write(setting(4, 10) + window(1, 30) + frame(PING, 0, 0, bytes(8)))
            pong = await connection.until(PING)
            connection.writer.write(window(1, 15))  # 10 - 50 + 30 + 15
            got += len((await connection.until(DATA, 1)).body)
            assert (pong.kind, got) == (PING, 55)

    run(ask())
