"""Tensors as JSON and as bytes: whatever goes in comes out, or is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from astrarium.server.contract import Kind, Refused
from astrarium.server.http.inference import read_call, written_answer
from astrarium.server.http.json_tensors import from_json, to_json
from astrarium.server.protocol.checking import CheckedTensor
from astrarium.serving.live.tensors import (
    BF16,
    BYTES,
    DATATYPES,
    Array,
    Tensor,
    TensorSpec,
    pack_bytes,
    to_array,
    to_bfloat16,
    to_bytes,
)
from tests.support.server.fakes import FakeService, echo_card

NUMBERS = sorted(DATATYPES.keys() - {BF16, BYTES})
LIMIT = 1_000_000


def placed(datatype: str, shape: tuple[int, ...]) -> CheckedTensor:
    return CheckedTensor(TensorSpec("IN", datatype, shape[1:]), shape, math.prod(shape), 0)


def decoded(values: Any, datatype: str, shape: tuple[int, ...]) -> bytes:
    return from_json(msgspec.Raw(json.dumps(values).encode()), placed(datatype, shape), "m")


@st.composite
def tensors(draw: st.DrawFn) -> Array:
    dtype = DATATYPES[draw(st.sampled_from(NUMBERS))]
    shape = draw(
        arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=3).filter(lambda s: s[0] > 0)
    )
    elements = arrays.from_dtype(dtype, allow_nan=False, allow_infinity=False)
    return draw(arrays.arrays(dtype, shape, elements=elements))


def datatype_of(array: Array) -> str:
    return next(name for name, dtype in DATATYPES.items() if dtype == array.dtype)


@given(tensors(), st.booleans())
def test_numbers_survive_json_flat_or_nested(array: Array, nested: bool) -> None:
    values = array.tolist() if nested else array.ravel().tolist()
    data = decoded(values, datatype_of(array), array.shape)
    assert data == bytes(to_bytes(array))
    back = to_json(Tensor("OUT", datatype_of(array), array.shape, data))
    assert back == array.ravel().tolist()


def from_bfloat16(array: Array) -> Array:
    """Return the numbers that BF16 elements stand for."""
    return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


@given(st.floats(-(2.0**127), 2.0**127, width=32))
def test_bf16_is_the_nearest_number(value: float) -> None:
    array = np.array([value], np.float32)
    [near] = from_bfloat16(to_bfloat16(array))
    bits = int(array.view(np.uint32)[0])
    around = np.array([bits >> 16 << 16, (bits >> 16) + 1 << 16], np.uint32).view(np.float32)
    assert near in around
    assert abs(float(near) - value) == min(abs(float(other) - value) for other in around)


def test_bf16_keeps_what_is_no_number() -> None:
    values = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    there = to_bfloat16(values)
    assert np.array_equal(from_bfloat16(there), values, equal_nan=True)
    back = to_array(Tensor("X", BF16, (1, 3), bytes(to_bytes(there))))
    assert back.dtype == DATATYPES[BF16]
    assert back.tolist() == there.tolist()


@given(st.lists(st.text(), min_size=1, max_size=6))
def test_text_survives_json(elements: list[str]) -> None:
    data = decoded([elements], BYTES, (1, len(elements)))
    assert to_array(Tensor("X", BYTES, (len(elements),), data)).tolist() == [
        text.encode() for text in elements
    ]
    assert to_json(Tensor("X", BYTES, (1, len(elements)), data)) == elements


@given(st.lists(st.binary(), min_size=1, max_size=6))
def test_bytes_that_are_no_text_are_refused_in_json(elements: list[bytes]) -> None:
    tensor = Tensor("X", BYTES, (1, len(elements)), pack_bytes(elements))
    try:
        wanted = [element.decode() for element in elements]
    except UnicodeDecodeError:
        with pytest.raises(Refused, match=r"output X, element .*binary_data: true"):
            to_json(tensor)
    else:
        assert to_json(tensor) == wanted


def test_json_writes_null_for_what_it_cannot_write() -> None:
    data = np.array([1.0, np.nan, np.inf], np.float32).tobytes()
    assert msgspec.json.encode(to_json(Tensor("X", "FP32", (3,), data))) == b"[1.0,null,null]"


WRONG_LISTS = [
    ("FP32", (1, 2), [1.0], "2 elements for shape [1, 2]"),
    ("FP32", (1, 2), [[1.0, 2.0], [3.0]], "lists of 1 along dimension 0"),
    ("FP32", (2, 2), [[1.0, 2.0], [3.0]], "lists of 2 along dimension 1"),
    ("FP32", (2, 2), [[1.0, 2.0], 3.0], "inputs[0].data[1]"),
    ("FP32", (2, 1), [[[1.0]], [[2.0]]], "inputs[0].data[0][0]"),
    ("FP32", (1, 2), [1.0, "2"], "inputs[0].data[1]"),
    ("FP32", (1, 2), [1.0, None], "inputs[0].data[1]"),
    ("FP32", (1, 1), [True], "inputs[0].data[0]"),
    ("FP32", (1, 1), 1.0, "a flat list of FP32"),
    ("FP32", (1, 2), [1.0, 1e39], "element 1: expected numbers that FP32 can hold (got 1e+39)"),
    ("FP16", (1, 1), [65520.0], "numbers that FP16 can hold"),
    ("INT8", (1, 2), [-128, 128], "element 1: expected numbers that INT8 can hold (got 128)"),
    ("UINT8", (1, 1), [-1], "numbers that UINT8 can hold"),
    ("UINT64", (1, 1), [2**64], "numbers that UINT64 can hold"),
    ("INT64", (1, 1), [2**63], "numbers that INT64 can hold"),
    ("INT64", (1, 1), [1.5], "inputs[0].data[0]"),
    ("BOOL", (1, 1), [1], "inputs[0].data[0]"),
    ("BYTES", (1, 1), [1], "inputs[0].data[0]"),
]


@pytest.mark.parametrize(("datatype", "shape", "values", "what"), WRONG_LISTS)
def test_wrong_lists_are_refused(datatype: str, shape: tuple[int, ...], values: Any, what: str) -> None:
    with pytest.raises(Refused) as caught:
        decoded(values, datatype, shape)
    assert caught.value.kind is Kind.BAD_REQUEST
    assert what in caught.value.reason


def test_a_number_too_long_for_a_float_is_refused() -> None:
    with pytest.raises(Refused, match=r"inputs\[0\].data\[0\].*out of range"):
        from_json(msgspec.Raw(b"[1e999]"), placed("FP64", (1, 1)), "m")


ECHO = echo_card("echo", ("IN", "FP32", (-1,)))


def read(body: bytes, json_size: int | None = None) -> Any:
    headers = {} if json_size is None else {b"inference-header-content-length": b"%d" % json_size}
    return read_call(ECHO, body, headers, 5, LIMIT)


def request(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]} | changes
    return {"inputs": [{key: value for key, value in tensor.items() if value is not None}]}


def binary(size: Any, data: bytes, **changes: Any) -> tuple[bytes, int]:
    header = json.dumps(request(data=None, parameters={"binary_data_size": size}, **changes)).encode()
    return header + data, len(header)


@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 8), st.integers(0, 5))))
def test_binary_tensors_pass_through_as_they_are(array: Array) -> None:
    body, size = binary(array.nbytes, array.tobytes(), shape=list(array.shape))
    call = read(body, size).call
    assert (bytes(call.inputs[0].data), call.rows, call.received) == (array.tobytes(), len(array), 5)


@given(st.binary(max_size=300), st.none() | st.integers(0, 400))
def test_no_body_does_worse_than_a_refusal(body: bytes, json_size: int | None) -> None:
    with pytest.raises(Refused) as caught:
        read(body, json_size)
    assert caught.value.kind is Kind.BAD_REQUEST


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
FIELDS = ["name", "shape", "datatype", "data", "parameters", "id", "inputs", "outputs"]


@given(st.sampled_from(FIELDS), json_values)
def test_any_value_in_any_field_is_read_or_refused(name: str, value: Any) -> None:
    body = request()
    kinds = set()
    (body if name in ("id", "inputs", "outputs") else body["inputs"][0])[name] = value
    try:
        call = read(json.dumps(body).encode()).call
        assert len(call.inputs[0].data) == 4 * math.prod(call.inputs[0].shape)
    except Refused as refused:
        kinds.add(refused.kind)
    assert kinds <= {Kind.BAD_REQUEST, Kind.TOO_LARGE}


WRONG_BODIES = [
    (b"", None, "body: expected JSON: Input data was truncated"),
    (b"[]", None, "body: expected `object`, got `array`"),
    (b'{"inputs": 7}', None, "body.inputs: expected `array`, got `int`"),
    (b'{"inputs": [{}]}', None, "body.inputs[0]: expected the required field `name`"),
    (json.dumps(request(data=[1.0, float("nan")])).encode(), None, "no NaN or Infinity"),
    (json.dumps(request(data=[-math.inf, 1.0])).encode(), None, "no NaN or Infinity"),
    (b'{"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, "body"),
    (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, "nested this deep"),
    (json.dumps(request(parameters={"binary_data_size": 8})).encode(), None, "either data or"),
    (json.dumps(request(data=None)).encode(), None, "either data or"),
    (*binary(8, bytes(7)), "expected 8 bytes for FP32 [1, 2] (got '7 bytes')"),
    (*binary(8, bytes(9)), "body: expected 8, as binary_data_size says"),
    (*binary(7, bytes(7)), "expected 8 bytes for FP32 [1, 2]"),
    (*binary(-8, bytes(8)), "binary_data_size: expected a whole number of bytes (got -8)"),
    (*binary(True, bytes(1)), "binary_data_size: expected a whole number of bytes (got True)"),
    (*binary(2**80, bytes(8)), "expected"),
    (b"{}", 3, "Inference-Header-Content-Length: expected the length of the JSON"),
]


@pytest.mark.parametrize(("body", "json_size", "what"), WRONG_BODIES)
def test_wrong_bodies_are_refused(body: bytes, json_size: int | None, what: str) -> None:
    with pytest.raises(Refused) as caught:
        read(body, json_size)
    assert what in caught.value.reason


@pytest.mark.parametrize(
    ("parameters", "outputs", "wanted"),
    [
        ({}, [], {"OUT_A": False, "OUT_B": False}),
        ({"binary_data_output": True}, [], {"OUT_A": True, "OUT_B": True}),
        ({}, [{"name": "OUT_B", "parameters": {"binary_data": True}}], {"OUT_B": True}),
        (
            {"binary_data_output": True},
            [{"name": "OUT_B", "parameters": {"binary_data": False}}, {"name": "OUT_A"}],
            {"OUT_B": False, "OUT_A": True},
        ),
    ],
)
def test_outputs_come_in_the_form_and_order_asked_for(
    parameters: dict[str, Any], outputs: list[dict[str, Any]], wanted: dict[str, bool]
) -> None:
    service = FakeService()
    card = service.card("pair")
    inputs = [{"name": name, "shape": [1, 3], "datatype": "INT32", "data": [1, 2, 3]} for name in "BA"]
    body = json.dumps({"id": "x", "inputs": inputs, "parameters": parameters, "outputs": outputs})
    http_call = read_call(card, body.encode(), {}, 0, LIMIT)
    assert http_call.outputs == wanted
    headers, answer = written_answer(card, http_call, service._echoed(http_call.call))
    size = dict(headers).get(b"inference-header-content-length", b"%d" % len(answer))
    content = json.loads(answer[: int(size)])
    assert content["id"] == "x"
    assert [output["name"] for output in content["outputs"]] == list(wanted)
    assert ["data" not in output for output in content["outputs"]] == list(wanted.values())
    assert len(answer) - int(size) == 12 * sum(wanted.values())
