"""The whole server with real worker processes, spoken to with real clients."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.grpc.aio import InferenceServerClient as GrpcClient
from tritonclient.utils import InferenceServerException

from tests.support.paths import ROOT
from tests.support.server.live_server import PATIENCE, Server, eventually, serving

EXAMPLES = ROOT / "examples"
SCENARIO = """
cluster: {gpus: 2}
models:
  quick: {profile: {alpha: 0.1ms, beta: 1ms}, slo: 20s}
  slow: {profile: {table: {1: 1500ms, 8: 1600ms}}, slo: 60s, loaded: true}
  steady: {profile: {table: {1: 100ms, 8: 100ms}}, slo: 20s}
  spare: {profile: {alpha: 0.1ms, beta: 1ms}, slo: 20s, loaded: false}
  broken: {profile: {alpha: 1ms, beta: 1ms}, slo: 20s, backend: {python: broken.py:run},
           inputs: [{name: X, datatype: FP32, shape: [1]}], outputs: [{name: Y, datatype: FP32, shape: [1]}]}
  shouted:
    profile: {alpha: 1ms, beta: 1ms}
    slo: 20s
    backend: {python: broken.py:count}
    inputs: [{name: LENGTH, datatype: INT64, shape: [1], values: [0, 5]}]
    outputs: [{name: DOUBLE, datatype: INT64, shape: [1]}]
    preprocess: broken.py:length
    accepts: [{name: TEXT, datatype: BYTES, shape: [1]}]
policy: {name: eager}
"""
BROKEN = """
import numpy as np

def run(X):
    if (X == -666).any():
        raise ValueError("this model has a bug")
    return {"Y": X}

def count(LENGTH):
    return {"DOUBLE": 2 * LENGTH}

def length(TEXT):
    if b"bad" in TEXT.ravel():
        raise ValueError("a bad word")
    return {"LENGTH": np.array([[len(one[0])] for one in TEXT], np.int64)}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    (folder / "scenario.yaml").write_text(SCENARIO)
    (folder / "broken.py").write_text(BROKEN)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(folder / "scenario.yaml", "--record", str(folder / "recording.jsonl")) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[over_http.InferenceServerClient]:
    with over_http.InferenceServerClient(server.http, network_timeout=PATIENCE) as client:
        yield client


def values(*rows: list[float], module: object = over_http, name: str = "INPUT") -> list[object]:
    array = np.array(rows, np.float32)
    tensor = module.InferInput(name, array.shape, "FP32")  # type: ignore[attr-defined]
    tensor.set_data_from_numpy(array)
    return [tensor]


def test_an_emulated_model_answers_with_what_it_was_sent(client: over_http.InferenceServerClient) -> None:
    answer = client.infer("quick", values([1.0, 2.0, 3.0]))
    assert answer.as_numpy("OUTPUT").tolist() == [[1, 2, 3]]


def test_many_callers_at_once_each_get_their_own_answer_over_grpc(server: Server) -> None:
    async def all_of_them() -> list[list[float]]:
        async with GrpcClient(server.grpc) as client:
            calls = (client.infer("quick", values([float(n), n / 2], module=over_grpc)) for n in range(100))
            return [answer.as_numpy("OUTPUT").ravel().tolist() for answer in await asyncio.gather(*calls)]

    assert asyncio.run(all_of_them()) == [[n, n / 2] for n in range(100)]


def test_rows_of_one_call_come_back_in_order(client: over_http.InferenceServerClient) -> None:
    rows = [[float(n), -float(n)] for n in range(5)]
    assert client.infer("quick", values(*rows)).as_numpy("OUTPUT").tolist() == rows


def test_a_deadline_that_cannot_be_met_is_refused_at_once(client: over_http.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match=r"cannot answer within 0\.01 ms") as refused:
        client.infer("quick", values([1.0]), timeout=10)
    assert "504" in str(refused.value.status())


def test_a_broken_model_says_what_broke_and_where(client: over_http.InferenceServerClient) -> None:
    reason = r"broken\.py:6: ValueError: this model has a bug"
    with pytest.raises(InferenceServerException, match=reason) as failed:
        client.infer("broken", values([-666.0], name="X"))
    assert "500" in str(failed.value.status())


def test_preprocessing_turns_what_clients_send_into_what_the_model_takes(
    client: over_http.InferenceServerClient,
) -> None:
    def ask(word: str) -> int:
        tensor = over_http.InferInput("TEXT", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[word]], object))
        return int(client.infer("shouted", [tensor]).as_numpy("DOUBLE").item())

    assert ask("four") == 8
    with pytest.raises(InferenceServerException, match="a bad word"):
        ask("bad")
    expected = r"the model does not take: input LENGTH\[0, 0\]: expected values from 0 to 5 \(got 6\)"
    with pytest.raises(InferenceServerException, match=expected) as refused:
        ask("longer")
    assert "400" in str(refused.value.status())


def test_models_come_and_go_without_losing_a_call(
    server: Server, client: over_http.InferenceServerClient
) -> None:
    with pytest.raises(InferenceServerException, match="not ready: it was not loaded"):
        client.infer("spare", values([1.0]))
    client.load_model("spare")
    assert client.is_model_ready("spare")
    failures: list[Exception] = []
    stop = threading.Event()

    def keep_asking() -> None:
        with over_http.InferenceServerClient(server.http, network_timeout=PATIENCE) as mine:
            while not stop.is_set():
                try:
                    mine.infer("quick", values([1.0]))
                except Exception as error:
                    failures.append(error)

    asking = threading.Thread(target=keep_asking)
    asking.start()
    for _ in range(3):
        client.load_model("quick")  # anew, while it serves
        client.unload_model("spare")
        client.load_model("spare")
    stop.set()
    asking.join()
    assert failures == []
    client.unload_model("spare")
    assert not client.is_model_ready("spare")
    assert server.metric("astrarium_unaccounted") == 0


def test_a_worker_killed_in_the_middle_of_a_batch_loses_nothing(server: Server) -> None:
    async def with_a_murder() -> list[float]:
        async with GrpcClient(server.grpc) as client:
            calls = []
            for n in range(2):  # one by one: together they would be one batch, and a GPU idle
                answers = client.infer("slow", values([float(n)], module=over_grpc))
                calls.append(asyncio.create_task(answers))
                await asyncio.to_thread(eventually, partial(in_batches, n + 1), "all are in batches")
            for worker in before:
                os.kill(worker, signal.SIGKILL)
            return [answer.as_numpy("OUTPUT").item() for answer in await asyncio.gather(*calls)]

    def in_batches(calls: int) -> bool:
        open_calls = server.metric("astrarium_open", model="slow")
        return open_calls == calls and server.metric("astrarium_waiting_requests") == 0

    before = server.workers()
    assert len(before) == 2
    assert asyncio.run(with_a_murder()) == [0, 1]
    eventually(lambda: server.metric("astrarium_workers") == 2, "both workers are back")
    assert set(server.workers()).isdisjoint(before)
    assert server.metric("astrarium_retried_total", model="slow") == 2
    assert server.metric("astrarium_unaccounted") == 0


def test_a_killed_worker_is_replaced_by_the_process_in_reserve(server: Server) -> None:
    eventually(lambda: server.metric("astrarium_reserve") == 1, "a process is in reserve")
    (reserved,), (first, second) = server.reserve(), server.workers()
    os.kill(first, signal.SIGKILL)
    eventually(lambda: reserved in server.workers(), "it is a worker")
    eventually(lambda: server.metric("astrarium_workers") == 2, "both workers are back")
    assert set(server.workers()) == {second, reserved}
    eventually(lambda: server.metric("astrarium_reserve") == 1, "there is another in reserve")
    assert reserved not in server.reserve()


def test_a_frontend_that_was_stopped_kills_no_worker(server: Server) -> None:
    """It wakes with batches that are far over their limit by the clock, and has not heard their news yet."""

    async def stop_and_go() -> list[float]:
        async with GrpcClient(server.grpc) as client:
            answers = (client.infer("steady", values([float(n)], module=over_grpc)) for n in range(64))
            calls = [asyncio.create_task(call) for call in answers]
            await asyncio.to_thread(eventually, in_batches, "a batch is under way")
            for _ in range(2):
                server.process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(1.5)
                server.process.send_signal(signal.SIGCONT)
                await asyncio.sleep(0.05)
            return [answer.as_numpy("OUTPUT").item() for answer in await asyncio.gather(*calls)]

    def in_batches() -> bool:
        return server.metric("astrarium_gpu_busy_seconds_total") > busy

    restarts = server.metric("astrarium_worker_restarts_total")
    retried = server.metric("astrarium_retried_total")
    busy = server.metric("astrarium_gpu_busy_seconds_total")
    assert asyncio.run(stop_and_go()) == list(range(64))
    time.sleep(0.5)  # looks for workers that are stuck
    assert server.metric("astrarium_worker_restarts_total") == restarts
    assert server.metric("astrarium_retried_total") == retried


@pytest.mark.thorough
def test_clients_that_leave_while_workers_die_cost_nobody_an_answer(server: Server) -> None:
    """Plain requests over many connections; some leave while they wait or while their batch runs, a worker is
    killed meanwhile. Whoever stays hears exactly once, and what was sent."""
    host, port = server.http.split(":")

    async def stays(number: int) -> float:
        reader, writer = await asyncio.open_connection(host, int(port))
        for turn in range(2):
            writer.write(plain_request(float(number + 100 * turn)))
            answer = await asyncio.wait_for(read_answer(reader), PATIENCE)
            assert answer["outputs"][0]["data"] == [float(number + 100 * turn)]
        with pytest.raises(TimeoutError):  # and nothing more
            await asyncio.wait_for(reader.read(1), 0.1)
        writer.close()
        return number

    async def leaves(after: float) -> None:
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(plain_request(1.0))
        await asyncio.sleep(after)
        writer.transport.abort()

    async def everybody() -> list[float]:
        going = [asyncio.create_task(leaves(0.01 * n)) for n in range(20)]
        staying = [asyncio.create_task(stays(n)) for n in range(12)]
        await asyncio.sleep(0.08)
        os.kill(server.workers()[0], signal.SIGKILL)
        await asyncio.gather(*going)
        return await asyncio.gather(*staying)

    assert asyncio.run(everybody()) == list(range(12))
    eventually(lambda: server.metric("astrarium_workers") == 2, "both workers are back")
    eventually(lambda: server.metric("astrarium_open") == 0, "nothing is open")
    assert server.metric("astrarium_unaccounted") == 0
    assert server.metric("astrarium_shared_memory_bytes") == 0
    assert server.metric("astrarium_express_calls_total") >= 24
    assert server.metric("astrarium_path", network="native", policy="python") == 1
    why = "what is recorded is decided in Python"
    assert f"network thread and scheduled by a policy in Python ({why})" in server.said


def plain_request(value: float) -> bytes:
    tensor = {"name": "INPUT", "shape": [1, 1], "datatype": "FP32", "data": [value]}
    body = json.dumps({"inputs": [tensor], "parameters": {"timeout": 30_000_000}})
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return f"{head}{body}".encode()


async def read_answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    size = re.search(r"content-length: (\d+)", head)
    assert size is not None
    body = await reader.readexactly(int(size[1]))
    assert head.startswith("HTTP/1.1 200 "), body
    answer: dict[str, Any] = json.loads(body)
    return answer


def test_connections_that_are_left_are_counted_by_reason(server: Server) -> None:
    host, port = server.grpc.split(":")
    assert 'astrarium_connections_left_total{reason="resets"} 0.0' in server.get("/metrics")

    def left() -> float:
        return server.metric("astrarium_connections_left_total", reason="not_http2")

    before = left()
    with socket.create_connection((host, int(port))) as line:
        line.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while line.recv(1 << 12):
            pass
    eventually(lambda: left() == before + 1, "the connection is counted")
    eventually(lambda: server.metric("astrarium_kept_bytes") == 0, "nothing is kept of it")


def test_the_printed_curl_line_works(server: Server) -> None:
    line = re.search(r"curl .*", server.said)
    assert line is not None
    shown = subprocess.run(shlex.split(line[0]), capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert json.loads(shown.stdout)["model_name"]


def test_the_timeline_tells_where_a_call_spent_its_time(
    server: Server, client: over_http.InferenceServerClient
) -> None:
    client.infer("quick", values([1.0]))
    events = json.loads(server.get("/timeline?last=1"))["traceEvents"]
    stages = {event["name"] for event in events if event["ph"] == "b"}
    assert {"quick", "admit", "queue", "hand_over", "execute", "answer"} <= stages


def test_sigterm_answers_what_was_accepted_and_the_recording_replays(server: Server, folder: Path) -> None:
    """Last, because it ends the server."""

    async def call_and_stop() -> float:
        async with GrpcClient(server.grpc) as client:
            call = asyncio.create_task(client.infer("slow", values([7.0], module=over_grpc)))
            await asyncio.to_thread(eventually, lambda: server.metric("astrarium_open") == 1, "accepted")
            server.process.send_signal(signal.SIGTERM)
            return float((await call).as_numpy("OUTPUT").item())

    workers = [*server.workers(), *server.reserve()]
    assert asyncio.run(call_and_stop()) == 7
    assert server.process.wait(PATIENCE) == 0
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    command = [sys.executable, "-m", "astrarium", "replay", str(folder / "recording.jsonl")]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "the same decisions in all" in shown.stdout


def test_a_model_that_cannot_be_loaded_stops_the_start_with_its_name(folder: Path) -> None:
    (folder / "wrong.py").write_text("import there_is_no_such_package\n\ndef run(X):\n    return X\n")
    bad = SCENARIO.replace("broken.py:run", "wrong.py:run")
    (folder / "bad.yaml").write_text(bad)
    command = [
        sys.executable,
        "-m",
        "astrarium",
        "serve",
        str(folder / "bad.yaml"),
        "--http",
        "0",
        "--grpc",
        "0",
    ]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert shown.returncode == 2
    assert "models.broken.backend" in shown.stderr
    assert "there_is_no_such_package" in shown.stderr


@pytest.mark.thorough
def test_a_start_that_takes_too_long_says_what_was_loading(folder: Path) -> None:
    (folder / "slow.py").write_text("import time\n\ntime.sleep(60)\n\ndef run(X):\n    return X\n")
    file = folder / "late.yaml"
    file.write_text(SCENARIO.replace("broken.py:run", "slow.py:run") + "server: {start_limit: 3s}\n")
    command = [sys.executable, "-m", "astrarium", "serve", str(file), "--http", "0", "--grpc", "0"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert shown.returncode == 2
    (line,) = [line for line in shown.stderr.splitlines() if line.startswith("error:")]
    assert line.startswith(
        f"error: {file}: server.start_limit: expected a time in which all models are loaded;"
    )
    assert line.count("worker") == 2
    assert re.search(r"worker 0, started [\d.]+ s ago, (was still loading .*broken|is not up)", line), line
    assert line.endswith("(got '3s')")
