"""The native network: what it refuses and counts itself, and what it holds of many and of bad clients."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
import socket
import zlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from astrarium.core.errors import extension
from astrarium.core.units import MILLISECOND, SECOND
from astrarium.server.contract import Kind, ModelCard, Refused
from astrarium.server.control.calls import refusal as refusal_of
from astrarium.server.control.tickets import Ticket
from astrarium.server.http.bodies import refusal
from astrarium.server.http.network import NativeNetwork
from astrarium.server.http.server import serve_http
from astrarium.server.settings import HttpLimits
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.state import Outcome
from tests.support.http_connection import BODY, LONG, Connection, request
from tests.support.server_fakes import HOUR, FakeService, LoopbackFront, Way, serving, until

pytestmark = pytest.mark.skipif(extension("_front") is None, reason="needs the native extension")

PLAIN = ModelCard(
    "echo",
    "fake",
    (TensorSpec("IN", "FP32", (2,)),),
    (TensorSpec("OUT_IN", "FP32", (2,)),),
    max_batch=8,
    slo=HOUR,
    priorities={2: HOUR},
    applications=("maps", "chat"),
)
OPEN = replace(
    PLAIN, inputs=(TensorSpec("IN", "FP32", (-1,)),), outputs=(TensorSpec("OUT_IN", "FP32", (-1,)),)
)


class Running:
    """A network over a loopback, and connections to it that are closed in the end."""

    def __init__(self, front: LoopbackFront, network: NativeNetwork, port: int) -> None:
        self.front, self.loopback, self.network, self.port = front, front.loopback, network, port
        self._connections: list[Connection] = []

    async def connect(self) -> Connection:
        self._connections.append(await Connection.to(self.port))
        return self._connections[-1]

    def tally(self) -> Any:
        """What is counted of the first model; an answer is sent before it is."""
        self.network.settle()
        return self.front.exchange.tally(0)

    def bridge(self) -> Any:
        front: Any = extension("_front")
        return front.Bridge(self.front.exchange)

    def leave(self) -> None:
        for connection in self._connections:
            connection.writer.close()


@asynccontextmanager
async def running(
    *cards: ModelCard, limits: HttpLimits | None = None, by_hand: bool = False, **settings: int
) -> AsyncIterator[Running]:
    front = LoopbackFront(*(cards or (PLAIN,)), **settings)
    http = await serve_http(FakeService(), limits=limits, native_front=front)
    assert http.network is not None
    if not by_hand:
        front.loopback.start()
    found = Running(front, http.network, http.port)
    try:
        yield found
    finally:
        found.leave()
        await http.stop(grace=1.0)
        front.loopback.stop()


def asking(values: Iterable[float], model: str = "echo", **parameters: Any) -> bytes:
    data = list(values)
    tensor = {"name": "IN", "shape": [1, len(data)], "datatype": "FP32", "data": data}
    return request(json.dumps({"inputs": [tensor], "parameters": parameters}), model)


def binary(array: Any) -> bytes:
    size: int = array.nbytes
    tensor: dict[str, Any] = {"name": "IN", "shape": list(array.shape), "datatype": "FP32"}
    tensor["parameters"] = {"binary_data_size": size}
    body = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    head = (
        f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: {len(body)}\r\n"
    )
    return f"{head}Content-Length: {len(body) + size}\r\n\r\n".encode() + body + bytes(array)


# What is refused here is refused as the long way does


@pytest.mark.parametrize(
    ("outcome", "cause", "reason"),
    [
        ("failed", "model_error", 'ValueError: "no"\n\x01 such \\ layer, naïve'),
        ("failed", "worker_lost", "its worker died"),
        ("dropped", "expired", ""),
        ("dropped", "sacrificed", ""),
        ("dropped", "unserved", ""),
    ],
)
def test_a_call_without_an_answer_is_told_what_the_long_way_tells(
    outcome: str, cause: str, reason: str
) -> None:
    async def run() -> None:
        async with running() as server:
            server.loopback.end_with(outcome, cause, reason)
            status, headers, answer = await (await server.connect()).ask(request())
            call = SimpleNamespace(model="echo")
            ended = SimpleNamespace(call=call, outcome=Outcome[outcome.upper()], cause=cause, reason=reason)
            expected = refusal(refusal_of(cast(Ticket, ended)))
            assert (status, answer) == (expected.status, json.loads(expected.body))
            assert int(headers.pop("content-length")) == len(expected.body)
            assert headers.pop("date")
            assert headers == {name.decode(): value.decode() for name, value in expected.headers}
            accepted, _, declined, ended_by, *_ = server.tally()
            assert (accepted, ended_by) == (1, {(outcome, cause): 1})
            assert declined == (outcome == "dropped" and cause != "unserved")

    asyncio.run(run())


def overloaded(reason: str) -> tuple[int, dict[str, str]]:
    reply = refusal(Refused(Kind.OVERLOADED, f"overloaded: {reason}", 1.0))
    return reply.status, json.loads(reply.body)


def test_no_more_calls_are_taken_than_may_be_open() -> None:
    async def run() -> None:
        async with running(by_hand=True, most_open=1) as server:
            first, second = await server.connect(), await server.connect()
            first.writer.write(request())
            [(number, *_)] = await server.front.popped()
            status, headers, answer = await second.ask(request())
            assert (status, answer) == overloaded("1 calls are open already, the most that may be")
            assert (headers["retry-after"], headers["x-astrarium-retry-after-ms"]) == ("1", "1000")
            server.loopback.end(number)
            assert (await first.answer())[0] == 200
            assert server.tally()[4] == {"deadline": 0, "overloaded": 1, "unavailable": 0}

    asyncio.run(run())


def test_a_model_with_too_many_open_calls_refuses_more() -> None:
    async def run() -> None:
        async with running(by_hand=True) as server:
            server.loopback.plan([(HOUR, [0, HOUR // 3, 1 << 60])], gpus=1)
            for _ in range(4):
                (await server.connect()).writer.write(request())
            open_calls = await server.front.popped(4)
            status, _, answer = await (await server.connect()).ask(request())
            reason = f"model echo has 4 calls open, more than can be answered in {HOUR / MILLISECOND:g} ms"
            assert (status, answer) == overloaded(reason)
            for number, *_ in open_calls:
                server.loopback.end(number)

    asyncio.run(run())


def test_a_call_that_cannot_be_in_time_is_refused() -> None:
    async def run() -> None:
        async with running() as server:
            server.loopback.plan([(HOUR, [0, 2 * SECOND, 1 << 60])], gpus=1)
            connection = await server.connect()
            status, headers, answer = await connection.ask(asking([1, 2], timeout=25_000))
            start = "model echo cannot answer within 25 ms: one request alone takes 2 s, and "
            assert status == 504
            assert answer["error"].startswith(start)
            assert answer["error"].endswith(" had passed")
            assert headers.keys() == {"date", "content-type", "content-length"}
            assert (await connection.ask(request()))[0] == 200
            _, _, declined, _, refused, *_ = server.tally()
            assert (declined, refused) == (0, {"deadline": 1, "overloaded": 0, "unavailable": 0})

    asyncio.run(run())


def test_full_memory_is_told_from_memory_that_is_too_small() -> None:
    async def run() -> None:
        async with running(OPEN, by_hand=True, memory=1 << 16) as server:
            first, second = await server.connect(), await server.connect()
            first.writer.write(binary(np.zeros((1, 8192), np.float32)))
            [(number, *_)] = await server.front.popped()
            status, _, answer = await second.ask(request())
            assert (status, answer) == overloaded("the shared memory for tensors is full")
            assert server.front.exchange.admission.open() == 1
            server.loopback.end(number, "failed", "worker_lost", "gone")
            assert (await first.answer())[0] == 500
            assert server.front.exchange.arena.used == 0
            second.writer.write(binary(np.zeros((1, 16384), np.float32)))
            await until(lambda: server.network.native.long_way() == {"memory": 1})

    asyncio.run(run())


def test_answers_of_unequal_shapes_and_answers_that_are_not_there_are_failures() -> None:
    async def run() -> None:
        async with running(OPEN, by_hand=True) as server:
            connection = await server.connect()
            for shapes, said in [
                ([[([1, 1], 4)], [([1, 2], 8)]], "model echo: the rows of one call have answers of unequal"),
                ([[([1, 1], 1 << 62)]] * 2, "the worker's answer is not what it said it is"),
                ([[]] * 2, "the worker's answer is not what it said it is"),
            ]:
                two_rows = {"name": "IN", "shape": [2, 1], "datatype": "FP32", "data": [1, 2]}
                connection.writer.write(request(json.dumps({"inputs": [two_rows]})))
                [(number, *_)] = await server.front.popped()
                server.loopback.end(number, shapes=shapes)
                status, _, answer = await connection.answer()
                assert (status, said in answer["error"]) == (500, True)

    asyncio.run(run())


def test_what_native_code_cannot_explain_goes_the_long_way_and_is_counted() -> None:
    async def run() -> None:
        async with running() as server:
            connection = await server.connect()
            unknown: list[tuple[str, Any]] = [("priority", 7), ("application", "music")]
            for why, value in unknown:
                await connection.ask(asking([1, 2], **{why: value}))
                assert server.network.native.long_way()[why] == 1
            server.front.exchange.admission.close(True)
            await connection.ask(request())
            assert server.network.native.long_way()["closed"] == 1
            server.front.exchange.admission.close(False)
            good = asking([1, 2], priority=2, application="chat")
            assert (await connection.ask(good))[2]["outputs"][0]["data"] == [1.0, 2.0]
            assert sum(server.network.native.long_way().values()) == 3

    asyncio.run(run())


def test_calls_are_counted_and_the_last_ones_remembered() -> None:
    async def run() -> None:
        async with running() as server:
            connection = await server.connect()
            for _ in range(5):
                assert (await connection.ask(request()))[0] == 200
            accepted, items, declined, ended, refused, latency, queueing, success, fail, queue = (
                server.tally()
            )
            assert (accepted, items, declined, ended) == (5, 5, 0, {("in_time", ""): 5})
            assert refused == {"deadline": 0, "overloaded": 0, "unavailable": 0}
            assert (sum(latency[0]), sum(queueing[0]), success[0], fail, queue[0]) == (5, 5, 5, (0, 0), 5)
            assert latency[1] == success[1] > 0
            following, calls = server.front.exchange.last_calls(0, 2)
            assert (following, len(calls)) == (5, 3)
            for model, gpu, _, size, in_time, stages in calls:
                assert (model, gpu, size, in_time) == (0, 0, 1, True)
                assert list(stages) == sorted(stages)

    asyncio.run(run())


# Clients: many, slow, gone


@pytest.fixture
def descriptors() -> None:
    """Enough for both ends of a thousand connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_thousand_connections_each_get_their_own_answers(threads: int) -> None:
    async def run() -> None:
        async with running(threads=threads) as server:
            connections = [await server.connect() for _ in range(1000)]
            for turn in range(2):
                for at, connection in enumerate(connections):
                    connection.writer.write(asking([at, turn]))
                for at, connection in enumerate(connections):
                    status, _, answer = await connection.answer()
                    assert (status, answer["outputs"][0]["data"]) == (200, [at, turn])
            assert len(server.network.connections) == 1000
            assert server.tally()[:2] == (2000, 2000)
            assert all(spent > 0 for spent in server.network.native.cpu_ns())
            server.leave()
            await until(lambda: len(server.network.connections) == 0)
            assert server.front.exchange.arena.used == 0

    asyncio.run(run())


def test_one_byte_at_a_time_is_still_a_request() -> None:
    async def run() -> None:
        async with running() as server:
            connection = await server.connect()
            connection.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in request() + request():
                connection.writer.write(bytes([byte]))
                await asyncio.sleep(0)
            for _ in range(2):
                assert (await connection.answer())[0] == 200
            assert server.network.native.long_way() == {}
            assert server.network.native.held() == 0

    asyncio.run(run())


def test_a_client_that_does_not_read_gets_all_of_it_later() -> None:
    async def run() -> None:
        array = np.arange(1_000_000, dtype=np.float32)[None]
        async with running(OPEN) as server:
            connection = await server.connect()
            connection.writer.write(binary(array) + request())
            await until(lambda: server.tally()[1] >= 1)  # more than most sockets take at once
            head = await connection.reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"inference-header-content-length: ")[2].split(b"\r\n")[0])
            told = json.loads(await connection.reader.readexactly(size))
            assert told["outputs"][0]["shape"] == [1, 1_000_000]
            assert await connection.reader.readexactly(array.nbytes) == array.tobytes()
            assert (await connection.answer())[0] == 200
            assert server.front.exchange.arena.used == 0

    asyncio.run(run())


def test_a_client_that_leaves_gives_back_what_it_held() -> None:
    async def run() -> None:
        async with running(by_hand=True) as server:
            connection, another = await server.connect(), await server.connect()
            connection.writer.write(request())
            another.writer.write(request()[:-1])
            [(number, *_)] = await server.front.popped()
            await until(lambda: server.network.native.held() == len(request()) - 1)
            server.leave()
            await until(lambda: len(server.network.connections) == 0)
            assert server.network.native.held() == 0
            assert server.front.exchange.admission.open() == 1
            server.loopback.end(number)
            await until(lambda: server.front.exchange.admission.open() == 0)
            assert server.front.exchange.arena.used == 0
            assert server.tally()[3] == {("in_time", ""): 1}

    asyncio.run(run())


# Large requests: their tensors are received straight where workers find them

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
            assert server.tally()[4] == {"deadline": 1, "overloaded": 0, "unavailable": 0}
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
            assert server.tally()[4] == {"deadline": 0, "overloaded": 0, "unavailable": 1}
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


def test_what_comes_too_early_waits_and_is_not_read_without_end() -> None:
    async def run() -> None:
        async with running(by_hand=True) as server:
            connection = await server.connect()
            connection.writer.write(request() * 5_000)
            [(number, *_)] = await server.front.popped()
            await until(lambda: server.network.native.held() > 0)
            assert server.network.native.held() < 1 << 20
            server.loopback.start()
            server.loopback.end(number)
            for _ in range(5_000):
                assert (await connection.answer())[0] == 200
            assert server.network.native.held() == 0

    asyncio.run(run())


def test_models_come_and_go_under_load() -> None:
    async def run() -> None:
        other = replace(PLAIN, name="other")
        async with running(PLAIN, other, threads=2) as server:
            going = True

            async def ask(at: int) -> int:
                connection, asked = await server.connect(), 0
                while going:
                    status, _, answer = await connection.ask(asking([at, asked]))
                    assert (status, answer["outputs"][0]["data"]) == (200, [at, asked])
                    asked += 1
                return asked

            clients = [asyncio.create_task(ask(at)) for at in range(16)]
            for _ in range(50):
                unloaded = replace(PLAIN, state="UNAVAILABLE")
                for card in (unloaded, replace(PLAIN)):
                    server.front.models[0] = card
                    server.network.look()
                    server.network.settle()
                    await asyncio.sleep(0.001)
            going = False
            assert sum(await asyncio.gather(*clients)) >= 16
            assert server.tally()[1] > 0

    asyncio.run(run())


def test_stopping_waits_no_longer_than_it_may_and_leaves_nobody_waiting() -> None:
    async def run() -> None:
        front = LoopbackFront(PLAIN)
        http = await serve_http(FakeService(), native_front=front)
        idle, waiting = await Connection.to(http.port), await Connection.to(http.port)
        waiting.writer.write(request())
        while not (tickets := front.loopback.pop()):
            await asyncio.sleep(0.001)
        stopping = asyncio.create_task(http.stop(grace=0.1))
        assert await asyncio.wait_for(idle.reader.read(), 60) == b""
        await stopping
        assert await asyncio.wait_for(waiting.reader.read(), 60) == b""
        front.loopback.end(tickets[0][0])  # nobody takes it back any more, and nothing breaks
        for connection in (idle, waiting):
            connection.writer.close()

    asyncio.run(run())


# The long way is what it is without native threads

INFER = "POST /v2/models/echo/infer HTTP/1.1\r\n"
OFFER = "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"
CHUNKED = "Transfer-Encoding: chunked\r\n\r\n"


def packed(body: bytes) -> str:
    """A request with a compressed body; each character is one of its bytes."""
    return f"{INFER}Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n" + body.decode("latin-1")


def tensor_of(datatype: str, data: bytes, rows: int = 1, **more: Any) -> str:
    tensor = {"name": "IN", "shape": [rows, 2], "datatype": datatype}
    body = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": len(data)}}], **more})
    first, size = f"POST /v2/models/all_{datatype.lower()}/infer HTTP/1.1", len(body) + len(data)
    head = f"{first}\r\nContent-Length: {size}\r\n"
    return f"{head}Inference-Header-Content-Length: {len(body)}\r\n\r\n{body}" + data.decode("latin-1")


def texts(data: Any, **more: Any) -> str:
    """Text for a model that gives it back: rows of a JSON list, or two elements in binary."""
    if isinstance(data, bytes):
        return tensor_of("BYTES", data, **more)
    tensor = {"name": "IN", "shape": [len(data), 2], "datatype": "BYTES", "data": data}
    return request(json.dumps({"inputs": [tensor], **more}), "all_bytes").decode()


UNUSUAL = {
    "expect": f"{INFER}Expect: 100-continue\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}",
    "http 1.0": f"POST /v2/models/echo/infer HTTP/1.0\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}",
    "close": f"{INFER}Connection: close\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}",
    "head": "HEAD /v2 HTTP/1.1\r\n\r\n",
    "lines that end with half an end": request(BODY).decode().replace("\r\n", "\n"),
    "in turns": (request(LONG) + request() + b"GET /v2 HTTP/1.1\r\n\r\n" + request()).decode(),
    "no length": f"{INFER}\r\n",
    "close, then more": f"{INFER}Connection: close\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}"
    + 2 * f"{INFER}\r\n",
    "expect, and a mistake": f"{INFER}Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
    "chunks": f"{INFER}{CHUNKED}{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n",
    "chunks with an extension": f"{INFER}{CHUNKED}{len(BODY):x};a=b\r\n{BODY}\r\n0\r\n\r\n",
    "chunks with a trailer": f"{INFER}{CHUNKED}{len(BODY):x}\r\n{BODY}\r\n0\r\nA: b\r\n\r\n",
    "an unfinished chunk": f"{INFER}{CHUNKED}{len(BODY):x}\r\n{BODY}x\r\n0\r\n\r\n",
    "no chunk": f"{INFER}{CHUNKED}0\r\n\r\n",
    "a length of no chunk": f"{INFER}{CHUNKED}-1\r\n\r\n0\r\n\r\n",
    "chunks and a length": f"{INFER}Content-Length: 5\r\n{CHUNKED}0\r\n\r\n",
    "a charset": request(BODY, "echo", "Content-Type: application/json ; charset=utf-8").decode(),
    "an answer in gzip": request(BODY, "echo", "Accept-Encoding: gzip").decode("latin-1"),
    "an answer in deflate": request(BODY, "echo", "Accept-Encoding: DEFLATE").decode("latin-1"),
    "an answer in anything": request(BODY, "echo", "Accept-Encoding: gzip, br").decode("latin-1"),
    "a mistake with gzip": request("{}", "echo", "Accept-Encoding: gzip").decode("latin-1"),
    "a body in gzip": packed(gzip.compress(BODY.encode(), mtime=0)),
    "a body in deflate": packed(zlib.compress(BODY.encode())),
    "no body in gzip": packed(BODY.encode()),
    "half a body in gzip": packed(gzip.compress(BODY.encode(), mtime=0)[:-9]),
    "more than a body in gzip": packed(2 * gzip.compress(BODY.encode(), mtime=0)),
    "a bomb": packed(gzip.compress(bytes(10_000_000), mtime=0)),
    "texts": texts([["a", 'é"\\\n\x01\t'], ["", "longer than the others"]]),
    "texts in binary": texts([["a", "b"], ["", "longer"]], parameters={"binary_data_output": True}),
    "no UTF-8 in the answer": texts(b"\1\0\0\0a\x19\0\0\0it's \xff\xfe\\ no text at \n all"),
    "more text than it says": texts(b"\1\0\0\0a\xff\0\0\0it's \xff\xfe\\ no text at \n all"),
    "too few texts": texts(b"\1\0\0\0a"),
    "BF16": tensor_of("BF16", b"1234", parameters={"binary_data_output": True}),
    "BF16 in JSON": tensor_of("BF16", b"1234"),
    "an id in another alphabet": request(BODY[:-1] + ', "id": "\\u00e9\\ud83d\\ude00\\n"}').decode(),
    "unknown fields": request(
        BODY[:-1] + ', "more": "\\n", "less": null, "parameters": {"x": 1.5}}'
    ).decode(),
    "an offer to upgrade": request(BODY, "echo", *OFFER).decode(),
    "an offer to upgrade, and the end": request(
        BODY, "echo", "Connection: Upgrade, close", OFFER[1]
    ).decode(),
    "an offer to upgrade, the long way": request(LONG, "echo", *OFFER).decode(),
    "a body that offers an upgrade": texts(b"\1\0\0\0a\x13\0\0\0a: b\r\nUpgrade: h2c\r\n"),
    "an unknown field twice": request(BODY[:-1] + ', "more": 1, "more": 2}').decode(),
}
UPGRADE = b"GET /v2 HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
TOO_LARGE = f"{INFER}Content-Length: 99999999999\r\n\r\n{BODY}"
LAST = b"GET /v2/health/live HTTP/1.1\r\nConnection: close\r\n\r\n"


async def said(port: int, sent: bytes) -> bytes:
    """All that the server says until it closes, without dates."""
    connection = await Connection.to(port)
    connection.writer.write(sent)
    answer = await asyncio.wait_for(connection.reader.read(), 60)
    connection.writer.close()
    lines = answer.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.startswith(b"date: "))


SHORT = {
    *("expect", "http 1.0", "close", "chunks", "a charset", "an answer in gzip", "an answer in deflate"),
    *("a body in gzip", "a body in deflate", "texts", "texts in binary", "no UTF-8 in the answer", "BF16"),
    *("an id in another alphabet", "unknown fields", "an offer to upgrade"),
}


@pytest.mark.parametrize("case", sorted(SHORT))
def test_features_go_the_short_way(case: str) -> None:
    async def run() -> None:
        service = FakeService()
        async with serving(service) as server:
            await said(server.http, UNUSUAL[case].encode("latin-1") + LAST)
            assert (server.taken, service.long_way) == (1, [])

    asyncio.run(run())


@pytest.mark.parametrize("case", UNUSUAL)
def test_unusual_requests_are_answered_as_without_native_threads(case: str) -> None:
    async def by(way: Way) -> bytes:
        async with serving(FakeService(), way=way) as server:
            return await said(server.http, UNUSUAL[case].encode("latin-1") + LAST)

    async def run() -> None:
        answer = await by("native")
        assert answer == await by("long")
        assert answer

    asyncio.run(run())


def test_an_upgrade_is_not_made() -> None:
    async def run(way: Way) -> Any:
        async with serving(FakeService(), way=way) as server:
            connection = await Connection.to(server.http)
            status, _, answer = await connection.ask(UPGRADE)
            connection.writer.close()
            return status, answer

    assert asyncio.run(run("native")) == asyncio.run(run("long"))
    assert asyncio.run(run("native"))[0] == 200


def test_a_half_closed_connection_is_closed() -> None:
    async def run(way: Way) -> bytes:
        service = FakeService(gate=asyncio.Event())
        async with serving(service, way=way) as server:
            connection = await Connection.to(server.http)
            connection.writer.write(request(LONG, "slow"))
            await until(lambda: service.calls)
            connection.writer.write_eof()
            answer = await asyncio.wait_for(connection.reader.read(), 60)
            connection.writer.close()
            return answer

    assert asyncio.run(run("native")) == asyncio.run(run("long")) == b""


def test_a_long_answer_to_a_client_that_does_not_read_waits_for_it() -> None:
    async def run() -> None:
        values = [0.5] * 1_000_000
        tensor = {"name": "IN", "shape": [1, len(values)], "datatype": "FP32", "data": values}
        async with serving(FakeService(), way="native") as server:
            connection = await Connection.to(server.http)
            connection.writer.write(request(json.dumps({"inputs": [tensor]})) + request())
            await until(lambda: server.service.calls and not server.service.held)
            assert (await connection.answer())[2]["outputs"][0]["data"] == values
            assert (await connection.answer())[0] == 200
            connection.writer.close()

    asyncio.run(run())


def test_a_request_that_is_not_whole_in_time_is_refused_by_either() -> None:
    async def by(way: Way, sent: bytes) -> bytes:
        async with serving(FakeService(), HttpLimits(request_seconds=0.05), way=way) as server:
            return await said(server.http, sent)

    async def run() -> None:
        parts = request()[:-1], request()[:20], request(LONG)[:-1], b"GET /v2 HT"
        for sent in (*parts, TOO_LARGE.encode()):
            assert await by("native", sent) == await by("long", sent)

    asyncio.run(run())


# Calls that Python decides on


async def bridged(bridge: Any) -> Any:
    """The next call that comes over the bridge."""
    async with asyncio.timeout(60):
        while not (found := bridge.pop()):
            await asyncio.sleep(0.001)
    return found[0]


def test_a_call_over_the_bridge_is_answered_with_what_python_says_of_it() -> None:
    async def run() -> None:
        async with running(OPEN, by_hand=True) as server:
            bridge, connection = server.bridge(), await server.connect()
            connection.writer.write(asking([1, 2]))
            number, model, rows, _, (received, admitted, deadline), rooms, shapes = await bridged(bridge)
            assert (model, rows, shapes, deadline - received) == (0, 1, [((1, 2), 8)], HOUR)
            assert received <= admitted
            block, replies, room = rooms
            memory = server.front.memory
            assert np.frombuffer(memory[block : block + 8], "<f4").tolist() == [1, 2]
            memory[replies : replies + 12] = np.array([3, 4, 5], "<f4").tobytes()
            assert room >= 12
            batch = (7, 1, 4, received + 10, received + 20, received + 30, received + 40)
            bridge.end(number, Outcome.IN_TIME, "", "", [[((1, 3), 12)]], False, batch)
            status, _, answer = await connection.answer()
            assert (status, answer["outputs"][0]["data"]) == (200, [3, 4, 5])
            assert server.tally()[3] == {("in_time", ""): 1}
            _, [(_, gpu, tag, size, in_time, stages)] = server.front.exchange.last_calls(0, 0)
            assert (gpu, tag, size, in_time) == (1, 7, 4, True)
            assert stages[:5] == (received, admitted, received + 10, received + 30, received + 40)
            with pytest.raises(IndexError):
                bridge.end(number, Outcome.IN_TIME, "", "", [None], False, None)

    asyncio.run(run())


def test_a_policys_own_reason_to_drop_a_call_is_told_and_counted_as_another() -> None:
    async def run() -> None:
        async with running(by_hand=True) as server:
            bridge, connection = server.bridge(), await server.connect()
            connection.writer.write(request())
            number, *_, shapes = await bridged(bridge)
            assert shapes is None
            bridge.end(number, Outcome.DROPPED, "bored", "", [None], False, None)
            status, _, answer = await connection.answer()
            reason = "model echo dropped the call so that others are in time (bored)"
            assert (status, answer) == overloaded(reason)
            assert server.tally()[3] == {("dropped", "other"): 1}

    asyncio.run(run())
