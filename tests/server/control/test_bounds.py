"""No request keeps the event loop from others for long: its work is bounded, native or done in a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import grpc
import pytest

from astrarium.core.optional import extension
from astrarium.server.contract import Refused
from astrarium.server.grpc.messages import message
from astrarium.server.http import handlers, json_tensors
from astrarium.server.protocol import checking
from astrarium.server.protocol.checking import bytes_elements
from astrarium.serving.live import tensors
from astrarium.serving.live.tensors import (
    Tensor,
    pack_bytes,
    to_array,
    to_bytes,
    unpack_bytes,
)
from tests.support.server.fakes import WAYS, FakeService, Served, served
from tests.support.work import CallCounter, calls_of

needs_native = pytest.mark.skipif(extension("_tensors") is None, reason="needs the native extension")
# Functions that the event loop may call for one request: a large body comes in pieces, and is read elsewhere.
MOST_CALLS = 20_000


@pytest.fixture(scope="module", params=WAYS)
def server(request: pytest.FixtureRequest) -> Iterator[Served]:
    with served(way=request.param) as running:
        yield running


def calls_of_the_loop(server: Served, act: Callable[[], Any]) -> int:
    """Return how many functions, of Python or C, the event loop's thread calls while *act* runs."""
    counting = CallCounter()
    _on_the_loop(server, counting.begin)
    try:
        act()
    finally:
        _on_the_loop(server, counting.end)
    return counting.calls


def _on_the_loop(server: Served, do: Callable[[], None]) -> None:
    done = threading.Event()

    def run() -> None:
        do()
        done.set()

    server.loop.call_soon_threadsafe(run)
    assert done.wait(60)


def post(server: Served, model: str, body: bytes, json_size: int | None = None) -> tuple[int, bytes]:
    headers = {} if json_size is None else {"Inference-Header-Content-Length": str(json_size)}
    response, content = server.ask("POST", f"/v2/models/{model}/infer", body, headers)
    return response.status, content


def asking(
    elements: int, data: bytes, datatype: str = "FP32", name: bytes = b"IN", more: bytes = b""
) -> bytes:
    head = b'{"inputs":[{"name":"%b","shape":[1,%d],"datatype":"%b","data":' % (
        name,
        elements,
        datatype.encode(),
    )
    return head + data + b"}]" + more + b"}"


ONE_INPUT = b'{"name":"IN","shape":[1,1],"datatype":"FP32","data":[1]},'
NUMBERS = 3_000_000
TEXTS = 1_000_000
HOSTILE = {
    "numbers": (asking(NUMBERS, b"[" + b"0," * (NUMBERS - 1) + b"7]"), "echo", 200),
    "one wrong number": (asking(NUMBERS, b"[" + b"0," * (NUMBERS - 1) + b"x]"), "echo", 400),
    "too many numbers": (asking(1, b"[" + b"0," * NUMBERS + b"7]"), "echo", 400),
    "texts": (asking(TEXTS, b"[" + b'"a",' * (TEXTS - 1) + b'"b"]', "BYTES"), "text", 200),
    "inputs": (b'{"inputs":[' + ONE_INPUT * 50_000 + b"1]}", "echo", 413),
    "parameters": (asking(1, b"[1]", more=b',"parameters":{' + b'"a":1,' * 1_000_000 + b"}"), "echo", 413),
    "a deep body": (b'{"inputs":' + b"[" * 5_000_000 + b"]" * 5_000_000 + b"}", "echo", 413),
    "no JSON": (b'{"inputs":' + b"[" * 5_000_000, "echo", 400),
    "a long name": (asking(1, b"[1]", name=b"x" * 5_000_000), "echo", 413),
}  # fmt: skip


@needs_native
@pytest.mark.parametrize("case", HOSTILE)
def test_a_large_body_keeps_nobody_waiting(server: Served, case: str) -> None:
    body, model, status = HOSTILE[case]
    answers: list[tuple[int, bytes]] = []
    assert calls_of_the_loop(server, lambda: answers.append(post(server, model, body))) < MOST_CALLS
    assert answers[0][0] == status, answers[0][1][:300]


@needs_native
def test_large_json_is_read_and_written_natively_and_in_a_thread(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noted(name: str) -> None:
        work = getattr(handlers, name)

        def noting(*given: Any) -> Any:
            threads[name] = threading.get_ident()
            return work(*given)

        monkeypatch.setattr(handlers, name, noting)

    threads: dict[str, int] = {}
    noted("read_call")
    noted("written_answer")
    monkeypatch.setattr(json_tensors, "_decoder", None)  # what Python reads elements with
    monkeypatch.setattr(json_tensors, "DATATYPES", None)  # and writes them
    body, model, status = HOSTILE["numbers"]
    assert post(server, model, body)[0] == status
    loop = Future[int]()
    server.loop.call_soon_threadsafe(lambda: loop.set_result(threading.get_ident()))
    assert loop.result(60) not in threads.values()
    assert len(threads) == 2


@pytest.mark.parametrize(("elements", "status"), [(8_000_000, 413), (1, 400)])
def test_bytes_of_many_elements_keep_nobody_waiting(server: Served, elements: int, status: int) -> None:
    size = 32_000_000
    tensor = {"name": "IN", "shape": [1, elements], "datatype": "BYTES"}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": size}}]}).encode()
    answers: list[tuple[int, bytes]] = []

    def act() -> None:
        answers.append(post(server, "text", head + bytes(size), len(head)))

    assert calls_of_the_loop(server, act) < MOST_CALLS
    assert answers[0][0] == status


@needs_native
@pytest.mark.parametrize(
    ("model", "datatype", "elements", "contents", "wanted"),
    [
        ("text", "BYTES", 8_000_000, {}, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("text", "BYTES", 1, {}, grpc.StatusCode.INVALID_ARGUMENT),
        ("all_int8", "INT8", NUMBERS, {"int_contents": [1] * NUMBERS}, None),
        ("all_int8", "INT8", 1, {"int_contents": [1] * NUMBERS}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_large_messages_keep_nobody_waiting(
    server: Served,
    model: str,
    datatype: str,
    elements: int,
    contents: dict[str, list[int]],
    wanted: grpc.StatusCode | None,
) -> None:
    request = message("ModelInferRequest")(model_name=model)
    request.inputs.add(name="IN", datatype=datatype, shape=[1, elements], contents=contents or None)
    if not contents:
        request.raw_input_contents.append(bytes(32_000_000))
    data = request.SerializeToString()
    ended = [None]

    def act() -> None:
        try:
            with grpc.insecure_channel(server.grpc_url) as channel:
                channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(data)
        except grpc.RpcError as error:
            ended[0] = error.code()

    assert calls_of_the_loop(server, act) < MOST_CALLS
    assert ended == [wanted]


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize(
    ("data", "most", "counts"),
    [
        (b"", 3, (0, 0)),
        (pack_bytes([b"a", b"", b"bc"]), 3, (3, 15)),
        (pack_bytes([b"a"]) + b"\1\0", 3, (1, 5)),
        (b"\5\0\0\0a", 3, (1, 9)),
        (bytes(40_000), 3, (4, 16)),  # no further: the shape says three
    ],
)
def test_elements_are_counted_no_further_than_the_shape(
    data: bytes, most: int, counts: tuple[int, int], is_native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_native:
        monkeypatch.setattr(checking, "extension", lambda name: None)
    assert bytes_elements(data, most) == counts


@needs_native
@pytest.mark.parametrize("elements", [[], [b""], [b"a", b"", b"bcd"], ["é", b"x"], [b"a", bytearray(b"b")]])
def test_elements_are_packed_and_unpacked_alike_by_native_code(
    elements: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = pack_bytes(elements)
    unpacked = unpack_bytes(packed)
    assert unpacked == [one.encode() if isinstance(one, str) else bytes(one) for one in elements]
    monkeypatch.setattr(tensors, "extension", lambda name: None)
    assert (pack_bytes(elements), unpack_bytes(packed)) == (packed, unpacked)


@needs_native
@pytest.mark.parametrize("data", [b"\1", b"\5\0\0\0a", pack_bytes([b"a"]) + b"\0\0"])
def test_lengths_that_do_not_add_up_are_not_unpacked(data: bytes) -> None:
    with pytest.raises(ValueError, match="length"):
        unpack_bytes(data)


@needs_native
def test_a_worker_makes_objects_of_texts_natively(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "_unpacked", None)
    monkeypatch.setattr(tensors, "_as_bytes", None)
    tensor = Tensor("IN", "BYTES", (2, 2), pack_bytes([b"a", b"b", b"", b"c"]))
    array = to_array(tensor)
    assert (array.tolist(), to_bytes(array)) == ([[b"a", b"b"], [b"", b"c"]], tensor.data)


def test_the_number_of_inputs_is_looked_at_before_any_of_them() -> None:
    class Untouchable:
        name = "IN"

        @property
        def shape(self) -> tuple[int, ...]:
            raise AssertionError("an input was looked at")

    inputs: Any = [Untouchable()] * 50_000
    with pytest.raises(Refused, match="exactly once"):
        checking.placed_inputs(FakeService().models["echo"], inputs, 1 << 20)


def test_a_long_name_is_compared_with_nothing() -> None:
    from astrarium.core.errors import did_you_mean

    assert "echo" in did_you_mean(["echo"], "ecko")
    assert calls_of(lambda: did_you_mean(["echo"], "x" * 1_000_000)) < 10
    assert calls_of(lambda: did_you_mean(["echo"], "ecko")) > 10


@pytest.mark.parametrize("is_large", [True, False])
@pytest.mark.parametrize(
    ("body", "key"),
    [
        ('{"inputs":[],"inputs":[%s]}', "inputs"),
        ('{"inputs":[%s],"parameters":{"timeout":1,"timeout":2}}', "timeout"),
        ('{"inputs":[{"name":"x",%s]}', "name"),
        ('{"inputs":[{"d\\u0061ta":[3],%s]}', "data"),
        ('{"inputs":[%s],"id":"a","id":"b"}', "id"),
    ],
)
def test_a_repeated_key_is_refused_by_name(server: Served, body: str, key: str, is_large: bool) -> None:
    data = ",".join(["1.5"] * (200_000 if is_large else 2))
    tensor = f'{{"name":"IN","shape":[1,{data.count(",") + 1}],"datatype":"FP32","data":[{data}]}}'
    whole = body % (tensor[1:] if "{%s" in body or ",%s" in body else tensor)
    status, content = post(server, "echo", whole.encode())
    assert status == 400
    assert "once" in json.loads(content)["error"]
    assert repr(key) in json.loads(content)["error"]


def test_elements_that_look_like_keys_are_none(server: Served) -> None:
    body = asking(2, b'["{\\"a\\":1,\\"a\\":1}", "b"]', "BYTES")
    assert post(server, "text", body)[0] == 200
