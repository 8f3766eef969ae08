"""Clients who wait for their answers before they send again are not refused by a real server."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
from tritonclient.grpc.aio import InferenceServerClient as GrpcClient

from tests.support.server.live_server import Server, serving

CLIENTS = 250  # over HTTP, and as many over gRPC
# All have their answers in 2.5 s; in half of the objective, 400 would have.
SCENARIO = """
cluster: {gpus: 1}
models:
  small: {profile: {table: {1: 40ms, 8: 40ms}}, slo: 4s, inputs: [{name: X, datatype: UINT8, shape: [16]}]}
  large: {profile: {table: {1: 40ms, 8: 40ms}}, slo: 4s, inputs: [{name: X, datatype: UINT8, shape: [65536]}]}
  texts: {profile: {lengths: {16: {1: 10ms, 8: 10ms}, 512: {1: 40ms, 8: 80ms}}, rounded: true}, slo: 4s,
    inputs: [{name: X, datatype: UINT8, shape: ["1..512"]}]}
"""
# Each has answered as many calls as ask in .8 of its objective; seconds, since the machine may be busy.
TIGHT = """
cluster: {gpus: 1}
models:
  one: {profile: {table: [4s]}, slo: 5s, inputs: [{name: X, datatype: UINT8, shape: [16]}]}
  many: {profile: {table: {1: 1s, 64: 1s}}, slo: 5s, inputs: [{name: X, datatype: UINT8, shape: [16]}]}
  crowd: {profile: {table: {1: 1s, 64: 1s}}, slo: 20s, inputs: [{name: X, datatype: UINT8, shape: [16]}]}
"""
TEXTS = (16, 16, 16, 16, 16, 16, 16, 512)  # in .9 of the objective, 360 of the longest have their answers


def request(model: str, size: int, parameters: str = "") -> bytes:
    binary = f'"parameters":{{"binary_data_size":{size}}}'
    tensor = f'{{{parameters}"inputs":[{{"name":"X","datatype":"UINT8","shape":[1,{size}],{binary}}}]}}'
    lengths = f"Inference-Header-Content-Length: {len(tensor)}\r\nContent-Length: {len(tensor) + size}\r\n"
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: a\r\n{lengths}\r\n{tensor}"
    return head.encode() + bytes(size)


async def over_http(address: str, model: str, size: int, rounds: int) -> None:
    call = request(model, size)
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    for _ in range(rounds):
        writer.write(call)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
    writer.close()


async def over_channel(client: Any, model: str, size: int, rounds: int) -> None:
    tensor = over_grpc.InferInput("X", [1, size], "UINT8")
    tensor.set_data_from_numpy(np.zeros((1, size), np.uint8))
    for _ in range(rounds):
        await client.infer(model, [tensor])


async def all_loops(
    server: Server, model: str, sizes: Sequence[int], rounds: int, clients: int = CLIENTS
) -> None:
    """Let so many clients loop over HTTP, and as many over gRPC."""
    mine = list(islice(cycle(sizes), clients))
    async with GrpcClient(server.grpc) as client:
        loops = [over_http(server.http, model, size, rounds) for size in mine]
        await asyncio.gather(*loops, *(over_channel(client, model, size, rounds) for size in mine))


def test_a_call_counts_as_received_when_it_came(tmp_path: Path) -> None:
    """A server that stands still reads it too late, and says so."""
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    with serving(tmp_path / "scenario.yaml") as server:
        host, port = server.http.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as client:
            client.sendall(request("small", 16))
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
            server.process.send_signal(signal.SIGSTOP)
            while not stands_still(server.process.pid):
                time.sleep(0.01)
            client.sendall(request("small", 16, '"parameters":{"timeout":500000},'))
            time.sleep(1.0)
            server.process.send_signal(signal.SIGCONT)
            assert client.recv(1 << 16).startswith((b"HTTP/1.1 429", b"HTTP/1.1 504"))


def stands_still(process: int) -> bool:
    threads = Path(f"/proc/{process}/task").glob("*/stat")
    return all(b") T " in thread.read_bytes() for thread in threads)


def test_clients_in_closed_loops_are_not_refused(tmp_path: Path) -> None:
    """Small and large bodies, and texts of unequal length, over HTTP and gRPC, after idleness."""
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    with serving(tmp_path / "scenario.yaml") as server:
        for model, sizes in (("small", [16]), ("large", [65536]), ("texts", TEXTS)):
            asyncio.run(all_loops(server, model, sizes, rounds=2))
            assert server.metric("astrarium_refused_total", model=model, reason="overloaded") == 0
        assert server.metric("astrarium_unaccounted") == 0
        parts = ("network", "scheduler", "python")
        assert all(server.metric("astrarium_path_seconds_total", part=part) > 0 for part in parts)


@pytest.mark.thorough
@pytest.mark.parametrize(("model", "clients"), [("one", 1), ("many", 256), ("crowd", 1024)])
def test_a_cycle_that_fits_into_its_objective_is_not_refused(
    tmp_path: Path, model: str, clients: int
) -> None:
    (tmp_path / "scenario.yaml").write_text(TIGHT)
    with serving(tmp_path / "scenario.yaml") as server:
        if clients == 1:
            asyncio.run(over_http(server.http, model, 16, rounds=2))
        else:
            asyncio.run(all_loops(server, model, [16], 2, clients // 2))
        assert server.metric("astrarium_refused_total", model=model) == 0
        assert server.metric("astrarium_accepted_total", model=model) == 2 * clients
