"""The protocol over gRPC, by the client that others use and by hand."""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import uvloop
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from astrarium.core.errors import InputError
from astrarium.core.optional import extension
from astrarium.server.grpc import requests
from astrarium.server.grpc.messages import COMPILED, message, pool
from astrarium.server.grpc.server import serve_grpc
from astrarium.server.process.logs import ThrottledWarnings
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
    with triton.InferenceServerClient(server.grpc_url) as connected:
        yield connected


@pytest.fixture(scope="module")
def stub(server: Served) -> Iterator[Any]:
    """For what the client does not do by itself: messages by hand."""
    with grpc.insecure_channel(server.grpc_url) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def tensor(array: Array, datatype: str = "FP32", name: str = "IN") -> Any:
    infer_input = triton.InferInput(name, list(array.shape), datatype)
    infer_input.set_data_from_numpy(array)
    return infer_input


def test_the_compiled_description_is_that_of_the_proto_file(tmp_path: Path) -> None:
    folder = COMPILED.parent
    description = tmp_path / "made.binpb"
    proto = str(folder / "inference.proto")
    assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={description}", proto]) == 0
    compiled, shipped = (
        descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()) for path in (description, COMPILED)
    )
    assert compiled == shipped


def fields_of(message_type: Any) -> dict[int, tuple[Any, ...]]:
    return {
        field.number: (
            field.name,
            field.type,
            field.is_repeated,
            getattr(field.message_type, "full_name", None),
        )
        for field in message_type.fields
    }


def test_every_field_is_the_one_that_clients_know() -> None:
    ours = descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes()).file[0]
    theirs = {
        **service_pb2.DESCRIPTOR.message_types_by_name,
        **model_config_pb2.DESCRIPTOR.message_types_by_name,
    }
    names = [message_type.name for message_type in ours.message_type]
    names += [
        f"{message_type.name}.{inner.name}"
        for message_type in ours.message_type
        for inner in message_type.nested_type
    ]
    for name in names:
        known = theirs[name.partition(".")[0]]
        for part in name.split(".")[1:]:
            known = known.nested_types_by_name[part]
        fields = fields_of(pool().FindMessageTypeByName(f"inference.{name}"))
        assert fields.items() <= fields_of(known).items(), name


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("echo")
    assert not client.is_model_ready("absent")
    assert client.get_server_metadata().name == "astrarium"
    metadata = client.get_model_metadata("echo", as_json=True)
    assert metadata["inputs"] == [{"name": "IN", "datatype": "FP32", "shape": ["-1", "-1"]}]
    config = client.get_model_config("text").config
    assert (config.max_batch_size, config.input[0].data_type) == (8, model_config_pb2.TYPE_STRING)
    assert config.dynamic_batching.default_queue_policy.default_timeout_microseconds == 100_000


def test_a_server_that_is_not_ready_says_so(server: Served, client: Any) -> None:
    server.service.ready = False
    try:
        assert not client.is_server_ready()
    finally:
        server.service.ready = True


def test_a_model_that_refuses_everybody_is_not_ready_and_says_why(server: Served, client: Any) -> None:
    card = server.service.models["echo"]
    server.service.models["echo"] = replace(card, refusing="it has turned away all of the last 33 calls")
    try:
        assert not client.is_model_ready("echo")
        entry_of_echo = {entry.name: entry for entry in client.get_model_repository_index().models}["echo"]
        assert (entry_of_echo.state, entry_of_echo.reason) == (
            "UNAVAILABLE",
            "it has turned away all of the last 33 calls",
        )
    finally:
        server.service.models["echo"] = card


def test_statistics_and_repository(client: Any) -> None:
    client.infer("ints", [tensor(np.zeros((3, 2, 2), np.int64), "INT64")])
    (one,) = client.get_inference_statistics("ints").model_stats
    assert (one.name, one.batch_stats[-1].batch_size) == ("ints", 3)
    assert one.inference_count >= 3
    assert len(client.get_inference_statistics().model_stats) > 5
    states = {entry.name: entry.state for entry in client.get_model_repository_index().models}
    assert (states["echo"], states["absent"]) == ("READY", "UNAVAILABLE")
    client.unload_model("scalar")
    assert not client.is_model_ready("scalar")
    client.load_model("scalar")
    assert client.is_model_ready("scalar")
    with pytest.raises(InferenceServerException, match="no config or files"):
        client.load_model("echo", config="{}")


@pytest.mark.parametrize("datatype", sorted(DATATYPES.keys() - {BF16, BYTES}))
def test_every_datatype_raw(client: Any, datatype: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(DATATYPES[datatype])
    answer = client.infer(f"all_{datatype.lower()}", [tensor(array, datatype)], request_id="r-7")
    assert np.array_equal(answer.as_numpy("OUT_IN"), array)
    assert answer.get_response().id == "r-7"


CONTENTS: dict[str, tuple[str, list[Any]]] = {
    "BOOL": ("bool_contents", [True, False]),
    "UINT8": ("uint_contents", [0, 255]),
    "UINT32": ("uint_contents", [0, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 2**64 - 1]),
    "INT8": ("int_contents", [-128, 127]),
    "INT16": ("int_contents", [-5, 5]),
    "INT64": ("int64_contents", [-(2**63), 7]),
    "FP32": ("fp32_contents", [0.5, float("inf")]),
    "FP64": ("fp64_contents", [0.1, -1e300]),
    "BYTES": ("bytes_contents", [b"", b"\xff\x00"]),
}


def typed(model: str, datatype: str, field: str, values: list[Any], shape: list[int]) -> Any:
    infer_input = service_pb2.ModelInferRequest.InferInputTensor(name="IN", datatype=datatype, shape=shape)
    getattr(infer_input.contents, field).extend(values)
    return service_pb2.ModelInferRequest(model_name=model, inputs=[infer_input])


@pytest.mark.parametrize("datatype", CONTENTS)
def test_typed_contents(stub: Any, datatype: str) -> None:
    field, values = CONTENTS[datatype]
    answer = stub.ModelInfer(typed(f"all_{datatype.lower()}", datatype, field, values, [1, 2]))
    elements = triton.InferResult(answer).as_numpy("OUT_IN").ravel().tolist()
    assert elements == np.array(values, DATATYPES[datatype]).tolist()


def test_text_several_inputs_and_a_choice_of_outputs(server: Served, client: Any) -> None:
    words = np.array([[b"", b"\xff" * 3000]], object)
    assert client.infer("text", [tensor(words, BYTES)]).as_numpy("OUT_IN").tolist() == words.tolist()
    one = np.array([[1, 2, 3]], np.int32)
    two = np.array([[4, 5, 6]], np.int32)
    inputs = [tensor(two, "INT32", "B"), tensor(one, "INT32", "A")]
    answer = client.infer("pair", inputs, outputs=[triton.InferRequestedOutput("OUT_B")])
    assert [infer_input.name for infer_input in server.service.calls[-1].inputs] == ["A", "B"]
    assert np.array_equal(answer.as_numpy("OUT_B"), two)
    assert answer.as_numpy("OUT_A") is None


BROKEN = {
    "cut off": b"\1\0\0\0a\5\0\0\0b",
    "one too few": b"\1\0\0\0a",
    "one too many": b"\1\0\0\0a" * 3,
    "bytes behind them": b"\1\0\0\0a" * 2 + b"x",
    "a length beyond everything": b"\1\0\0\0a\xff\xff\xff\xff",
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_elements_of_bytes_are_refused(stub: Any, what: str) -> None:
    request = service_pb2.ModelInferRequest(model_name="text", raw_input_contents=[BROKEN[what]])
    request.inputs.add(name="IN", datatype="BYTES", shape=[1, 2])
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    request = typed("text", "BYTES", "bytes_contents", [b"a"], [1, 2])
    with pytest.raises(grpc.RpcError, match="expected 2 elements"):
        stub.ModelInfer(request)


def test_a_request_carries_its_deadline_priority_and_application(server: Served, client: Any) -> None:
    client.infer("echo", [tensor(ROWS)], timeout=2_500_000, priority=2, parameters={"application": "maps"})
    call = server.service.calls[-1]
    assert (call.timeout, call.priority, call.application, call.rows) == (2_500_000_000, 2, "maps", 2)
    client.infer("echo", [tensor(ROWS)], headers={"x-astrarium-application": "chat"})
    call = server.service.calls[-1]
    assert (call.timeout, call.priority, call.application) == (None, 0, "chat")


ROUNDED = 51 * 10**9  # gRPC rounds deadlines up when it sends them


def test_the_clients_own_deadline_is_how_long_it_waits_and_not_its_objective(
    server: Served, client: Any
) -> None:
    client.infer("echo", [tensor(ROWS)], client_timeout=50.0)
    call = server.service.calls[-1]
    assert call.timeout is None
    assert call.patience is not None
    assert 0 < call.patience <= ROUNDED
    client.infer("echo", [tensor(ROWS)], client_timeout=50.0, timeout=3_000_000)
    assert server.service.calls[-1].timeout == 3_000_000_000
    client.infer("echo", [tensor(ROWS)])
    assert server.service.calls[-1].patience is None


def test_calls_that_are_turned_away_are_counted(server: Served, client: Any) -> None:
    before = server.service.refusals["ints"]
    with pytest.raises(InferenceServerException):
        client.infer("ints", [tensor(ROWS)])
    assert server.service.refusals["ints"] == before + 1


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_and_large(client: Any, algorithm: str) -> None:
    array = np.arange(2_000_000, dtype=np.float32).reshape(2, 1_000_000)
    answer = client.infer("echo", [tensor(array)], compression_algorithm=algorithm)
    assert np.array_equal(answer.as_numpy("OUT_IN"), array)


def test_many_requests_at_once(client: Any) -> None:
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    for at in range(20):
        client.async_infer(
            "echo", [tensor(ROWS + at)], lambda result, error: done.put((result, error)), request_id=str(at)
        )
    for _ in range(20):
        result, error = done.get(timeout=10)
        assert error is None
        assert np.array_equal(result.as_numpy("OUT_IN"), ROWS + int(result.get_response().id))


def test_the_stages_on_demand(stub: Any) -> None:
    request = typed("echo", "FP32", "fp32_contents", [1.0], [1, 1])
    _, call = stub.ModelInfer.with_call(request, metadata=(("x-astrarium-timeline", "1"),))
    line = dict(call.trailing_metadata())["x-astrarium-timeline"]
    assert line.endswith("queue=2, hand_over=3, execute=4, answer=1, batch=1, gpu=0")


def test_a_stream_answers_in_order_and_survives_refusals(server: Served) -> None:
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: done.put((result, error)))
        for at in range(100):
            client.async_stream_infer("late" if at == 3 else "echo", [tensor(ROWS + at)], request_id=str(at))
        answers = [done.get(timeout=10) for _ in range(100)]
        client.stop_stream()
    assert "3 ms are left" in str(answers.pop(3)[1])
    assert [error for _, error in answers if error] == []
    ids = [result.get_response().id for result, _ in answers]
    assert ids == [str(at) for at in range(100) if at != 3]
    assert np.array_equal(answers[-1][0].as_numpy("OUT_IN"), ROWS + 99)
    assert answers[0][0].get_response().parameters["triton_final_response"].bool_param


def test_a_stream_that_is_cut_leaves_nothing_behind() -> None:
    async def talk() -> None:
        service = FakeService(gate=asyncio.Event())
        async with serving(service) as running, grpc.aio.insecure_channel(running.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            stream = stub.ModelStreamInfer()
            for _ in range(3):
                await stream.write(typed("slow", "FP32", "fp32_contents", [1.0], [1, 1]))
            while len(service.calls) < 3:
                await asyncio.sleep(0.001)
            before = asyncio.all_tasks()
            stream.cancel()
            while any("_response" in repr(task) for task in asyncio.all_tasks() & before):
                await asyncio.sleep(0.001)
            assert service.held == 0

    uvloop.run(asyncio.wait_for(talk(), timeout=20))


@pytest.mark.parametrize("model", REFUSALS)
def test_each_kind_of_refusal_has_its_status_and_reason(client: Any, model: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, [tensor(ROWS)])
    assert caught.value.status() == f"StatusCode.{REFUSALS[model].kind.grpc}"
    assert caught.value.message() == REFUSALS[model].reason


def test_when_to_come_back(stub: Any) -> None:
    request = typed("overloaded", "FP32", "fp32_contents", [1.0], [1, 1])
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request)
    trailing = dict(caught.value.trailing_metadata())
    assert (trailing["grpc-retry-pushback-ms"], trailing["retry-after"]) == ("250", "1")


def raw(*data: bytes, **changes: Any) -> Any:
    inputs = [service_pb2.ModelInferRequest.InferInputTensor(name="IN", datatype="FP32", shape=[1, 2])]
    return service_pb2.ModelInferRequest(
        model_name=changes.get("model", "echo"),
        model_version=changes.get("version", ""),
        inputs=inputs,
        raw_input_contents=list(data),
    )


BOTH = raw(bytes(8))
BOTH.inputs[0].contents.fp32_contents.extend([1.0, 2.0])
SHARED = raw(bytes(8))
SHARED.inputs[0].parameters["shared_memory_region"].string_param = "region"
LATE = raw(bytes(8))
LATE.parameters["timeout"].int64_param = 0
WRONG = [
    (raw(bytes(7)), "inputs[0].data: expected 8 bytes for FP32 [1, 2] (got '7 bytes')"),
    (raw(bytes(8), bytes(8)), "raw_input_contents: expected one for each of 1 inputs"),
    (BOTH, "either contents or raw_input_contents"),
    (SHARED, "there are no regions"),
    (LATE, "parameters.timeout: expected a whole number from 1"),
    (typed("echo", "FP32", "fp64_contents", [1.0], [1, 1]), "1 elements in fp32_contents"),
    (typed("echo", "FP32", "fp32_contents", [1.0], [1, 2]), "2 elements in fp32_contents"),
    (typed("all_int8", "INT8", "int_contents", [128], [1, 1]), "numbers that INT8 can hold"),
    (typed("all_fp16", "FP16", "fp32_contents", [1.0], [1, 1]), "FP16 has no typed contents"),
    (typed("echo", "FP32", "fp32_contents", [], [0, 1]), "from 1 to 8 rows"),
]


def refused(stub: Any, request: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request)
    return caught.value.code(), caught.value.details()


@pytest.mark.parametrize(("wrong", "what"), WRONG)
def test_wrong_messages_are_refused(stub: Any, wrong: Any, what: str) -> None:
    code, details = refused(stub, wrong)
    assert (code, what in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_unknown_absent_and_too_large(stub: Any) -> None:
    large = typed("echo", "FP32", "fp32_contents", [1.0], [1, 2**40])
    assert refused(stub, raw(model="nobody"))[0] is grpc.StatusCode.NOT_FOUND
    assert refused(stub, raw(version="3"))[0] is grpc.StatusCode.NOT_FOUND
    assert refused(stub, raw(bytes(8), model="absent"))[0] is grpc.StatusCode.UNAVAILABLE
    assert refused(stub, large)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused(stub, raw(bytes(70 * 2**20)))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_defect_of_ours_keeps_its_secrets(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("buggy", [tensor(ROWS)])
    assert caught.value.message() == "the server failed, not the request: ZeroDivisionError"
    assert "a secret" in caplog.text


def unparsed(channel: grpc.Channel, method: str, data: bytes) -> Any:
    return channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(data)


@pytest.mark.parametrize("size", [0, 1 << 20])
@pytest.mark.parametrize("method", ["ModelInfer", "ModelMetadata", "ServerLive"])
def test_what_is_no_message_is_the_clients_fault(
    server: Served, method: str, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel, pytest.raises(grpc.RpcError) as caught:
        unparsed(channel, method, b"\xff\xff\xff garbage" + bytes(size))
    large = size and method != "ModelInfer"  # of these nobody looks at a megabyte
    wanted = grpc.StatusCode.RESOURCE_EXHAUSTED if large else grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.code() is wanted
    assert f"{method}Request" in caught.value.details()
    assert "Traceback" not in caplog.text


def test_broken_clients_are_logged_by_their_address_and_sparingly(caplog: pytest.LogCaptureFixture) -> None:
    with served() as fresh, grpc.insecure_channel(fresh.grpc_url) as channel:
        for _ in range(20):
            with pytest.raises(grpc.RpcError):
                unparsed(channel, "ModelInfer", b"\xff")
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith("ModelInfer from ipv4:127.0.0.1:")


def test_lines_that_were_left_out_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    sparing = ThrottledWarnings(logging.getLogger("test"), seconds=10, clock=lambda: now[0])
    for now[0] in (0, 1, 9, 10, 30):
        sparing.warning("from %s", "somebody")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["from somebody", "from somebody (2 more since the last such line)", "from somebody"]


def test_a_stream_goes_on_after_what_is_no_message(server: Served) -> None:
    good = raw(bytes(8)).SerializeToString()
    with grpc.insecure_channel(server.grpc_url) as channel:
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        answers = list(call(iter([good, b"\xff", good])))
    assert [answer.error_message[:18] for answer in answers] == ["", "[INVALID_ARGUMENT]", ""]


@pytest.mark.parametrize("datatype", CONTENTS)
def test_typed_contents_mean_the_same_in_a_large_message(
    datatype: str, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    field, values = CONTENTS[datatype]
    model = f"all_{datatype.lower()}"
    request = typed(model, datatype, field, values, [1, 2])
    small = stub.ModelInfer(request)
    monkeypatch.setattr(requests, "LARGE", request.ByteSize() - 1)
    assert stub.ModelInfer(request).raw_output_contents == small.raw_output_contents
    for wrong in ([*values, values[0]], values[:1]):
        code, details = refused(stub, typed(model, datatype, field, wrong, [1, 2]))
        assert (code, field in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


@pytest.mark.parametrize(("wrong", "what"), WRONG)
def test_wrong_large_messages_are_refused(
    stub: Any, wrong: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LARGE", wrong.ByteSize() - 1)
    code, details = refused(stub, wrong)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert what in details or "numbers that INT8" in what


def test_the_outline_of_a_message_is_the_message_without_elements() -> None:
    request = typed("echo", "FP32", "fp32_contents", [1.0] * 1000, [1, 1000])
    request.inputs.append(raw().inputs[0])
    request.raw_input_contents.append(b"z" * 1000)
    request.outputs.add(name="OUT")
    data = request.SerializeToString()
    native: Any = extension("_tensors")
    text, raws, contents = native.message_outline(data, 1000)
    assert [data[begin:end] for begin, end in raws] == [b"z" * 1000]
    (first, second) = contents
    assert (data[slice(*first[0])], second) == (request.inputs[0].contents.SerializeToString(), [])
    request.inputs[0].ClearField("contents")
    request.ClearField("raw_input_contents")
    assert service_pb2.ModelInferRequest.FromString(text) == request
    assert native.message_outline(data, len(text) // 2) is False
    assert native.message_outline(data[:-1], 1000) is None


def test_many_inputs_are_counted_before_they_are_read(stub: Any, server: Served) -> None:
    with grpc.insecure_channel(server.grpc_url) as channel, pytest.raises(grpc.RpcError) as caught:
        unparsed(channel, "ModelInfer", b"\x0a\x04echo" + b"\x2a\x00" * 5_000_000)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_the_client_in_an_event_loop() -> None:
    async def talk() -> None:
        service = FakeService()
        async with serving(service) as running, triton_aio.InferenceServerClient(running.grpc_url) as client:
            assert await client.is_server_ready()
            answers = await asyncio.gather(*(client.infer("echo", [tensor(ROWS + at)]) for at in range(10)))
            assert all(
                np.array_equal(answer.as_numpy("OUT_IN"), ROWS + at) for at, answer in enumerate(answers)
            )
            with pytest.raises(InferenceServerException, match="9 requests wait already"):
                await client.infer("overloaded", [tensor(ROWS)])
            assert service.held == 0

    uvloop.run(talk())


def test_stopping_lets_calls_finish() -> None:
    async def talk() -> None:
        service = FakeService(gate=asyncio.Event())
        running = await serve_grpc(service)
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{running.port}") as client:
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
    async def take() -> None:
        await serve_grpc(FakeService(), Address(port=server.grpc))

    with pytest.raises(InputError, match=f"127.0.0.1:{server.grpc}"):
        asyncio.run(take())


def test_our_messages_do_not_touch_the_common_pool() -> None:
    assert message("ModelInferRequest") is not service_pb2.ModelInferRequest
    assert message("ModelInferRequest").DESCRIPTOR.file.pool is pool()
