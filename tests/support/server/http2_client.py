"""A client of HTTP/2 by hand, and network threads that speak gRPC over a loopback."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import numpy as np
import uvloop
from tritonclient.grpc import service_pb2

from astrarium.core.optional import extension
from astrarium.server.grpc.network import NativeGrpc
from astrarium.server.grpc.server import serve_grpc
from astrarium.server.settings import HttpLimits, Security
from tests.support.server.fakes import FakeService, LoopbackFront
from tests.support.server.native_network import OPEN

testing: Any = extension("_testing")

DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GO_AWAY, WINDOW, CONTINUATION = range(10)
END = 1
HEAD_END = 4
PADDED = 8
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
POST = ((":method", "POST"), (":scheme", "http"), (":path", INFER))
GRPC = ("content-type", "application/grpc")


def frame(kind: int, flags: int = 0, stream: int = 0, body: bytes = b"", size: int | None = None) -> bytes:
    length = len(body) if size is None else size
    return length.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def number(value: int, bits: int = 7, above: int = 0) -> bytes:
    """An integer of HPACK, in the lowest *bits* of its first byte."""
    ones = (1 << bits) - 1
    if value < ones:
        return bytes([above | value])
    value -= ones
    encoded = bytearray([above | ones])
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def literal(name: str, value: str, first: int = 0) -> bytes:
    """A field as it is; *first* 0x40: the other side keeps it in its table."""
    texts = name.encode("latin-1"), value.encode("latin-1")
    return bytes([first]) + b"".join(number(len(text)) + text for text in texts)


def block(*fields: tuple[str, str]) -> bytes:
    return b"".join(literal(name, value) for name, value in fields)


def head(path: str = INFER, **more: str) -> bytes:
    named = {":path": path, "content-type": "application/grpc"}
    named |= {name.replace("_", "-"): value for name, value in more.items()}
    return b"\x83\x86" + block(*named.items())


def error(code: int) -> bytes:
    return code.to_bytes(4, "big")


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


BODY = prefixed(message().SerializeToString())


def with_head(fields: bytes, flags: int = HEAD_END, stream: int = 1) -> bytes:
    return frame(HEADERS, flags, stream, fields)


def replacing(name: str, value: str) -> bytes:
    return block(*((field[0], value) if field[0] == name else field for field in POST), GRPC)


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    body: bytes


class Connection:
    """A connection that has said hello, and what came over it frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def frame(self) -> Frame:
        top = await self.reader.readexactly(9)
        body = await self.reader.readexactly(int.from_bytes(top[:3], "big"))
        return Frame(top[3], top[4], int.from_bytes(top[5:], "big"), body)

    async def until(self, kind: int, stream: int | None = None) -> Frame:
        while True:
            came = await self.frame()
            if came.kind == kind and stream in (None, came.stream):
                return came

    async def answer(self, stream: int) -> tuple[dict[bytes, bytes], bytes]:
        """The fields of both heads, and the data."""
        fields: dict[bytes, bytes] = {}
        data = b""
        while True:
            came = await self.frame()
            if came.stream == stream and came.kind == DATA:
                data += came.body
            if came.stream == stream and came.kind == HEADERS:
                [(more, _)] = testing.read_blocks([came.body], 4096)
                fields |= dict(more)
                if came.flags & END:
                    return fields, data


class Network:
    """A network of gRPC over a loopback."""

    def __init__(self, front: LoopbackFront, grpc_: NativeGrpc) -> None:
        self.front = front
        self.loopback = front.loopback
        self.grpc = grpc_
        self._connections: list[Connection] = []

    async def connect(self, greeting: bytes = PREFACE + frame(SETTINGS)) -> Connection:
        connection = Connection(*await asyncio.open_connection("127.0.0.1", self.grpc.port))
        self._connections.append(connection)
        connection.writer.write(greeting)
        return connection

    def tally(self) -> Any:
        self.grpc.settle()
        return self.front.exchange.tally(0)

    def leave(self) -> None:
        for connection in self._connections:
            connection.writer.close()


@asynccontextmanager
async def network(
    *cards: Any,
    limits: HttpLimits | None = None,
    answers: bool = True,
    security: Security | None = None,
    **more: Any,
) -> AsyncIterator[Network]:
    front = LoopbackFront(*(cards or (OPEN,)), **more)
    if answers:
        front.loopback.start()
    running = await serve_grpc(FakeService(), limits=limits, security=security, native_front=front)
    assert isinstance(running, NativeGrpc)
    server = Network(front, running)
    try:
        yield server
    finally:
        server.leave()
        await running.stop(1.0)
        front.loopback.stop()


def run(work: Coroutine[Any, Any, None]) -> None:
    uvloop.run(asyncio.wait_for(work, 60))


def answered(data: bytes) -> Any:
    return service_pb2.ModelInferResponse.FromString(data[5:])


def changed(**changes: Any) -> Any:
    request = message()
    for name, value in changes.items():
        setattr(request, name, value)
    return request
