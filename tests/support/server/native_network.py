"""A native network over a loopback: cards, connections, requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from astrarium.server.contract import Kind, ModelCard, Refused
from astrarium.server.http.network import NativeNetwork
from astrarium.server.http.replies import refusal
from astrarium.server.http.server import serve_http
from astrarium.server.settings import HttpLimits
from astrarium.serving.live.tensors import TensorSpec
from tests.support.server.fakes import HOUR, FakeService, LoopbackFront
from tests.support.server.http_connection import Connection, request

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
        self.front = front
        self.loopback = front.loopback
        self.network = network
        self.port = port
        self._connections: list[Connection] = []

    async def connect(self) -> Connection:
        self._connections.append(await Connection.to(self.port))
        return self._connections[-1]

    def tally(self) -> Any:
        """What is counted of the first model; an answer is sent before it is."""
        self.network.settle()
        return self.front.exchange.tally(0)

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
    server = Running(front, http.network, http.port)
    try:
        yield server
    finally:
        server.leave()
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


def overloaded(reason: str) -> tuple[int, dict[str, str]]:
    reply = refusal(Refused(Kind.OVERLOADED, f"overloaded: {reason}", 1.0))
    return reply.status, json.loads(reply.body)
