"""Network threads read as the long way does, and take nothing that the long way refuses."""

from __future__ import annotations

import asyncio
import gzip
import json
import mmap
import re
import socket
import struct
import time
import zlib
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import httptools
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.server.contract import InferAnswer, ModelCard, Refused, Stages
from astrarium.server.http.bodies import decompressed
from astrarium.server.http.inference import HttpCall, read_call, written_answer
from astrarium.server.protocol.network_threads import native_specs
from astrarium.serving.live.layout import ALIGNMENT, aligned
from astrarium.serving.live.tensors import DATATYPES, Tensor, TensorSpec, to_bytes
from tests.support.server.fakes import HOUR

_tensors: Any = import_module("astrarium._tensors")
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


class Desk:
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
                found = Read(line, number, model, rows, *more)
                return self.drop(found, "more") if self.network.held() else found
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
        found = []
        at = call.block
        for shape, size in call.shapes:
            found.append((tuple(shape), bytes(self.memory[at : at + size])))
            at += aligned(size)
        return found

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
def the_desk() -> Desk:
    return Desk()


@pytest.fixture
def desk() -> Desk:
    return the_desk()


def taken(found: Read | str) -> Read:
    assert isinstance(found, Read), found
    return found


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


def same(desk: Desk, call: Read, data: bytes) -> None:
    asked = LongWay(data).asked()
    tensors = desk.tensors(call)
    desk.drop(call)
    assert CARDS[call.model].name == asked.call.model
    assert call.rows == asked.call.rows
    assert call.timeout_us * 1000 == (asked.call.timeout or 0)
    assert (call.priority, call.application) == (asked.call.priority, asked.call.application)
    placed = [(one.shape, bytes(one.data)) for one in asked.call.inputs]
    assert tensors == placed


def test_the_alignment_is_the_one_of_the_arena() -> None:
    assert _tensors.ALIGNMENT == ALIGNMENT


# what it takes

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


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Plain ones, in every form that a client may choose."""
    datatype = draw(st.sampled_from(KINDS))
    rows = draw(st.integers(1, 3))
    length = draw(st.integers(1, 3))
    sides = [("A", datatype, (rows, 2)), ("B", "FP32", (rows, length, 2))]
    inputs = []
    binary = b""
    for name, kind, shape in draw(st.permutations(sides)):
        array = draw(values(kind, shape))
        given: dict[str, Any] = {"name": name, "shape": list(shape), "datatype": kind}
        if kind == "BF16" or draw(st.booleans()):
            content = bytes(to_bytes(array))
            given["parameters"] = {"binary_data_size": len(content)} | draw(extras)
            binary += content
        else:
            given["data"] = (array if draw(st.booleans()) else array.ravel()).tolist()
        inputs.append(dict(draw(st.permutations(list((given | draw(extras)).items())))))
    body: dict[str, Any] = {"inputs": inputs}
    request_options = {
        "timeout": st.integers(10**8, 10**9),  # long enough to be taken
        "priority": st.integers(0, 9),
        "application": st.text("ab-", max_size=5),
    }
    if chosen := draw(st.sets(st.sampled_from([*request_options, "binary_data_output"]))):
        body["parameters"] = {name: draw(request_options.get(name, st.booleans())) for name in sorted(chosen)}
        body["parameters"] |= draw(extras)
    if draw(st.booleans()):
        body["outputs"] = [{"name": "Y"}, {"name": "X", "parameters": {"binary_data": draw(st.booleans())}}]
    if draw(st.booleans()):
        body["id"] = draw(st.text('abc 123é\n"\\\U0001f600', max_size=8))
    if datatype == "BF16":
        body["outputs"] = [{"name": "Y"}, {"name": "X", "parameters": {"binary_data": True} | draw(extras)}]
    spacing = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]))
    text = json.dumps(body | draw(extras), separators=spacing, ensure_ascii=draw(st.booleans())).encode()
    lines = [f"Inference-Header-Content-Length: {len(text)}"] if binary else []
    lines += draw(
        st.sampled_from([[], ["X-Astrarium-Application: tag"], ["Connection: Keep-Alive", "Accept: */*"]])
    )
    return draw(st.sampled_from(WRAPPINGS))(text + binary, datatype.lower(), *lines)


def gzipped(body: bytes, model: str, *lines: str) -> bytes:
    return request(gzip.compress(body, mtime=0), model, "Content-Encoding: gzip", *lines)


def deflated(body: bytes, model: str, *lines: str) -> bytes:
    return request(zlib.compress(body), model, "content-encoding: Deflate", *lines)


def chunked(body: bytes, model: str, *lines: str, size: int = 50) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in [*parts, b""])
    head, _, _ = request(b"", model, "Transfer-Encoding: chunked", *lines).partition(b"\r\n\r\n")
    return head.replace(b"Content-Length: 0\r\n", b"") + b"\r\n\r\n" + chunks


def chunked_gzip(body: bytes, model: str, *lines: str) -> bytes:
    return chunked(gzip.compress(body, mtime=0), model, "Content-Encoding: gzip", *lines)


WRAPPINGS = (request, request, gzipped, deflated, chunked, chunked_gzip)
extras: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{}, {}, {"note": "é\n"}, {"level": 3.5, "on": True, "nothing": None}]
)


@given(requests())
@settings(max_examples=300, deadline=None)
def test_a_plain_request_is_read_as_the_long_way_reads_it(data: bytes) -> None:
    same(the_desk(), taken(the_desk().read(data)), data)


@given(requests(), st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_what_it_takes_of_hostile_bytes_the_long_way_takes_too(data: bytes, drawn: st.DataObject) -> None:
    hostile(data, drawn)


@pytest.mark.thorough
@given(requests(), st.data())
@settings(max_examples=600, deadline=None)
def test_what_it_takes_after_an_accident_the_long_way_takes_too(data: bytes, drawn: st.DataObject) -> None:
    hostile(data, drawn)


def hostile(data: bytes, drawn: st.DataObject) -> None:
    """Bytes of a good request are changed, lost or doubled: if it is still taken, both read the same."""
    changed = bytearray(data)
    for _ in range(drawn.draw(st.integers(1, 3))):
        at = drawn.draw(st.integers(0, len(changed) - 1))
        match drawn.draw(st.sampled_from("cld")):
            case "c":
                changed[at] = drawn.draw(st.sampled_from(b'0129-+.eE"\\{}[],: \r\n\tabz\x00\xff'))
            case "l":
                del changed[at]
            case "d":
                changed[at:at] = changed[at : at + drawn.draw(st.integers(1, 9))]
    call = the_desk().read(bytes(changed))
    if not isinstance(call, str):
        same(the_desk(), call, bytes(changed))


# what goes the long way

BODIES = {
    "no JSON": b"hello",
    "nothing": b"",
    "something after it": json.dumps(plain()).encode() + b"x",
    "an unknown field that is an object": json.dumps(plain(more={"a": 1})).encode(),
    "an unknown field twice": json.dumps(plain(more=1)).replace('"more"', '"more": 2, "more"').encode(),
    "more unknown fields than are remembered": json.dumps(
        {**plain(), **{f"f{i}": i for i in range(9)}}
    ).encode(),
    "an unknown field beyond all numbers": json.dumps(plain(more=0))
    .replace('"more": 0', '"more": 1e999')
    .encode(),
    "a sequence": json.dumps(plain(parameters={"sequence_id": 1})).encode(),
    "a classification": json.dumps(
        plain(outputs=[{"name": "X", "parameters": {"classification": 1}}])
    ).encode(),
    "a field twice": b'{"inputs":[],"inputs":[]}',
    "half of a surrogate": json.dumps(plain(id="?")).replace('"?"', '"\\ud800"').encode(),
    "an escape that there is not": json.dumps(plain(id="?")).replace('"?"', '"\\x"').encode(),
    "no UTF-8": json.dumps(plain(id="?")).encode().replace(b'"?"', b'"\xff"'),
    "no timeout": json.dumps(plain(parameters={"timeout": 0})).encode(),
    "an input too few": json.dumps({"inputs": [tensor("A", "FP32", [[1, 2]])]}).encode(),
    "an input twice": json.dumps({"inputs": [tensor("A", "FP32", [[1, 2]])] * 2}).encode(),
    "another datatype": json.dumps(plain("FP64")).encode(),
    "too many rows": json.dumps(
        {"inputs": [tensor("A", "FP32", [[1, 2]] * 4), tensor("B", "FP32", [[[1, 2]]] * 4)]}
    ).encode(),
    "unequal rows": json.dumps(
        {"inputs": [tensor("A", "FP32", [[1, 2]] * 2), tensor("B", "FP32", [[[1, 2]]])]}
    ).encode(),
    "an unknown output": json.dumps(plain(outputs=[{"name": "Z"}])).encode(),
    "an output twice": json.dumps(plain(outputs=[{"name": "X"}, {"name": "X"}])).encode(),
    "a number beyond its range": json.dumps(plain()).replace("1.5", "1e39").encode(),
    "a number that JSON does not know": json.dumps(plain()).replace("1.5", "01.5").encode(),
    "not a number": json.dumps(plain()).replace("1.5", "NaN").encode(),
    "a negative size": json.dumps(plain()).replace('[1, 2], "datatype"', '[-1, 2], "datatype"').encode(),
}
LINES = {
    "Transfer-Encoding: chunked": "content-length",
    "Transfer-Encoding: gzip": "transfer-encoding",
    "Content-Encoding: gzip": "content-encoding",
    "Content-Encoding: br": "content-encoding",
    "Expect: something": "expect",
    "Proxy-Connection: keep-alive": "proxy-connection",
    "Content-Length: 5": "content-length",
    "Content-Type: text/plain": "content-type",
    "Inference-Header-Content-Length: 99999999": "body",
    "X-Astrarium-Application: " + 300 * "a": "too_large",
    " folded": "header",
    "no colon": "header",
    "sp ace: x": "header",
    "Odd\x01: x": "header",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_an_unusual_body_goes_the_long_way(desk: Desk, body: bytes) -> None:
    assert desk.read(request(body)) == "body"


def test_a_plain_request_does_not_go_the_long_way(desk: Desk) -> None:
    desk.drop(taken(desk.read(request(json.dumps(plain()).encode()))))
    assert desk.read(request(json.dumps(plain()).encode())[:-7]) == "part"


@pytest.mark.parametrize(("line", "why"), LINES.items())
def test_an_unusual_head_goes_the_long_way(desk: Desk, line: str, why: str) -> None:
    assert desk.read(request(json.dumps(plain()).encode(), "fp32", line)) == why


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ("GET /v2/models/fp32/infer HTTP/1.1", "path"),
        ("POST /v2/models/fp32/infer HTTP/1.2", "path"),
        ("POST /v2/models/other/infer HTTP/1.1", "unknown_model"),
        ("POST /v2/models/fp32/versions/2/infer HTTP/1.1", "version"),
        ("POST /v2/models/fp32/infer?x=1 HTTP/1.1", "path"),
        ("POST /v2/models/fp%33%32/infer HTTP/1.1", "path"),
        ("POST /v2/models//infer HTTP/1.1", "path"),
        ("POST /v2/models/fp32 HTTP/1.1", "path"),
    ],
)
def test_another_first_line_goes_the_long_way(desk: Desk, first: str, why: str) -> None:
    data = request(json.dumps(plain()).encode())
    assert desk.read(data.replace(b"POST /v2/models/fp32/infer HTTP/1.1", first.encode())) == why


def test_limits_hold(desk: Desk) -> None:
    body = json.dumps(plain()).encode()
    assert desk.read(request(body, "fp32", "X: " + HEAD * "x")) == "head_in_pieces"
    assert desk.read(request(body + b" " * BODY)) == "too_large"
    longest = request(body).replace(b"Content-Length: ", b"Content-Length: 99999999999999999999")
    assert desk.read(longest) == "content-length"


def test_a_withheld_model_goes_the_long_way_and_says_why(desk: Desk) -> None:
    desk.network.withhold("other", "preprocess")
    assert desk.read(request(json.dumps(plain()).encode(), "other")) == "preprocess"


def test_bf16_is_not_for_json(desk: Desk) -> None:
    with pytest.raises(
        Refused, match=r"inputs\[0\].data: expected parameters.binary_data_size: BF16 has no form"
    ):
        LongWay(request(json.dumps(plain("BF16")).encode(), "bf16")).asked()
    assert desk.read(request(json.dumps(plain("BF16")).encode(), "bf16")) == "body"
    binary = {"name": "A", "datatype": "BF16", "shape": [1, 2], "parameters": {"binary_data_size": 4}}
    text = json.dumps({"inputs": [binary, tensor("B", "FP32", [[[1.5, 2.5]]])]}).encode()
    data = request(text + b"1234", "bf16", f"Inference-Header-Content-Length: {len(text)}")
    assert desk.read(data) == "body"
    with pytest.raises(Refused, match="output X: expected the parameter binary_data: true: BF16 has no form"):
        LongWay(data).asked()


# answers


@given(st.sampled_from(NUMBERS), st.integers(1, 3), st.booleans(), st.data())
@settings(max_examples=200, deadline=None)
def test_an_answer_says_what_the_long_way_says(
    datatype: str, rows: int, binary: bool, drawn: st.DataObject
) -> None:
    desk = the_desk()
    card = next(card for card in CARDS if card.name == datatype.lower())
    wanted = [{"name": "Y", "parameters": {"binary_data": binary}}, {"name": "X"}]
    body = plain(datatype, outputs=wanted, id="seven")
    body["inputs"] = [tensor("A", datatype, [[1, 0]] * rows), tensor("B", "FP32", [[[1, 2]]] * rows)]
    if datatype == "BOOL":
        body["inputs"][0]["data"] = [[True, False]] * rows
    data = request(json.dumps(body).encode(), card.name)
    xs = drawn.draw(values(datatype, (rows, 2)))
    ys = drawn.draw(values("FP32", (rows, 3, 2)))
    if drawn.draw(st.booleans()) and datatype in ("FP16", "FP32", "FP64"):
        xs[0, 0] = drawn.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    call = taken(desk.read(data))
    for row in range(rows):
        at = call.replies + row * call.room
        desk.memory[at : at + xs[row].nbytes] = xs[row].tobytes()
        at += aligned(xs[row].nbytes)
        desk.memory[at : at + ys[row].nbytes] = ys[row].tobytes()
    shapes = [((1, 2), xs[0].nbytes), ((1, 3, 2), ys[0].nbytes)]
    head, _, content = desk.answer(call, shapes).partition(b"\r\n\r\n")
    tensors = [Tensor("X", datatype, xs.shape, xs.tobytes()), Tensor("Y", "FP32", ys.shape, ys.tobytes())]
    answer = InferAnswer(tensors, Stages(0, 0, 0, 0, 0, 0), rows, 0, True, lambda: None)
    headers, expected = written_answer(card, LongWay(data).asked(), answer)
    given_headers = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert int(given_headers[b"content-length"]) == len(content)
    sizes = [
        int(dict(side).get(b"inference-header-content-length", len(text)))
        for side, text in ((given_headers.items(), content), (headers, expected))
    ]
    ours = json.loads(content[: sizes[0]])
    theirs = json.loads(expected[: sizes[1]])
    assert ours == theirs
    assert content[sizes[0] :] == expected[sizes[1] :]


def test_a_shape_of_a_thousand_dimensions_goes_the_long_way(desk: Desk) -> None:
    body = json.dumps(plain()).replace('"shape": [1, 2]', '"shape": [1, 2' + 1000 * ", 1" + "]")
    assert desk.read(request(body.encode())) == "body"


def test_every_half_precision_number_is_written_and_read_as_numpy_does(desk: Desk) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    desk.serve(50, "halves", [("A", "FP16", [-1], None)], [("X", "FP16", [-1], None)], 1)
    for part in np.array_split(every, 16):
        finite = np.where(np.isfinite(part), part, np.float16(0))
        asked = {"inputs": [tensor("A", "FP16", finite[None].astype(float))]}
        call = taken(desk.read(request(json.dumps(asked).encode(), "halves")))
        assert desk.tensors(call) == [((1, len(part)), finite.tobytes())]
        desk.memory[call.replies : call.replies + part.nbytes] = part.tobytes()
        sent = desk.answer(call, [((1, len(part)), part.nbytes)])
        told = json.loads(sent.partition(b"\r\n\r\n")[2])["outputs"][0]["data"]
        assert told == [float(x) if np.isfinite(x) else None for x in part]


@given(st.floats(-70000, 70000) | st.floats(-1e-4, 1e-4))
@settings(max_examples=300, deadline=None)
def test_a_number_becomes_the_nearest_half(value: float) -> None:
    desk = the_desk()
    desk.serve(51, "half", [("A", "FP16", [1], None)], [("X", "FP16", [1], None)], 1)
    found = desk.read(request(json.dumps({"inputs": [tensor("A", "FP16", [[value]])]}).encode(), "half"))
    try:
        expected = struct.pack("<e", value)
    except OverflowError:
        assert found == "body"  # the long way says that it is too large
    else:
        assert desk.tensors(taken(found)) == [((1, 1), expected)]
        desk.drop(taken(found))


def test_a_refusal_of_the_long_way_stays_one() -> None:
    """The comparison above means something: the long way does refuse."""
    with pytest.raises(Refused):
        LongWay(request(BODIES["another datatype"])).asked()
