"""Network threads read as the long way does, and take nothing that the long way refuses."""

from __future__ import annotations

import gzip
import json
import zlib
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.server.contract import Refused
from astrarium.serving.live.layout import ALIGNMENT
from astrarium.serving.live.tensors import to_bytes
from tests.support.server.plain_calls import (
    BODY,
    HEAD,
    KINDS,
    LongWay,
    NetworkThread,
    plain,
    request,
    same,
    taken,
    tensor,
    the_thread,
    values,
)

_tensors: Any = import_module("astrarium._tensors")
_front: Any = import_module("astrarium._front")
_testing: Any = import_module("astrarium._testing")


@pytest.fixture
def thread() -> NetworkThread:
    return the_thread()


def test_the_alignment_is_the_one_of_the_arena() -> None:
    assert _tensors.ALIGNMENT == ALIGNMENT


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
        infer_input: dict[str, Any] = {"name": name, "shape": list(shape), "datatype": kind}
        if kind == "BF16" or draw(st.booleans()):
            content = bytes(to_bytes(array))
            infer_input["parameters"] = {"binary_data_size": len(content)} | draw(extras)
            binary += content
        else:
            infer_input["data"] = (array if draw(st.booleans()) else array.ravel()).tolist()
        inputs.append(dict(draw(st.permutations(list((infer_input | draw(extras)).items())))))
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
    same(the_thread(), taken(the_thread().read(data)), data)


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
    call = the_thread().read(bytes(changed))
    if not isinstance(call, str):
        same(the_thread(), call, bytes(changed))


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
def test_an_unusual_body_goes_the_long_way(thread: NetworkThread, body: bytes) -> None:
    assert thread.read(request(body)) == "body"


def test_a_plain_request_does_not_go_the_long_way(thread: NetworkThread) -> None:
    thread.drop(taken(thread.read(request(json.dumps(plain()).encode()))))
    assert thread.read(request(json.dumps(plain()).encode())[:-7]) == "part"


@pytest.mark.parametrize(("line", "why"), LINES.items())
def test_an_unusual_head_goes_the_long_way(thread: NetworkThread, line: str, why: str) -> None:
    assert thread.read(request(json.dumps(plain()).encode(), "fp32", line)) == why


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
def test_another_first_line_goes_the_long_way(thread: NetworkThread, first: str, why: str) -> None:
    data = request(json.dumps(plain()).encode())
    assert thread.read(data.replace(b"POST /v2/models/fp32/infer HTTP/1.1", first.encode())) == why


def test_limits_hold(thread: NetworkThread) -> None:
    body = json.dumps(plain()).encode()
    assert thread.read(request(body, "fp32", "X: " + HEAD * "x")) == "head_in_pieces"
    assert thread.read(request(body + b" " * BODY)) == "too_large"
    longest = request(body).replace(b"Content-Length: ", b"Content-Length: 99999999999999999999")
    assert thread.read(longest) == "content-length"


def test_a_withheld_model_goes_the_long_way_and_says_why(thread: NetworkThread) -> None:
    thread.network.withhold("other", "preprocess")
    assert thread.read(request(json.dumps(plain()).encode(), "other")) == "preprocess"


def test_bf16_is_not_for_json(thread: NetworkThread) -> None:
    with pytest.raises(
        Refused, match=r"inputs\[0\].data: expected parameters.binary_data_size: BF16 has no form"
    ):
        LongWay(request(json.dumps(plain("BF16")).encode(), "bf16")).asked()
    assert thread.read(request(json.dumps(plain("BF16")).encode(), "bf16")) == "body"
    binary = {"name": "A", "datatype": "BF16", "shape": [1, 2], "parameters": {"binary_data_size": 4}}
    text = json.dumps({"inputs": [binary, tensor("B", "FP32", [[[1.5, 2.5]]])]}).encode()
    data = request(text + b"1234", "bf16", f"Inference-Header-Content-Length: {len(text)}")
    assert thread.read(data) == "body"
    with pytest.raises(Refused, match="output X: expected the parameter binary_data: true: BF16 has no form"):
        LongWay(data).asked()


def test_a_refusal_of_the_long_way_stays_one() -> None:
    """The comparison above means something: the long way does refuse."""
    with pytest.raises(Refused):
        LongWay(request(BODIES["another datatype"])).asked()
