"""Large requests: their tensors are received straight where workers find them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from astrarium.core.optional import extension
from astrarium.core.quantities import MILLISECOND
from astrarium.server.settings import HttpLimits
from astrarium.serving.live.tensors import TensorSpec
from tests.support.server.fakes import HOUR, until
from tests.support.server.http_connection import request
from tests.support.server.native_network import OPEN, PLAIN, asking, binary, running

pytestmark = pytest.mark.skipif(extension("_front") is None, reason="needs the native extension")


THREE = replace(
    PLAIN,
    inputs=tuple(TensorSpec(name, "FP32", (-1,)) for name in "ABC"),
    outputs=tuple(TensorSpec(name, "FP32", (-1,)) for name in "XYZ"),
)
LARGE = np.arange(1 << 18, dtype=np.float32)[None]
HELD = 2 * LARGE.nbytes  # with room for an answer


def three(*order: str) -> tuple[bytes, dict[str, list[float]]]:
    """A request whose tensors come in this order, and its answer; the second is in JSON, for it is short."""
    sizes = {"A": 50_000, "B": 3, "C": 30_001}
    tensors = {name: np.full((1, size), ord(name), np.float32) for name, size in sizes.items()}
    tensors["A"][0, -1], tensors["C"][0, 0] = -1, -2
    inputs: list[dict[str, Any]] = []
    for name in order:
        form = {"data": [ord(name)] * 3} if name == "B" else {}
        size = {"parameters": {"binary_data_size": 4 * sizes[name]}} if not form else {}
        inputs.append({"name": name, "shape": [1, sizes[name]], "datatype": "FP32", **form, **size})
    json_part = json.dumps({"inputs": inputs}).encode()
    rest = b"".join(bytes(tensors[name]) for name in order if name != "B")
    headers = {
        "Inference-Header-Content-Length": str(len(json_part)),
        "Content-Length": str(len(json_part + rest)),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode()
    answer = dict(zip("XYZ", (tensors[name][0].tolist() for name in "ABC"), strict=True))
    return head + json_part + rest, answer


@pytest.mark.parametrize("order", ["ABC", "CBA", "BCA"])
@pytest.mark.parametrize("piece", [700, 20_000, 1 << 20])
def test_tensors_of_a_large_request_land_in_their_places(order: str, piece: int) -> None:
    async def run() -> None:
        async with running(THREE) as server:
            connection = await server.connect()
            sent, expected = three(*order)
            for _ in range(2):  # the second is expected to be large
                for at in range(0, len(sent), piece):
                    connection.writer.write(sent[at : at + piece])
                    await asyncio.sleep(0.001 if at < 3 * piece else 0)
                status, _, answer = await connection.answer()
                assert status == 200
                assert {output["name"]: output["data"] for output in answer["outputs"]} == expected
            assert server.network.native.long_way() == {}
            assert server.network.native.held() == server.front.exchange.arriving() == 0

    asyncio.run(run())


def test_a_large_call_is_refused_before_its_tensors_have_come() -> None:
    async def run() -> None:
        async with running(OPEN) as server:
            connection = await server.connect()
            sent = binary(LARGE)
            server.loopback.plan([(HOUR, [0, 2 * HOUR, 1 << 60])], gpus=1)
            head = sent.index(b"\r\n\r\n") + 4
            for part in (sent[:head], sent[head:1000]):  # as many clients send it
                connection.writer.write(part)
                await asyncio.sleep(0.05)
            status, _, answer = await connection.answer()
            assert (status, "model echo cannot answer within" in answer["error"]) == (504, True)
            server.loopback.plan([(HOUR, [0, 1, 1 << 60])], gpus=1)
            connection.writer.write(
                sent[1000:] + request()
            )  # what belongs to the refused call is thrown away
            assert (await connection.answer())[0] == 200
            assert server.tally()[4] == {"deadline": 1, "overloaded": 0, "unavailable": 0, "bad_request": 0}
            assert server.front.exchange.arena.used == 0

    asyncio.run(run())


def test_a_connection_that_closes_after_an_early_refusal_closes_after_the_rest() -> None:
    async def run() -> None:
        async with running(OPEN) as server:
            connection = await server.connect()
            sent = binary(LARGE).replace(b"Host: x", b"Host: x\r\nConnection: close", 1)
            server.loopback.plan([(HOUR, [0, 2 * HOUR, 1 << 60])], gpus=1)
            connection.writer.write(sent[:1000])
            assert (await connection.answer())[0] == 504
            connection.writer.write(sent[1000:])
            assert await asyncio.wait_for(connection.reader.read(), 20) == b""

    asyncio.run(run())


def test_a_large_request_that_is_not_whole_in_time_is_refused() -> None:
    async def run() -> None:
        async with running(OPEN, limits=HttpLimits(request_seconds=0.05)) as server:
            connection = await server.connect()
            connection.writer.write(binary(LARGE)[:-1])
            assert (await connection.answer())[0] == 408
            assert server.front.exchange.arriving() == server.front.exchange.arena.used == 0

    asyncio.run(run())


def test_a_client_that_leaves_in_the_middle_of_a_large_call_gives_back_its_memory() -> None:
    async def run() -> None:
        async with running(OPEN) as server:
            (await server.connect()).writer.write(binary(LARGE)[:-1])
            await until(lambda: server.front.exchange.arriving() == HELD)
            server.leave()
            await until(lambda: server.front.exchange.arriving() == 0)
            assert server.front.exchange.arena.used == 0
            assert server.front.exchange.admission.open() == 0

    asyncio.run(run())


def test_slow_clients_hold_no_more_than_a_part_of_the_memory() -> None:
    async def run() -> None:
        async with running(OPEN, memory=16 << 20) as server:
            slow = [await server.connect() for _ in range(3)]
            for connection in slow:
                connection.writer.write(binary(LARGE)[:-1])
            await until(lambda: server.network.native.held() > LARGE.nbytes)  # the third waits elsewhere
            assert server.front.exchange.arriving() == server.front.exchange.arena.used == 2 * HELD
            for connection in slow:
                connection.writer.write(binary(LARGE)[-1:])
            for connection in slow:
                assert (await connection.answer_bytes())[0] == 200

    asyncio.run(run())


def test_a_model_that_goes_while_a_large_call_arrives_is_told() -> None:
    async def run() -> None:
        async with running(OPEN) as server:
            connection = await server.connect()
            connection.writer.write(binary(LARGE)[:-1])
            await until(lambda: server.front.exchange.arriving() == HELD)
            server.front.models[0] = replace(OPEN, state="UNAVAILABLE")
            server.network.look()
            server.network.settle()
            connection.writer.write(binary(LARGE)[-1:])
            status, _, answer = await connection.answer()
            assert (status, answer["error"]) == (
                503,
                "model echo was loaded anew or unloaded while the call arrived",
            )
            assert server.front.exchange.arena.used == 0
            assert server.tally()[4] == {"deadline": 0, "overloaded": 0, "unavailable": 1, "bad_request": 0}
            assert server.tally()[2] == 0  # nobody broke a promise

    asyncio.run(run())


def test_a_large_call_may_arrive_while_other_things_of_its_model_change() -> None:
    async def run() -> None:
        async with running(OPEN) as server:
            connection = await server.connect()
            connection.writer.write(binary(LARGE)[:-1])
            await until(lambda: server.front.exchange.arriving() == HELD)
            server.front.models[0] = replace(OPEN, reason="it refuses everybody")
            server.network.look()
            server.network.settle()
            connection.writer.write(binary(LARGE)[-1:])
            assert (await connection.answer_bytes())[0] == 200

    asyncio.run(run())


def test_a_large_call_that_arrives_while_none_are_taken_is_told() -> None:
    async def run() -> None:
        async with running(OPEN) as server:
            connection = await server.connect()
            connection.writer.write(binary(LARGE)[:-1])
            await until(lambda: server.front.exchange.arriving() == HELD)
            server.front.exchange.admission.close(True)
            connection.writer.write(binary(LARGE)[-1:])
            status, _, answer = await connection.answer()
            assert (status, "took no calls when this one had arrived" in answer["error"]) == (503, True)

    asyncio.run(run())


def test_a_large_call_that_is_too_late_gives_back_its_memory_before_it_has_arrived() -> None:
    async def run() -> None:
        async with running(replace(OPEN, slo=100 * MILLISECOND)) as server:
            connection = await server.connect()
            connection.writer.write(binary(LARGE)[:-1])
            status, _, answer = await connection.answer()
            assert (status, "model echo cannot answer within 100 ms" in answer["error"]) == (504, True)
            assert server.front.exchange.arriving() == server.front.exchange.arena.used == 0
            connection.writer.write(binary(LARGE)[-1:] + asking([1, 2], timeout=60_000_000))
            assert (await connection.answer())[0] == 200

    asyncio.run(run())
