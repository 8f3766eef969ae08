"""A network thread whose client is the test, and the same request read the long way."""

from __future__ import annotations

import asyncio
import mmap
import re
import socket
import time
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import httptools
import numpy as np
from hypothesis import strategies as st

from astrarium.server.contract import ModelCard
from astrarium.server.http.bodies import decompressed
from astrarium.server.http.inference import HttpCall, read_call
from astrarium.server.protocol.network_threads import native_specs
from astrarium.serving.live.layout import aligned
from astrarium.serving.live.tensors import DATATYPES, TensorSpec
from tests.support.server.fakes import HOUR

_front: Any = import_module("astrarium._front")
_testing: Any = import_module("astrarium._testing")

HEAD = 4096
BODY = 100_000
KINDS = list(DATATYPES)
NUMBERS = [kind for kind in KINDS if kind not in ("BYTES", "BF16")]
CARDS = [
    ModelCard(
        kind.lower(),
        "fake",
        (TensorSpec("A", kind, (2,)), TensorSpec("B", "FP32", (-1, 2))),
        (TensorSpec("X", kind, (2,)), TensorSpec("Y", "FP32", (-1, 2))),
        max_batch=3,
        slo=1,
    )
    for kind in KINDS
]


class Read(NamedTuple):
    """A call that the network thread has read; its client waits on `line`."""

    line: socket.socket
    number: int
    model: int
    rows: int
    block: int
    replies: int
    room: int
    shapes: list[tuple[list[int], int]]
    timeout_us: int
    priority: int
    application: str
    patience: int


class NetworkThread:
    """A network thread; a test is its client, and ends its calls by hand."""

    def __init__(self) -> None:
        self.memory = memoryview(mmap.mmap(-1, 1 << 20))
        exchange = _front.Exchange(self.memory, models=100, most_open=100, origins=1)
        self.loopback = _testing.Loopback(exchange)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            limits = {"head_bytes": HEAD, "body_bytes": BODY, "held_bytes": 1 << 20, "connections": 0}
            times = {"request_ns": HOUR, "keep_alive_ns": HOUR}
            listeners = [listener.fileno()]
            self.network = _front.Network(
                exchange, listeners, keys=[], too_slow=b"", no_descriptor=b"", **limits, **times
            )
            self._address = listener.getsockname()
        for index, card in enumerate(CARDS):
            self.serve(
                index, card.name, native_specs(card.inputs), native_specs(card.outputs), card.max_batch
            )
        self.network.start()

    def serve(self, index: int, name: str, inputs: Any, outputs: Any, max_batch: int) -> None:
        self.network.serve(index, name, "1", inputs, outputs, max_batch, HOUR, {}, [])

    def read(self, request: bytes) -> Read | str:
        """The call, or why it goes the long way, or that some of it is missing or too much."""
        self._forget_the_last()
        line = socket.create_connection(self._address, timeout=60)
        line.sendall(request)
        for _ in range(20_000):
            if calls := self.loopback.pop():
                [(number, model, rows, _, _, _, *more)] = calls
                self.network.synchronize()
                call = Read(line, number, model, rows, *more)
                return self.drop(call, "more") if self.network.held() else call
            for kind, connection, _, why, *_ in self.network.passed():
                if kind == _front.DATA:
                    self.network.abort(connection)
                    return self._left(line, why)
            if self._holds(len(request)):
                return self._left(line, "part")
            time.sleep(0.0001)
        raise AssertionError("nobody has read it")

    def _holds(self, size: int) -> bool:
        """Whether so many bytes wait for more: those that are being read are held for a moment, too."""
        if self.network.held() != size:
            return False
        self.network.synchronize()
        return bool(self.network.held() == size)

    def _forget_the_last(self) -> None:
        """What is left of a request before this one must not be taken for it."""
        self.network.synchronize()
        self.network.passed()
        for number, *_ in self.loopback.pop():
            self.loopback.end(number, "dropped", "expired")

    def _left(self, line: socket.socket, why: str) -> str:
        """Without its client, whose connection is forgotten before the next one comes."""
        line.close()
        for _ in range(20_000):
            if not self.network.connections():
                return why
            time.sleep(0.0001)
        raise AssertionError("its connection is still there")

    def tensors(self, call: Read) -> list[tuple[tuple[int, ...], bytes]]:
        """Where they were placed: shapes and bytes in the order of the card."""
        tensors = []
        at = call.block
        for shape, size in call.shapes:
            tensors.append((tuple(shape), bytes(self.memory[at : at + size])))
            at += aligned(size)
        return tensors

    def answer(self, call: Read, shapes: Any) -> bytes:
        """What its client is sent, if each row of the answer has these shapes."""
        self.loopback.end(call.number, shapes=[shapes] * call.rows)
        answer = b""
        while b"\r\n\r\n" not in answer or len(answer) < _whole(answer):
            answer += call.line.recv(1 << 20)
        self._left(call.line, "")
        return answer

    def drop(self, call: Read, why: str = "") -> str:
        self.loopback.end(call.number, "dropped", "expired")
        return self._left(call.line, why)


def _whole(answer: bytes) -> int:
    head, _, _ = answer.partition(b"\r\n\r\n")
    [size] = re.findall(rb"\ncontent-length: (\d+)", head)
    return len(head) + 4 + int(size)


@cache
def the_thread() -> NetworkThread:
    return NetworkThread()


def taken(call: Read | str) -> Read:
    assert isinstance(call, Read), call
    return call


def request(body: bytes, model: str = "fp32", *lines: str) -> bytes:
    head = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: here", f"Content-Length: {len(body)}", *lines]
    return "\r\n".join([*head, "", ""]).encode() + body


def tensor(name: str, datatype: str, values: Any, **more: Any) -> dict[str, Any]:
    array = np.asarray(values)
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.tolist(), **more}


def plain(datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    return {"inputs": [tensor("A", datatype, [[1, 2]]), tensor("B", "FP32", [[[1.5, 2.5]]])], **more}


class LongWay:
    """The same request through the parser and the checks of the long way."""

    def __init__(self, data: bytes) -> None:
        self.url = b""
        self.body = b""
        self.headers = dict[bytes, bytes]()
        self.whole = 0
        httptools.HttpRequestParser(self).feed_data(data)
        if encoding := self.headers.get(b"content-encoding"):
            self.body = bytes(asyncio.run(decompressed(self.body, encoding.decode().lower(), BODY)))
        assert self.whole == 1, "exactly one request"

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.whole += 1

    def asked(self) -> HttpCall:
        name = self.url.split(b"/")[3].decode()
        card = next(card for card in CARDS if card.name == name)
        return read_call(card, self.body, self.headers, 0, BODY)


def same(thread: NetworkThread, call: Read, data: bytes) -> None:
    long_way = LongWay(data).asked()
    tensors = thread.tensors(call)
    thread.drop(call)
    assert CARDS[call.model].name == long_way.call.model
    assert call.rows == long_way.call.rows
    assert call.timeout_us * 1000 == (long_way.call.timeout or 0)
    assert (call.priority, call.application) == (long_way.call.priority, long_way.call.application)
    placed = [(one.shape, bytes(one.data)) for one in long_way.call.inputs]
    assert tensors == placed


numbers: Mapping[str, st.SearchStrategy[Any]] = {
    "BOOL": st.booleans(),
    "FP16": st.floats(width=16, allow_nan=False, allow_infinity=False),
    "FP32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "FP64": st.floats(allow_nan=False, allow_infinity=False),
    "BYTES": st.text(max_size=6),
}


def values(datatype: str, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    kind = DATATYPES[datatype]
    if datatype == "BF16":
        return values("UINT16", shape).map(lambda bits: bits.view(kind))
    if datatype not in numbers:
        info = np.iinfo(kind)
        element: st.SearchStrategy[Any] = st.integers(int(info.min), int(info.max))
    else:
        element = numbers[datatype]
    size = int(np.prod(shape))
    return st.lists(element, min_size=size, max_size=size).map(
        lambda flat: np.array(flat, kind).reshape(shape)
    )
