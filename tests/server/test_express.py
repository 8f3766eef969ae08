"""The native desk reads as the long way does, and takes nothing that the long way refuses."""

from __future__ import annotations

import contextlib
import json
import mmap
import socket
import struct
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import httptools
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.server.contract import InferAnswer, ModelCard, Refused, Stages
from astrarium.server.http.handlers import HttpCall, read_call, written_answer
from astrarium.serving.live.arena import ALIGNMENT, aligned
from astrarium.serving.live.tensors import DATATYPES, Tensor, TensorSpec

_express: Any = import_module("astrarium._express")

HEAD, BODY = 4096, 100_000
NUMBERS = [kind for kind in DATATYPES if kind != "BYTES"]
CARDS = [
    ModelCard(
        kind.lower(),
        "fake",
        (TensorSpec("A", kind, (2,)), TensorSpec("B", "FP32", (-1, 2))),
        (TensorSpec("X", kind, (2,)), TensorSpec("Y", "FP32", (-1, 2))),
        max_batch=3,
        slo=1,
    )
    for kind in NUMBERS
]


class Desk:
    """A desk with some memory, and a line to send answers on."""

    def __init__(self) -> None:
        self.memory = memoryview(mmap.mmap(-1, 1 << 20))
        self.native = _express.Desk(self.memory, HEAD, BODY)
        for index, card in enumerate(CARDS):
            sides = (
                [(s.name, s.datatype, list(s.shape)) for s in side] for side in (card.inputs, card.outputs)
            )
            self.native.serve(index, card.name, card.version, *sides, card.max_batch)
        self.ours, self.theirs = socket.socketpair()

    def read(self, request: bytes) -> Any:
        return self.native.read(request)

    def tensors(self, call: Any) -> list[tuple[tuple[int, ...], bytes]]:
        """Where they were placed: shapes and bytes in the order of the card."""
        shapes, at = call.shapes, 256
        call.place(at)
        found = []
        for shape, size in shapes:
            found.append((shape, bytes(self.memory[at : at + size])))
            at += aligned(size)
        return found

    def sent(self, call: Any, offset: int, room: int, shapes: Any) -> bytes:
        assert self.native.answer([(call, self.ours.fileno(), offset, room, shapes)]) == []
        return self.theirs.recv(1 << 20)


@pytest.fixture(scope="module")
def desk() -> Desk:
    return Desk()


def fill(line: socket.socket) -> None:
    """Send until it takes no more."""
    line.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            line.send(bytes(1 << 16))


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
        self.url, self.body, self.headers, self.whole = b"", b"", dict[bytes, bytes](), 0
        httptools.HttpRequestParser(self).feed_data(data)
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


def same(desk: Desk, call: Any, data: bytes) -> None:
    asked = LongWay(data).asked()
    assert CARDS[call.model].name == asked.call.model
    assert call.rows == asked.call.rows
    assert call.timeout_us * 1000 == (asked.call.timeout or 0)
    assert (call.priority, call.application) == (asked.call.priority, asked.call.application)
    placed = [(one.shape, bytes(one.data)) for one in asked.call.inputs]
    assert desk.tensors(call) == placed


def test_the_alignment_is_the_one_of_the_arena() -> None:
    assert _express.ALIGNMENT == ALIGNMENT


# what it takes

numbers: Mapping[str, st.SearchStrategy[Any]] = {
    "BOOL": st.booleans(),
    "FP16": st.floats(width=16, allow_nan=False, allow_infinity=False),
    "FP32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "FP64": st.floats(allow_nan=False, allow_infinity=False),
}


def values(datatype: str, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    kind = DATATYPES[datatype]
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
    datatype = draw(st.sampled_from(NUMBERS))
    rows, length = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    sides = [("A", datatype, (rows, 2)), ("B", "FP32", (rows, length, 2))]
    inputs, binary = [], b""
    for name, kind, shape in draw(st.permutations(sides)):
        array = draw(values(kind, shape))
        given: dict[str, Any] = {"name": name, "shape": list(shape), "datatype": kind}
        if draw(st.booleans()):
            given["parameters"] = {"binary_data_size": array.nbytes}
            binary += array.tobytes()
        else:
            given["data"] = (array if draw(st.booleans()) else array.ravel()).tolist()
        inputs.append(given)
    body: dict[str, Any] = {"inputs": inputs}
    request_options = {
        "timeout": st.integers(1, 10**9),
        "priority": st.integers(0, 9),
        "application": st.text("ab-", max_size=5),
    }
    if chosen := draw(st.sets(st.sampled_from([*request_options, "binary_data_output"]))):
        body["parameters"] = {name: draw(request_options.get(name, st.booleans())) for name in sorted(chosen)}
    if draw(st.booleans()):
        body["outputs"] = [{"name": "Y"}, {"name": "X", "parameters": {"binary_data": draw(st.booleans())}}]
    if draw(st.booleans()):
        body["id"] = draw(st.text("abc 123", max_size=8))
    spacing = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]))
    text = json.dumps(body, separators=spacing).encode()
    lines = [f"Inference-Header-Content-Length: {len(text)}"] if binary else []
    lines += draw(
        st.sampled_from([[], ["X-Astrarium-Application: tag"], ["Connection: Keep-Alive", "Accept: */*"]])
    )
    return request(text + binary, datatype.lower(), *lines)


@given(requests())
@settings(max_examples=300, deadline=None)
def test_a_plain_request_is_read_as_the_long_way_reads_it(data: bytes) -> None:
    desk = Desk()
    same(desk, desk.read(data), data)


@pytest.mark.thorough
@given(requests(), st.data())
@settings(max_examples=600, deadline=None)
def test_what_it_takes_after_an_accident_the_long_way_takes_too(data: bytes, drawn: st.DataObject) -> None:
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
    desk = Desk()
    call = desk.read(bytes(changed))
    if not isinstance(call, int | str):
        same(desk, call, bytes(changed))


def test_a_body_that_is_not_whole_says_what_is_missing(desk: Desk) -> None:
    data = request(json.dumps(plain()).encode())
    assert desk.read(data[:-7]) == 7
    assert desk.read(data[: data.index(b"\r\n\r\n") + 4]) == len(json.dumps(plain()))


# what goes the long way

BODIES = {
    "no JSON": b"hello",
    "nothing": b"",
    "something after it": json.dumps(plain()).encode() + b"x",
    "an unknown field": json.dumps(plain(more=1)).encode(),
    "an unknown parameter": json.dumps(plain(parameters={"sequence_id": 1})).encode(),
    "a field twice": b'{"inputs":[],"inputs":[]}',
    "an escape": json.dumps(plain(id="a\nb")).encode(),
    "another alphabet": json.dumps(plain(id="é"), ensure_ascii=False).encode(),
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
    "Transfer-Encoding: chunked": "transfer-encoding",
    "Content-Encoding: gzip": "content-encoding",
    "Accept-Encoding: gzip": "accept-encoding",
    "Expect: 100-continue": "expect",
    "Connection: close": "connection",
    "Connection: upgrade": "connection",
    "Content-Length: 5": "content-length",
    "Content-Type: text/plain": "content-type",
    "Content-Type: application/json; charset=utf-8": "content-type",
    "Inference-Header-Content-Length: 99999999": "body",
    "X-Astrarium-Timeline: 1": "x-astrarium-timeline",
    "X-Astrarium-Application: " + 300 * "a": "too_large",
    " folded": "header",
    "no colon": "header",
    "sp ace: x": "header",
    "Odd\x01: x": "header",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_an_unusual_body_goes_the_long_way(desk: Desk, body: bytes) -> None:
    assert not isinstance(desk.read(request(json.dumps(plain()).encode())), str)
    assert desk.read(request(body)) == "body"


@pytest.mark.parametrize(("line", "why"), LINES.items())
def test_an_unusual_head_goes_the_long_way(desk: Desk, line: str, why: str) -> None:
    assert desk.read(request(json.dumps(plain()).encode(), "fp32", line)) == why


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ("GET /v2/models/fp32/infer HTTP/1.1", "path"),
        ("POST /v2/models/fp32/infer HTTP/1.0", "path"),
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
    assert desk.read(request(body) * 2) == "pipelined"


def test_a_withheld_model_goes_the_long_way_and_says_why() -> None:
    desk, data = Desk(), request(json.dumps(plain()).encode())
    desk.native.withhold("fp32", "preprocess")
    assert desk.read(data) == "preprocess"


def test_text_goes_the_long_way_unless_it_is_asked_for_in_binary() -> None:
    desk, number = Desk(), ("A", "FP32", [1])
    desk.native.serve(99, "says", "1", [number], [("T", "BYTES", [1])], 1)
    desk.native.serve(98, "hears", "1", [("A", "BYTES", [1])], [number], 1)
    asked = {"inputs": [tensor("A", "FP32", [[1]])]}
    assert desk.read(request(json.dumps(asked).encode(), "says")) == "text"
    binary = asked | {"parameters": {"binary_data_output": True}}
    assert desk.read(request(json.dumps(binary).encode(), "says")).rows == 1
    text = {"inputs": [{"name": "A", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}]}
    assert desk.read(request(json.dumps(text).encode(), "hears")) == "text"


# who waited too long

MS = 1_000_000


def late(desk: Desk, waited: int, **body: Any) -> Any:
    data = request(json.dumps(plain(**body)).encode())
    return desk.native.read(data, waited, desk.ours.fileno())


@pytest.fixture
def planned() -> Desk:
    """A model with an objective of 25 ms, 50 ms at priority 2; alone a request takes 5 ms."""
    desk, card = Desk(), next(card for card in CARDS if card.name == "fp32")
    sides = ([(s.name, s.datatype, list(s.shape)) for s in side] for side in (card.inputs, card.outputs))
    desk.native.serve(7, "fp32", "1", *sides, 3, 25 * MS, {2: 50 * MS})
    desk.native.plan(7, 5 * MS)
    return desk


def test_who_was_read_too_late_to_be_answered_in_time_is_refused_at_once(planned: Desk) -> None:
    assert late(planned, 10 * MS).rows == 1
    assert late(planned, 11 * MS) == (7, b"")
    answer = planned.theirs.recv(1 << 16)
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429 ")
    assert f"content-length: {len(content)}".encode() in head
    assert b"retry-after: 1\r\n" in head
    assert json.loads(content) == {
        "error": "overloaded: model fp32: the request had waited 11 ms before it was read, "
        "and what is left of 25 ms is too short"
    }


def test_a_call_is_too_late_by_its_own_objective(planned: Desk) -> None:
    assert late(planned, 11 * MS, parameters={"timeout": 30_000}).rows == 1
    assert late(planned, 13 * MS, parameters={"timeout": 30_000}) == (7, b"")
    assert late(planned, 20 * MS, parameters={"priority": 2}).rows == 1
    assert late(planned, 23 * MS, parameters={"priority": 2}) == (7, b"")
    assert (
        late(planned, 99 * MS, parameters={"priority": 3}).rows == 1
    )  # the long way explains that there is none


def test_without_a_plan_nobody_is_refused_here() -> None:
    assert late(Desk(), 10_000 * MS).rows == 1


def test_a_refusal_that_the_socket_does_not_take_comes_back(planned: Desk) -> None:
    fill(planned.ours)
    model, rest = late(planned, 12 * MS)
    assert model == 7
    assert rest.startswith(b"HTTP/1.1 429 ")


def test_a_socket_tells_how_long_its_bytes_have_waited() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        other, _ = server.accept()
        with other:
            one.send(b"x")
            time.sleep(0.1)
            assert 0.05 < _express.unread_for(other.fileno()) / 1e9 < 30
            one.send(b"x")
            assert _express.unread_for(other.fileno()) < 0.05e9
    assert _express.unread_for(-1) == 0
    assert _express.unread_for(socket.socketpair()[0].fileno()) == 0


def test_a_call_is_placed_once_and_where_there_is_room(desk: Desk) -> None:
    call = desk.read(request(json.dumps(plain()).encode()))
    with pytest.raises(IndexError):
        call.place((1 << 20) - 8)
    call.place(0)
    with pytest.raises(RuntimeError):
        call.place(0)


# answers


@given(st.sampled_from(NUMBERS), st.integers(1, 3), st.booleans(), st.data())
@settings(max_examples=200, deadline=None)
def test_an_answer_says_what_the_long_way_says(
    datatype: str, rows: int, binary: bool, drawn: st.DataObject
) -> None:
    desk, card = Desk(), next(card for card in CARDS if card.name == datatype.lower())
    wanted = [{"name": "Y", "parameters": {"binary_data": binary}}, {"name": "X"}]
    body = plain(datatype, outputs=wanted, id="seven")
    body["inputs"] = [tensor("A", datatype, [[1, 0]] * rows), tensor("B", "FP32", [[[1, 2]]] * rows)]
    if datatype == "BOOL":
        body["inputs"][0]["data"] = [[True, False]] * rows
    data = request(json.dumps(body).encode(), card.name)
    call = desk.read(data)
    xs, ys = drawn.draw(values(datatype, (rows, 2))), drawn.draw(values("FP32", (rows, 3, 2)))
    if drawn.draw(st.booleans()) and datatype in ("FP16", "FP32", "FP64"):
        xs[0, 0] = drawn.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    room, offset = aligned(xs[0].nbytes) + aligned(ys[0].nbytes), 1024
    for row in range(rows):
        at = offset + row * room
        desk.memory[at : at + xs[row].nbytes] = xs[row].tobytes()
        at += aligned(xs[row].nbytes)
        desk.memory[at : at + ys[row].nbytes] = ys[row].tobytes()
    shapes = [((1, 2), xs[0].nbytes), ((1, 3, 2), ys[0].nbytes)]
    head, _, content = desk.sent(call, offset, room, shapes).partition(b"\r\n\r\n")
    tensors = [Tensor("X", datatype, xs.shape, xs.tobytes()), Tensor("Y", "FP32", ys.shape, ys.tobytes())]
    answer = InferAnswer(tensors, Stages(0, 0, 0, 0, 0, 0), rows, 0, True, lambda: None)
    headers, expected = written_answer(card, LongWay(data).asked(), answer)
    given_headers = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert int(given_headers[b"content-length"]) == len(content)
    sizes = [
        int(dict(side).get(b"inference-header-content-length", len(text)))
        for side, text in ((given_headers.items(), content), (headers, expected))
    ]
    ours, theirs = json.loads(content[: sizes[0]]), json.loads(expected[: sizes[1]])
    assert ours == theirs
    assert content[sizes[0] :] == expected[sizes[1] :]


def test_what_a_socket_does_not_take_comes_back(desk: Desk) -> None:
    call = desk.read(request(json.dumps(plain()).encode()))
    call.place(0)
    ours, theirs = socket.socketpair()
    fill(ours)
    [(place, rest)] = desk.native.answer([(call, ours.fileno(), 0, 128, [((1, 2), 8), ((1, 1, 2), 8)])])
    assert place == 0
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")
    theirs.close()
    [(_, again)] = desk.native.answer([(call, -1, 0, 128, [((1, 2), 8), ((1, 1, 2), 8)])])
    assert again.partition(b"\r\n\r\n")[2] == rest.partition(b"\r\n\r\n")[2]


def test_an_answer_that_cannot_be_there_is_told_apart_from_the_others(desk: Desk) -> None:
    call, shapes = desk.read(request(json.dumps(plain()).encode())), [((1, 2), 8), ((1, 1, 2), 8)]
    good = (call, desk.ours.fileno(), 0, 128, shapes)
    rooms = [(1 << 20, 128, shapes), ((1 << 20) - 64, 128, shapes), (0, 64, shapes), (0, 128, shapes[:1])]
    rooms.append((0, 128, [((1, 2), 2**64 - 1), ((1, 1, 2), 8)]))
    bad = [(call, desk.ours.fileno(), *room) for room in rooms]
    assert desk.native.answer([good, *bad]) == [(1 + at, None) for at in range(len(bad))]
    assert desk.theirs.recv(1 << 16).count(b"HTTP/1.1 200") == 1


def test_a_shape_of_a_thousand_dimensions_goes_the_long_way(desk: Desk) -> None:
    body = json.dumps(plain()).replace('"shape": [1, 2]', '"shape": [1, 2' + 1000 * ", 1" + "]")
    assert desk.read(request(body.encode())) == "body"


def test_every_half_precision_number_is_written_and_read_as_numpy_does() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    desk = Desk()
    desk.native.serve(50, "halves", "1", [("A", "FP16", [-1])], [("X", "FP16", [-1])], 1)
    finite = every[np.isfinite(every)]
    for part in np.array_split(finite, 16):
        asked = {"inputs": [tensor("A", "FP16", part[None].astype(float))]}
        call = desk.read(request(json.dumps(asked).encode(), "halves"))
        [(shape, data)] = desk.tensors(call)
        assert shape == (1, len(part))
        assert data == part.tobytes()
    for part in np.array_split(every, 16):
        desk.memory[4096 : 4096 + part.nbytes] = part.tobytes()
        sent = desk.sent(call, 4096, aligned(part.nbytes), [((1, len(part)), part.nbytes)])
        told = json.loads(sent.partition(b"\r\n\r\n")[2])["outputs"][0]["data"]
        assert told == [float(x) if np.isfinite(x) else None for x in part]


@given(st.floats(-70000, 70000) | st.floats(-1e-4, 1e-4))
@settings(max_examples=300, deadline=None)
def test_a_number_becomes_the_nearest_half(value: float) -> None:
    desk = Desk()
    desk.native.serve(50, "half", "1", [("A", "FP16", [1])], [("X", "FP16", [1])], 1)
    call = desk.read(request(json.dumps({"inputs": [tensor("A", "FP16", [[value]])]}).encode(), "half"))
    try:
        expected = struct.pack("<e", value)
    except OverflowError:
        assert call == "body"  # the long way says that it is too large
    else:
        assert desk.tensors(call) == [((1, 1), expected)]


def test_a_refusal_of_the_long_way_stays_one() -> None:
    """The comparison above means something: the long way does refuse."""
    with pytest.raises(Refused):
        LongWay(request(BODIES["another datatype"])).asked()
