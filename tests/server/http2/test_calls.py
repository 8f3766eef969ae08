"""Calls over gRPC as network threads answer them: in any pieces, and in the words of grpc.aio."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from astrarium.core.optional import extension
from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.server.contract import Kind
from astrarium.server.settings import HttpLimits
from astrarium.serving.live.tensors import TensorSpec
from tests.support.server.fakes import WAYS, FakeService, serving
from tests.support.server.http2_client import (
    CONTINUATION,
    DATA,
    END,
    HEAD_END,
    HEADERS,
    INFER,
    PADDED,
    PREFACE,
    SETTINGS,
    answered,
    call,
    changed,
    frame,
    head,
    message,
    network,
    prefixed,
    run,
)
from tests.support.server.native_network import OPEN, PLAIN

pytestmark = pytest.mark.skipif(extension("_front") is None, reason="needs the native extension")


def test_a_call_may_come_byte_by_byte_and_its_answer_is_whole() -> None:
    async def ask() -> None:
        async with network() as server:
            connection = await server.connect(b"")
            for byte in PREFACE + frame(SETTINGS) + call(1) + call(3, message(name="y")):
                connection.writer.write(bytes([byte]))
                await connection.writer.drain()
                await asyncio.sleep(0)
            fields, data = await connection.answer(1)
            assert (fields[b":status"], fields[b"grpc-status"], answered(data).id) == (b"200", b"0", "x")
            assert (
                answered((await connection.answer(3))[1]).raw_output_contents == message().raw_input_contents
            )

    run(ask())


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_a_head_and_a_message_may_come_in_many_padded_frames(piece: int) -> None:
    async def ask() -> None:
        async with network() as server:
            connection = await server.connect()
            block = head()
            data = prefixed(message().SerializeToString())
            whole = frame(HEADERS, 0x20, 1, bytes(5) + block[:piece])
            whole += b"".join(
                frame(CONTINUATION, 0, 1, block[at : at + piece]) for at in range(piece, len(block), piece)
            )
            whole += frame(CONTINUATION, HEAD_END, 1)
            for at in range(0, len(data), piece):
                whole += frame(DATA, PADDED, 1, b"\3" + data[at : at + piece] + bytes(3))
            connection.writer.write(whole + frame(DATA, END, 1))
            assert answered((await connection.answer(1))[1]).id == "x"

    run(ask())


async def answers_of_both_ways(
    path: str, data: bytes, limits: HttpLimits | None = None, **more: Any
) -> list[Any]:
    """What network threads and grpc.aio answer, or why they do not."""
    answers: list[Any] = []
    for way in WAYS:
        async with (
            serving(FakeService(), limits, way=way) as running,
            grpc.aio.insecure_channel(running.grpc_url) as channel,
        ):
            try:
                answers.append(await channel.unary_unary(path)(data, timeout=30, **more))
            except grpc.aio.AioRpcError as error:
                trailing = sorted((str(name), str(value)) for name, value in error.trailing_metadata() or ())
                answers.append((error.code(), error.details(), trailing))
    return answers


def with_parameter(name: str, kind: str, value: Any) -> Any:
    request = message()
    setattr(request.parameters[name], kind, value)
    return request


SAME: dict[str, Any] = {
    "plain": message(rows=3, size=5),
    "another version": changed(model_version="2"),
    "the version": changed(model_version="1"),
    "an id that is no ASCII": changed(id="ä" * 200),
    "no such model": changed(model_name="nobody%"),
    "not loaded": changed(model_name="absent"),
    "a sequence": with_parameter("sequence_id", "int64_param", 3),
    "some parameter": with_parameter("verbose", "bool_param", True),
    "no timeout": with_parameter("timeout", "int64_param", -1),
    "a priority": with_parameter("priority", "uint64_param", 2),
    "no such priority": with_parameter("priority", "string_param", "2"),
    "an application": with_parameter("application", "string_param", "maps"),
    "a long application": with_parameter("application", "string_param", "m" * 300),
    "no message": b"\xff",
    "nothing": b"",
    "overloaded": changed(model_name="overloaded"),
    "our own fault": changed(model_name="buggy"),
}


@pytest.mark.parametrize("what", SAME)
def test_network_threads_and_grpc_aio_say_the_same(what: str) -> None:
    case = SAME[what]

    async def compare() -> None:
        data = case if isinstance(case, bytes) else case.SerializeToString()
        natively, by_python = await answers_of_both_ways(INFER, data)
        assert natively == by_python

    run(compare())


@pytest.mark.parametrize("path", ["/inference.GRPCInferenceService/Nothing", "/other.Service/Method"])
def test_a_method_that_there_is_not_is_unimplemented(path: str) -> None:
    async def compare() -> None:
        wanted = grpc.StatusCode.UNIMPLEMENTED, "Method not found!"
        assert [answer[:2] for answer in await answers_of_both_ways(path, b"")] == [wanted, wanted]

    run(compare())


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_message_beyond_the_limit_is_refused_in_the_same_words(compression: grpc.Compression) -> None:
    async def compare() -> None:
        limits = HttpLimits(body_bytes=1000)
        natively, by_python = await answers_of_both_ways(
            INFER, bytes(200_000), limits, compression=compression
        )
        assert natively == by_python
        assert natively[0] is grpc.StatusCode.RESOURCE_EXHAUSTED

    run(compare())


@pytest.mark.parametrize(("size", "fits"), [(40_000, True), (70_000, False)])
def test_metadata_has_the_same_limit_on_each_way(size: int, fits: bool) -> None:
    async def compare() -> None:
        data = message().SerializeToString()
        for answer in await answers_of_both_ways(INFER, data, metadata=(("x", "v" * size),)):
            assert isinstance(answer, bytes) if fits else answer[0] is grpc.StatusCode.RESOURCE_EXHAUSTED

    run(compare())


def test_a_deadline_of_the_call_brings_the_objective_forward() -> None:
    async def ask() -> None:
        async with network(PLAIN, answers=False) as server:
            server.loopback.plan([(10 * SECOND, [0, 20 * MILLISECOND])], 1)
            connection = await server.connect()
            connection.writer.write(call(1, grpc_timeout="10m"))
            fields, _ = await connection.answer(1)
            assert fields[b"grpc-status"] == str(grpc.StatusCode[Kind.DEADLINE.grpc].value[0]).encode()
            reason = b"model echo cannot answer within 10 ms: one request alone takes"
            assert fields[b"grpc-message"].startswith(reason)
            connection.writer.write(call(3, grpc_timeout="9S"))
            tickets = await server.front.popped()
            _, _, _, _, received, deadline, *_ = tickets[0]
            assert deadline - received == 9 * SECOND
            server.loopback.end(tickets[0][0])
            await connection.answer(3)

    run(ask())


def test_a_full_house_says_when_to_come_back() -> None:
    async def ask() -> None:
        async with network(PLAIN, answers=False, most_open=1) as server:
            connection = await server.connect()
            connection.writer.write(call(1) + call(3))
            fields, _ = await connection.answer(3)
            assert fields[b"grpc-status"] == b"8"
            assert fields[b"grpc-message"] == b"overloaded: 1 calls are open already, the most that may be"
            assert (fields[b"grpc-retry-pushback-ms"], fields[b"retry-after"]) == (b"1000", b"1")
            assert server.tally()[4] == {"deadline": 0, "overloaded": 1, "unavailable": 0, "bad_request": 0}
            for number, *_ in server.loopback.pop():
                server.loopback.end(number, "failed", "model_error", "100 % wrong\n")
            fields, _ = await connection.answer(1)
            reason = b"model echo failed: 100 %25 wrong%0A"
            assert (fields[b"grpc-status"], fields[b"grpc-message"]) == (b"13", reason)

    run(ask())


def test_reasons_for_the_long_way_are_counted() -> None:
    texts = TensorSpec("IN", "BYTES", (-1,)), TensorSpec("OUT_IN", "BYTES", (-1,))
    words = type(PLAIN)("words", "fake", texts[:1], texts[1:], max_batch=8, slo=SECOND)

    async def ask() -> None:
        async with network(OPEN, words) as server:
            connection = await server.connect()
            connection.writer.write(call(1, changed(model_name="nobody")) + call(3, x_astrarium_timeline="1"))
            connection.writer.write(
                call(5, changed(model_version="7")) + call(7, changed(model_name="words"))
            )
            for stream in (1, 3, 5, 7):
                await connection.answer(stream)
            wanted = {"unknown_model": 1, "x-astrarium-timeline": 1, "version": 1, "body": 1}
            assert server.grpc.native.long_way() == wanted

    run(ask())
