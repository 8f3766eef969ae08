"""The protocol over HTTP, by the client that others use and by hand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tritonclient.http as http
import tritonclient.http.aio as http_aio
import uvloop
from tritonclient.utils import InferenceServerException

from astrarium.core.errors import InputError
from astrarium.server.http.server import serve_http
from astrarium.server.settings import Address
from astrarium.serving.live.tensors import BF16, BYTES, DATATYPES, Array
from tests.support.server.fakes import REFUSALS, WAYS, FakeService, Served, served, serving, until_closed

ROWS = np.array([[1.5, -2.0, 3.25], [4.0, 5.5, 6.0]], np.float32)


@pytest.fixture(scope="module", params=WAYS)
def server(request: pytest.FixtureRequest) -> Iterator[Served]:
    with served(way=request.param) as running:
        yield running
        assert bool(running.taken) is (request.param != "long")


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[Any]:
    with http.InferenceServerClient(server.http_url) as connected:
        yield connected


def tensor(array: Array, datatype: str = "FP32", name: str = "IN", binary: bool = True) -> Any:
    infer_input = http.InferInput(name, list(array.shape), datatype)
    infer_input.set_data_from_numpy(array, binary_data=binary)
    return infer_input


BODY = json.dumps({"inputs": [{"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]})


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("echo")
    assert client.is_model_ready("echo", "1")
    assert not client.is_model_ready("absent")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata()["name"] == "astrarium"
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    metadata = client.get_model_metadata("echo")
    assert metadata["inputs"] == [{"name": "IN", "datatype": "FP32", "shape": [-1, -1]}]
    assert (metadata["versions"], metadata["platform"]) == (["1"], "fake")


def test_a_server_that_is_not_ready_says_so(server: Served, client: Any) -> None:
    server.service.ready = False
    try:
        assert not client.is_server_ready()
        assert client.is_server_live()
    finally:
        server.service.ready = True


def test_a_model_that_refuses_everybody_is_not_ready_and_says_why(server: Served, client: Any) -> None:
    card = server.service.models["echo"]
    server.service.models["echo"] = replace(card, refusing="it has turned away all of the last 33 calls")
    try:
        assert not client.is_model_ready("echo")
        answer, content = server.ask("GET", "/v2/models/echo/ready")
        assert answer.status == 503
        assert b"it is UNAVAILABLE: it has turned away all of the last 33 calls" in content
        entry_of_echo = {entry["name"]: entry for entry in client.get_model_repository_index()}["echo"]
        assert (entry_of_echo["state"], entry_of_echo["reason"]) == (
            "UNAVAILABLE",
            "it has turned away all of the last 33 calls",
        )
        assert client.infer("echo", [tensor(np.zeros((1, 2), np.float32), "FP32")])  # calls are still taken
    finally:
        server.service.models["echo"] = card


def test_configuration_has_the_items_shape_and_the_deadline(client: Any) -> None:
    config = client.get_model_config("text")
    assert config["max_batch_size"] == 8
    assert config["input"] == [{"name": "IN", "data_type": "TYPE_STRING", "dims": [-1]}]
    assert config["dynamic_batching"]["default_queue_policy"]["default_timeout_microseconds"] == 100_000


def test_statistics_follow_what_was_asked(client: Any) -> None:
    def inferences() -> int:
        (one,) = client.get_inference_statistics("scalar")["model_stats"]
        return int(one["inference_count"])

    before = inferences()
    client.infer("scalar", [tensor(np.zeros(3), "FP64")])
    assert inferences() == before + 3
    names = [one["name"] for one in client.get_inference_statistics()["model_stats"]]
    assert {"scalar", "echo"} <= set(names)


def test_the_repository_lists_loads_and_unloads(server: Served, client: Any) -> None:
    states = {entry["name"]: entry["state"] for entry in client.get_model_repository_index()}
    assert (states["echo"], states["absent"]) == ("READY", "UNAVAILABLE")
    client.unload_model("ints")
    assert not client.is_model_ready("ints")
    client.load_model("ints")
    assert client.is_model_ready("ints")
    _, ready = server.ask("POST", "/v2/repository/index", '{"ready": true}')
    assert "absent" not in {entry["name"] for entry in json.loads(ready)}
    with pytest.raises(InferenceServerException, match="its file is no model"):
        client.load_model("broken")
    with pytest.raises(InferenceServerException, match="no config or files"):
        client.load_model("echo", config="{}")


NUMBERS = sorted(DATATYPES.keys() - {BF16, BYTES})


@pytest.mark.parametrize(
    ("datatype", "binary_in"),
    [*((name, True) for name in NUMBERS), *((name, False) for name in NUMBERS if name != "FP16")],
)  # the client writes no FP16 in JSON
@pytest.mark.parametrize("binary_out", [True, False])
def test_every_datatype_both_ways(client: Any, datatype: str, binary_in: bool, binary_out: bool) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(DATATYPES[datatype])
    wanted = [http.InferRequestedOutput("OUT_IN", binary_data=binary_out)]
    inputs = [tensor(array, datatype, binary=binary_in)]
    answer = client.infer(f"all_{datatype.lower()}", inputs, outputs=wanted, request_id="r-7")
    assert np.array_equal(answer.as_numpy("OUT_IN"), array)
    assert answer.get_response()["id"] == "r-7"
    assert ("data" in answer.get_output("OUT_IN")) is not binary_out


def test_bf16_is_binary(client: Any) -> None:
    array = np.array([[0.5, -3.0, 1e30]], pytest.importorskip("ml_dtypes").bfloat16)
    inputs = [tensor(array, BF16)]
    answer = client.infer("all_bf16", inputs, outputs=[http.InferRequestedOutput("OUT_IN", binary_data=True)])
    assert np.array_equal(answer.as_numpy("OUT_IN"), array)
    with pytest.raises(InferenceServerException, match="binary_data: true: BF16 has no form in JSON"):
        client.infer("all_bf16", inputs, outputs=[http.InferRequestedOutput("OUT_IN", binary_data=False)])


@pytest.mark.parametrize("binary", [True, False])
def test_text(client: Any, binary: bool) -> None:
    array = np.array([["", "naïve"], ["x" * 3000, "\n"]], object)
    wanted = [http.InferRequestedOutput("OUT_IN", binary_data=binary)]
    answer = client.infer("text", [tensor(array, BYTES, binary=binary)], outputs=wanted)
    texts = [
        str(element, "utf-8") if isinstance(element, bytes) else element
        for element in answer.as_numpy("OUT_IN").ravel()
    ]
    assert texts == array.ravel().tolist()


def test_several_inputs_in_any_order_and_a_choice_of_outputs(server: Served, client: Any) -> None:
    one = np.array([[1, 2, 3]], np.int32)
    two = np.array([[4, 5, 6]], np.int32)
    inputs = [tensor(two, "INT32", "B", binary=False), tensor(one, "INT32", "A")]
    answer = client.infer("pair", inputs, outputs=[http.InferRequestedOutput("OUT_B")])
    assert [infer_input.name for infer_input in server.service.calls[-1].inputs] == ["A", "B"]
    assert np.array_equal(answer.as_numpy("OUT_B"), two)
    assert answer.as_numpy("OUT_A") is None


def test_a_request_carries_its_deadline_priority_and_application(server: Served, client: Any) -> None:
    client.infer("echo", [tensor(ROWS)], timeout=2500, priority=2, parameters={"application": "maps"})
    call = server.service.calls[-1]
    assert (call.timeout, call.priority, call.application, call.rows) == (2_500_000, 2, "maps", 2)
    client.infer("echo", [tensor(ROWS)], headers={"x-astrarium-application": "chat"})
    call = server.service.calls[-1]
    assert (call.timeout, call.priority, call.application) == (None, 0, "chat")


def test_many_requests_at_once(client: Any) -> None:
    arrays = [np.full((1, 4), at, np.float32) for at in range(20)]
    waiting = [client.async_infer("echo", [tensor(array)]) for array in arrays]
    for array, pending in zip(arrays, waiting, strict=True):
        assert np.array_equal(pending.get_result().as_numpy("OUT_IN"), array)


@pytest.mark.parametrize("sent", [None, "gzip", "deflate"])
@pytest.mark.parametrize("back", [None, "gzip", "deflate"])
def test_compression(client: Any, sent: str | None, back: str | None) -> None:
    array = np.zeros((2, 40_000), np.float32)
    how = {"request_compression_algorithm": sent, "response_compression_algorithm": back}
    assert np.array_equal(client.infer("echo", [tensor(array)], **how).as_numpy("OUT_IN"), array)


def test_only_who_asks_for_an_encoding_by_name_gets_it(server: Served) -> None:
    path = "/v2/models/echo/infer"
    for accepted, used in [("gzip", "gzip"), ("gzip, deflate, br", None), ("br", None)]:
        response, _ = server.ask("POST", path, BODY, {"Accept-Encoding": accepted})
        assert response.headers["Content-Encoding"] == used


def test_large_tensors_arrive_whole(client: Any) -> None:
    array = np.arange(4_000_000, dtype=np.float32).reshape(4, 1_000_000)
    assert np.array_equal(client.infer("echo", [tensor(array)]).as_numpy("OUT_IN"), array)


def test_a_body_in_chunks(server: Served) -> None:
    chunks = (BODY[at : at + 7].encode() for at in range(0, len(BODY), 7))
    response, content = server.ask("POST", "/v2/models/echo/infer", chunks)
    assert (response.status, json.loads(content)["outputs"][0]["data"]) == (200, [1.0, 2.0])


def test_the_stages_on_demand(server: Served) -> None:
    path = "/v2/models/echo/infer"
    response, _ = server.ask("POST", path, BODY, {"x-astrarium-timeline": "1"})
    line = response.headers["x-astrarium-timeline"]
    parts = dict(part.split("=") for part in line.split(", "))
    assert list(parts) == ["admit", "queue", "hand_over", "execute", "answer", "batch", "gpu"]
    if not server.taken:  # network threads tell the truth instead
        assert (parts["queue"], parts["hand_over"], parts["execute"]) == ("2", "3", "4")
    assert parts["batch"] == "1"
    assert int(parts["admit"]) >= 0
    assert server.ask("POST", path, BODY)[0].headers["x-astrarium-timeline"] is None


@pytest.mark.parametrize("model", REFUSALS)
def test_each_kind_of_refusal_has_its_status_and_reason(client: Any, model: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, [tensor(ROWS)])
    assert caught.value.status() == str(REFUSALS[model].kind.http)
    assert caught.value.message() == REFUSALS[model].reason


@pytest.mark.parametrize(
    ("model", "whole", "fine"), [("overloaded", "1", "250"), ("draining", "4", "3500"), ("late", None, None)]
)
def test_when_to_come_back(server: Served, model: str, whole: str | None, fine: str | None) -> None:
    response, _ = server.ask("POST", f"/v2/models/{model}/infer", BODY)
    assert response.headers["Retry-After"] == whole
    assert response.headers["x-astrarium-retry-after-ms"] == fine


def test_a_model_that_is_not_loaded_takes_no_requests(client: Any) -> None:
    with pytest.raises(InferenceServerException, match="absent is not ready: unloaded") as caught:
        client.infer("absent", [tensor(ROWS)])
    assert caught.value.status() == "503"


def test_wrong_tensors_are_refused(client: Any) -> None:
    wrong: list[tuple[Array, str, str, str]] = [
        (ROWS, "FP32", "INPUT", "inputs[0].name: expected one of IN"),
        (ROWS.astype(np.int64), "INT64", "IN", "inputs[0].datatype: expected FP32 for IN"),
        (np.zeros((9, 1), np.float32), "FP32", "IN", "from 1 to 8 rows"),
        (np.zeros(3, np.float32), "FP32", "IN", "[rows, -1] for IN"),
    ]
    for array, datatype, name, what in wrong:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("echo", [tensor(array, datatype, name)])
        assert (caught.value.status(), what in caught.value.message()) == ("400", True)


def test_unknown_models_and_versions_are_not_found(client: Any) -> None:
    for model, version in [("nobody", ""), ("echo", "2")]:
        with pytest.raises(InferenceServerException) as caught:
            client.infer(model, [tensor(ROWS)], model_version=version)
        assert caught.value.status() == "404"


def test_classes_are_refused_with_a_reason(client: Any) -> None:
    wanted = [http.InferRequestedOutput("OUT_IN", class_count=3)]
    with pytest.raises(InferenceServerException, match="no classification"):
        client.infer("echo", [tensor(ROWS)], outputs=wanted)


def test_a_defect_of_ours_keeps_its_secrets(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    response, content = server.ask("POST", "/v2/models/buggy/infer", BODY)
    assert response.status == 500
    assert json.loads(content)["error"] == "the server failed, not the request: ZeroDivisionError"
    assert "a secret" in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "what"),
    [
        ("GET", "/v3", {}, 404, "got '/v3'"),
        ("GET", "/v2/models/", {}, 404, "path"),
        ("GET", "/v2/models//infer", {}, 404, "path"),
        ("DELETE", "/v2", {}, 405, "expected GET, HEAD, OPTIONS (got DELETE)"),
        ("GET", "/v2/models/echo/infer", {}, 405, "expected OPTIONS, POST (got GET)"),
        ("POST", "/v2/models/echo/infer", {"Content-Type": "text/xml"}, 415, "got 'text/xml'"),
        ("POST", "/v2/models/echo/infer", {"Content-Encoding": "br"}, 415, "gzip, deflate or identity"),
        ("GET", "/timeline?last=0", {}, 400, "last: expected `int` >= 1 (got '0')"),
        ("GET", "/timeline?last=many", {}, 400, "last"),
    ],
)
def test_what_http_itself_refuses(
    server: Served, method: str, path: str, headers: dict[str, str], status: int, what: str
) -> None:
    response, content = server.ask(method, path, BODY if method == "POST" else None, headers)
    assert response.status == status
    assert what in json.loads(content)["error"]
    assert (response.headers["Allow"] is not None) is (status == 405)


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/x-www-form-urlencoded"])
def test_types_of_content_that_clients_send(server: Served, kind: str) -> None:
    path = "/v2/models/echo/versions/1/infer"
    assert server.ask("POST", path, BODY, {"Content-Type": kind})[0].status == 200


def by_socket(server: Served, sent: bytes) -> tuple[list[int], str]:
    """The statuses of all answers, and the error in the last one; the server must close the connection."""
    with socket.create_connection(("127.0.0.1", server.http), timeout=20) as connection:
        connection.sendall(sent)
        answered = b""
        with contextlib.suppress(ConnectionResetError):  # closed before all of it was read
            while part := connection.recv(1 << 16):
                answered += part
    statuses = [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", answered)]
    return statuses, json.loads(answered.rpartition(b"\r\n\r\n")[2])["error"]


def whole(*lines: str, path: str = "/v2/models/echo/infer") -> bytes:
    head = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(BODY)}", *lines, "", BODY]
    return "\r\n".join(head).encode()


CHUNKED = b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
LIVE = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (b"\x00garbage\r\n\r\n", [400]),
        (whole() + b"\x00garbage\r\n\r\n", [200, 400]),
        (whole() + LIVE + whole() + b"\x00", [200, 200, 200, 400]),
        (LIVE + b"no such thing\r\n\r\n", [200, 400]),
        (CHUNKED + b"zz\r\n", [400]),
        (whole() + CHUNKED + b"zz\r\n", [200, 400]),
        (CHUNKED.replace(b"echo", b"nobody") + b"3\r\nabc\r\nzz\r\n", [400]),
    ],
)
def test_requests_before_garbage_are_answered(server: Served, sent: bytes, statuses: list[int]) -> None:
    codes, reason = by_socket(server, sent)
    assert codes == statuses
    assert reason.startswith(("request: expected", "body: expected chunks"))


@pytest.mark.parametrize(
    "head",
    [
        whole("x-long: " + "x" * 100_000),
        whole(*["a: b"] * 10_000),
        whole(*["a:b"] * 257),
        whole(path="/" + "x" * 100_000),
    ],
)
def test_a_head_in_one_piece_has_its_limits_too(server: Served, head: bytes) -> None:
    reason = "head: expected at most 65536 bytes and 256 headers"
    assert by_socket(server, head) == ([431], reason)
    assert by_socket(server, whole() + head) == ([200, 431], reason)


def test_a_body_that_breaks_after_its_answer_closes_the_connection(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", server.http), timeout=20) as connection:
        connection.sendall(b"POST /no/such/path HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        assert b"404" in connection.recv(1 << 16)
        connection.sendall(b"zz\r\n")
        while connection.recv(1 << 16):
            pass


def test_pages_for_people_and_their_tools(server: Served) -> None:
    assert "/openapi.json" in json.loads(server.ask("GET", "/")[1])["links"].values()
    assert server.ask("GET", "/metrics")[1] == server.service.metrics()
    assert json.loads(server.ask("GET", "/timeline?last=7")[1])["last"] == 7
    assert json.loads(server.ask("GET", "/openapi.json")[1])["openapi"] == "3.1.0"


def test_head_answers_like_get_without_the_body(server: Served) -> None:
    response, content = server.ask("HEAD", "/v2")
    assert (response.status, content) == (200, b"")
    assert int(response.headers["Content-Length"]) > 0


def test_a_model_may_be_called_like_a_page(server: Served) -> None:
    service = server.service
    service.models["stats"] = service.models["echo"]
    try:
        assert server.ask("POST", "/v2/models/stats/infer", BODY)[0].status == 200
        assert "model_stats" in json.loads(server.ask("GET", "/v2/models/stats")[1])
    finally:
        del service.models["stats"]


def test_every_answer_was_released(server: Served, client: Any) -> None:
    client.infer("echo", [tensor(ROWS)])
    no_text = [tensor(np.array([[b"\xff"]], object), BYTES)]
    with pytest.raises(InferenceServerException, match="UTF-8"):
        client.infer("text", no_text, outputs=[http.InferRequestedOutput("OUT_IN", False)])
    assert server.service.held == 0


def connected(running: Served) -> Any:
    return http_aio.InferenceServerClient(running.http_url)


def test_the_client_in_an_event_loop() -> None:
    async def talk() -> None:
        async with (
            serving(FakeService()) as running,
            connected(running) as client,
        ):
            assert await client.is_server_ready()
            assert (await client.get_model_metadata("echo"))["name"] == "echo"
            answers = await asyncio.gather(*(client.infer("echo", [tensor(ROWS + at)]) for at in range(10)))
            assert all(
                np.array_equal(answer.as_numpy("OUT_IN"), ROWS + at) for at, answer in enumerate(answers)
            )
            with pytest.raises(InferenceServerException, match="9 requests wait already"):
                await client.infer("overloaded", [tensor(ROWS)])

    uvloop.run(talk())


def test_stopping_lets_requests_finish_and_leaves_signals_alone() -> None:
    async def talk() -> None:
        handler = signal.getsignal(signal.SIGTERM)
        service = FakeService(gate=asyncio.Event())
        running = await serve_http(service)
        assert signal.getsignal(signal.SIGTERM) is handler
        async with http_aio.InferenceServerClient(f"127.0.0.1:{running.port}") as client:
            waiting = asyncio.create_task(client.infer("slow", [tensor(ROWS)]))
            while not service.calls:
                await asyncio.sleep(0.001)
            stopping = asyncio.create_task(running.stop(grace=20.0))
            await until_closed(running.port)
            assert service.gate is not None
            service.gate.set()
            assert np.array_equal((await waiting).as_numpy("OUT_IN"), ROWS)
            await stopping

    uvloop.run(asyncio.wait_for(talk(), timeout=20))


def test_a_port_that_is_taken_is_an_error_with_its_address(server: Served) -> None:
    with pytest.raises(InputError, match=f"127.0.0.1:{server.http}"):
        asyncio.run(serve_http(FakeService(), Address(port=server.http)))
