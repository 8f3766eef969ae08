"""Values that a model's input does not take are refused on every way in, alone, and with the same words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from astrarium.core.optional import extension
from astrarium.serving.live import limits
from astrarium.serving.live.ranges import RANGES, is_real
from astrarium.serving.live.tensors import BF16, DATATYPES, Array, TensorSpec, to_bfloat16, to_bytes
from tests.support.server.fakes import WAYS, Served, served
from tests.support.server.native_network import OPEN, binary, running

REAL = [kind for kind in RANGES if is_real(kind)]
WHOLE = [kind for kind in RANGES if not is_real(kind)]
IN_JSON = [kind for kind in RANGES if kind != BF16]


@pytest.fixture(scope="module", params=WAYS)
def server(request: pytest.FixtureRequest) -> Iterator[Served]:
    with served(way=request.param) as running:
        yield running


# The four forms of a tensor: each sends an array, and returns the error's text ("" where there is none).

Sending = Callable[[Served, str, str, Array], tuple[str, str]]


def told(kind: str, array: Array) -> Array:
    """The array in the layout of its datatype."""
    return to_bfloat16(array) if kind == BF16 else array.astype(DATATYPES[kind])


def by_http(server: Served, model: str, kind: str, array: Array, in_binary: bool) -> tuple[str, str]:
    with triton_http.InferenceServerClient(server.http_url) as client:
        tensor = triton_http.InferInput("IN", list(array.shape), kind)
        if kind == BF16:
            tensor._raw_data = bytes(to_bytes(told(kind, array)))
            tensor._data = None
            tensor._parameters["binary_data_size"] = len(tensor._raw_data)
        else:
            tensor.set_data_from_numpy(told(kind, array), binary_data=in_binary)
        try:
            outputs = [triton_http.InferRequestedOutput("OUT_IN", binary_data=True)]
            client.infer(model, [tensor], outputs=outputs)
        except InferenceServerException as error:
            return error.status() or "", error.message() or ""
    return "", ""


def in_json(server: Served, model: str, kind: str, array: Array) -> tuple[str, str]:
    return by_http(server, model, kind, array, in_binary=False)


def in_binary(server: Served, model: str, kind: str, array: Array) -> tuple[str, str]:
    return by_http(server, model, kind, array, in_binary=True)


def by_grpc(server: Served, request: Any) -> tuple[str, str]:
    with grpc.insecure_channel(server.grpc_url) as channel:
        try:
            service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
        except grpc.RpcError as error:
            status: Any = error
            return status.code().name, status.details()
    return "", ""


def in_raw_contents(server: Served, model: str, kind: str, array: Array) -> tuple[str, str]:
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="IN", datatype=kind, shape=array.shape)
    request.raw_input_contents.append(bytes(to_bytes(told(kind, array))))
    return by_grpc(server, request)


CONTENTS = {"INT64": "int64_contents", "UINT64": "uint64_contents", "FP32": "fp32_contents"} | {
    "FP64": "fp64_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
}


def in_typed_contents(server: Served, model: str, kind: str, array: Array) -> tuple[str, str]:
    request = service_pb2.ModelInferRequest(model_name=model)
    one = request.inputs.add(name="IN", datatype=kind, shape=array.shape)
    getattr(one.contents, CONTENTS[kind]).extend(told(kind, array).ravel().tolist())
    return by_grpc(server, request)


FORMS: dict[Sending, list[str]] = {
    in_json: IN_JSON,
    in_binary: list(RANGES),
    in_raw_contents: list(RANGES),
    in_typed_contents: list(CONTENTS),
}
CASES = [
    pytest.param(form, kind, id=f"{form.__name__}-{kind}") for form, kinds in FORMS.items() for kind in kinds
]
BAD = ("400", "INVALID_ARGUMENT")


@pytest.mark.parametrize(("send", "kind"), CASES)
def test_a_value_beyond_the_range_is_refused_with_its_place(server: Served, send: Sending, kind: str) -> None:
    array = np.arange(18, dtype=np.float64).reshape(3, 6) % 6  # both ends are within
    calls = len(server.service.calls)
    long = len(server.service.long_way)
    assert send(server, f"few_{kind.lower()}", kind, array) == ("", "")
    array[2, 4], array[2, 5] = 6, 7
    status, text = send(server, f"few_{kind.lower()}", kind, array)
    shown = "6.0" if is_real(kind) else "6"
    assert status in BAD
    assert text == f"model few_{kind.lower()}: input IN[2, 4]: expected values from 0 to 5 (got {shown})"
    assert len(server.service.calls) == calls + 1, "the model never sees it"
    if server.front is not None and kind != BF16:
        assert len(server.service.long_way) == long, "it is refused where it is read"


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("send", [in_binary, in_raw_contents])
@pytest.mark.parametrize("model", ["few", "finite"])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_within_no_range(
    server: Served, kind: str, send: Sending, model: str, value: float
) -> None:
    name = f"{model}_{kind.lower()}"
    array = np.array([[0.0, -0.0], [1.0, value]])
    status, text = send(server, name, kind, array)
    expected = "values from 0 to 5" if model == "few" else "finite values"
    assert status in BAD
    assert text == f"model {name}: input IN[1, 1]: expected {expected} (got {value!r})"
    assert send(server, name, kind, array[:1]) == ("", ""), "both zeros are within"


@pytest.mark.parametrize("kind", WHOLE)
def test_the_extremes_of_whole_types_are_refused(server: Served, kind: str) -> None:
    for extreme in {int(value) for value in RANGES[kind]} - {0}:
        array = np.array([[extreme]], DATATYPES[kind])
        for send in (in_json, in_binary, in_raw_contents, in_typed_contents):
            status, text = send(server, f"few_{kind.lower()}", kind, array)
            assert status in BAD
            assert text.endswith(f"input IN[0, 0]: expected values from 0 to 5 (got {extreme})")


def test_an_empty_tensor_has_no_value_that_could_be_wrong(server: Served) -> None:
    for send in (in_json, in_binary, in_raw_contents):
        assert send(server, "few_int64", "INT64", np.zeros((2, 0))) == ("", "")


def test_a_request_of_a_stream_is_refused_alone(server: Served) -> None:
    answers: list[Any] = []
    with triton.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: answers.append(error or result))
        for value in (5, 6, 0):
            tensor = triton.InferInput("IN", [1, 1], "INT64")
            client.async_stream_infer("few_int64", [tensor.set_data_from_numpy(np.array([[value]]))])
        client.stop_stream()
    assert [isinstance(one, InferenceServerException) for one in answers] == [False, True, False]
    assert "input IN[0, 0]: expected values from 0 to 5 (got 6)" in str(answers[1])


def test_metadata_and_configuration_tell_the_limits(server: Served) -> None:
    with triton_http.InferenceServerClient(server.http_url) as client:
        (few,) = client.get_model_metadata("few_int64")["inputs"]
        assert few["parameters"] == {"values": [0, 5]}
        assert client.get_model_metadata("finite_fp32")["inputs"][0]["parameters"] == {"finite": True}
        assert "parameters" not in client.get_model_metadata("echo")["inputs"][0]
        config = client.get_model_config("few_int64")
        assert config["parameters"] == {"values:IN": {"string_value": "[0,5]"}}
    with triton.InferenceServerClient(server.grpc_url) as client:
        assert client.get_model_metadata("few_int64").inputs[0].name == "IN"
        parameters = client.get_model_config("finite_fp32").config.parameters
        assert {name: one.string_value for name, one in parameters.items()} == {"finite:IN": "true"}


# Native code and Python agree.

NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def limited_tensors(draw: st.DrawFn) -> tuple[TensorSpec, bytes]:
    kind = draw(st.sampled_from(list(RANGES)))
    low, high = RANGES[kind]
    number: Any = st.floats(low, high) if is_real(kind) else st.integers(int(low), int(high))
    bounds = draw(st.none() | st.tuples(number, number).map(sorted).map(tuple)) if is_real(kind) else None
    values = bounds or (None if is_real(kind) else tuple(sorted((draw(number), draw(number)))))
    size = DATATYPES[kind].itemsize
    data = draw(st.binary(max_size=64 * size)) * draw(st.sampled_from([1, 1, 100]))
    whole = data[: len(data) // size * size]
    close = limits.bounds(TensorSpec("A", kind, (-1,), values, values is None))
    edges = b"".join(bytes(to_bytes(told(kind, np.array([edge])))) for edge in close)
    return TensorSpec("A", kind, (-1,), values, values is None), draw(st.sampled_from([whole, edges + whole]))


@pytest.mark.skipif(extension("_tensors") is None, reason="needs the native extension")
@given(limited_tensors())
@settings(max_examples=400)
def test_native_code_finds_the_same_element(case: tuple[TensorSpec, bytes]) -> None:
    spec, data = case
    assert limits.first_outside(spec, data) == limits.reference_first_outside(spec, data)


@pytest.mark.skipif(extension("_front") is None, reason="needs the native extension")
@given(
    st.lists(st.tuples(st.sampled_from(REAL), st.binary(min_size=8, max_size=8)), min_size=20, max_size=20)
)
@settings(max_examples=5, deadline=None)
def test_native_code_shows_numbers_as_python_does(cases: list[tuple[str, bytes]]) -> None:
    def sent(kind: str, bits: bytes) -> bytes:
        size = DATATYPES[kind].itemsize
        infer_input = {
            "name": "IN",
            "shape": [1, 1],
            "datatype": kind,
            "parameters": {"binary_data_size": size},
        }
        text = json.dumps({"inputs": [infer_input]}).encode()
        lines = f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(text) + size}"
        head = f"POST /v2/models/{kind}/infer HTTP/1.1\r\nHost: x\r\n{lines}\r\n\r\n"
        return head.encode() + text + bits[:size]

    async def run() -> None:
        none = {kind: TensorSpec("IN", kind, (1,), (-1e-40, -1e-40)) for kind in REAL}  # nobody sends that
        cards = [replace(OPEN, name=kind, inputs=(spec,)) for kind, spec in none.items()]
        async with running(*cards) as server:
            connection = await server.connect()
            for kind, bits in cases:
                data = bits[: DATATYPES[kind].itemsize]
                status, _, answer = await connection.ask(sent(kind, bits))
                violation = limits.violation(none[kind], (1, 1), data)
                assert status == (200 if violation is None else 400)
                assert violation is None or answer == {"error": f"model {kind}: {violation}"}

    asyncio.run(run())


# Large requests, whose tensors are received where workers find them.

FINITE = replace(OPEN, inputs=(TensorSpec("IN", "FP32", (-1,), finite=True),))


@pytest.mark.skipif(extension("_front") is None, reason="needs the native extension")
@pytest.mark.parametrize("piece", [70_001, 1 << 21])
def test_a_large_request_is_refused_once_all_of_it_is_here(piece: int) -> None:
    async def run() -> None:
        array = np.zeros((2, 1 << 18), np.float32)
        async with running(FINITE) as server:
            connection = await server.connect()
            for bad in (False, True, False, True):
                array[1, 77_777] = np.nan if bad else 0.5
                sent = binary(array)
                for at in range(0, len(sent), piece):
                    connection.writer.write(sent[at : at + piece])
                    await asyncio.sleep(0.001 if at < 3 * piece else 0)
                status, _, answer = await connection.answer_bytes()
                assert status == (400 if bad else 200)
                text = b"model echo: input IN[1, 77777]: expected finite values (got nan)"
                assert (text in answer) is bad
            assert server.network.native.long_way() == {}
            assert server.network.native.held() == server.front.exchange.arriving() == 0
            accepted, _, declined, _, refused, *_ = server.tally()
            assert (accepted, declined, refused["bad_request"]) == (2, 0, 2)

    asyncio.run(run())
