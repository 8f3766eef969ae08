"""The books balance in every scrape, however busy the threads are that count; a call that vanished shows."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from time import monotonic_ns

import pytest
from prometheus_client.parser import text_string_to_metric_families

from astrarium.core.quantities import MILLISECOND, SECOND
from tests.support.live_fakes import Stage, admit, handler_of
from tests.support.server.live_server import PATIENCE, Server, serving
from tests.support.server.native_network import asking, running

SCENARIO = """
cluster: {gpus: 2}
models:
  a: {profile: {alpha: 0.05ms, beta: 0.2ms}, slo: 20s}
  b: {profile: {alpha: 0.05ms, beta: 0.2ms}, slo: 20s}
policy: {name: POLICY}
"""
SCRAPES = 300


@pytest.mark.parametrize(
    ("policy", "options"),
    [("eager", ()), ("clipper", ()), ("shepherd", ()), ("eager", ("-o", "server.path=python"))],
    ids=["twin", "python", "preempting", "uvicorn"],
)
def test_every_scrape_under_load_balances(tmp_path: Path, policy: str, options: tuple[str, ...]) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO.replace("POLICY", policy))
    with serving(file, "-o", "server.threads=2", *options) as server, load(server, clients=4):
        scrapes = [numbers(server.get("/metrics")) for _ in range(SCRAPES)]
    assert sum(one["astrarium_unaccounted", ""] != 0 for one in scrapes) == 0
    for one in scrapes:
        for model in "ab":
            balances(one, model)
    assert scrapes[-1]["astrarium_accepted_total", "a"] > scrapes[0]["astrarium_accepted_total", "a"]


def balances(metrics: dict[tuple[str, str], float], model: str) -> None:
    ended = metrics["astrarium_ended_total", model]
    assert metrics["astrarium_accepted_total", model] == ended + metrics["astrarium_open", model]
    answered = metrics["astrarium_ended_total in_time", model] + metrics["astrarium_ended_total late", model]
    assert metrics["astrarium_latency_seconds_count", model] == answered
    assert metrics["astrarium_queueing_seconds_count", model] == answered
    batches = metrics["astrarium_batch_size_count", model]
    assert metrics["astrarium_execution_seconds_count", model] == batches


def numbers(text: str) -> dict[tuple[str, str], float]:
    """By name and model, and of `astrarium_ended_total` by outcome too."""
    metrics: dict[tuple[str, str], float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            model = sample.labels.get("model", "")
            metrics[sample.name, model] += sample.value
            metrics[f"{sample.name} {sample.labels.get('outcome', '')}", model] += sample.value
    return metrics


@contextmanager
def load(server: Server, clients: int) -> Iterator[None]:
    """Clients that each keep a handful of requests under way."""
    stop = threading.Event()
    threads = [threading.Thread(target=ask_on, args=(server, "ab"[n % 2], stop)) for n in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)


def ask_on(server: Server, model: str, stop: threading.Event) -> None:
    tensor = {"name": "INPUT", "shape": [1, 1], "datatype": "FP32", "data": [1]}
    body = json.dumps({"inputs": [tensor]})
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    host, port = server.http.split(":")
    with (
        socket.create_connection((host, int(port)), PATIENCE) as connection,
        connection.makefile("rb") as answers,
    ):
        while not stop.is_set():
            connection.sendall((head + body).encode() * 8)
            for _ in range(8):
                read_answer(answers)


def read_answer(answers: BufferedReader) -> None:
    assert b" 200 " in answers.readline()
    size = 0
    while (line := answers.readline()) != b"\r\n":
        if length := re.match(rb"content-length: (\d+)", line, re.I):
            size = int(length[1])
    answers.read(size)


def test_a_call_that_who_decides_has_lost_is_found() -> None:
    async def lose_one() -> None:
        async with running(by_hand=True) as server:
            connection = await server.connect()
            exchange = server.front.exchange
            assert exchange.astray(0, 0) == 0
            connection.writer.write(asking([1, 2]) * 3)
            while not (popped := server.loopback.pop()):
                await asyncio.sleep(0.01)
            assert exchange.astray(1, 0) == 0
            assert exchange.astray(0, 0) == 1
            server.loopback.end(popped[0][0])
            while not (popped := server.loopback.pop()):
                await asyncio.sleep(0.01)
            assert exchange.astray(1, 0) == 0
            server.loopback.end(popped[0][0])

    asyncio.run(lose_one())


def test_a_call_that_was_let_in_and_never_let_out_is_found() -> None:
    async def let_one_in() -> None:
        async with running() as server:
            exchange = server.front.exchange
            now = monotonic_ns()
            cost = exchange.admission.cost(0)
            exchange.admission.admit(0, cost, 3600 * SECOND, now, now)
            assert exchange.astray(0, 0) == 1
            assert exchange.astray(0, 1) == 0  # Python has it
            exchange.admission.ended(0, cost.weight, 3600 * SECOND)
            assert exchange.astray(0, 0) == 0

    asyncio.run(let_one_in())


def test_the_native_scheduler_counts_the_calls_that_it_holds_where_they_lie() -> None:
    """Two calls of two rows each: they wait, are in batches, have ended."""
    stage = Stage(gpus=1, slo_ms=400)
    held = stage.scheduler._steps.held
    assert held() == 0
    stage.call(rows=2)
    stage.call(rows=2)
    assert held() == 2
    stage.wait(1)
    assert held() == 2
    assert stage.scheduler.oldest(0) is not None
    stage.workers.kill(0)
    stage.wait(0)
    assert held() == 2
    stage.wait(1000)
    assert held() == 0
    assert len(stage.ended) == 2


@pytest.mark.parametrize("lost", ["ticket", "book", "admission"])
def test_a_call_that_python_has_lost_is_found(lost: str) -> None:
    stage = Stage(gpus=1)
    admit(stage, handler_of(stage), rows=2)
    assert stage.coordinator.unaccounted() == 0
    if lost == "ticket":
        stage.open_calls._by_number.clear()
        assert stage.coordinator.unaccounted() == 1
        return
    stage.loop.run_until(stage.loop.now + 100 * MILLISECOND)
    assert stage.coordinator.accounts.models[0].ended["in_time", ""] == 1
    assert stage.coordinator.unaccounted() == 0
    if lost == "book":
        stage.coordinator.accounts.models[0].ended_in_all -= 1
        assert stage.coordinator.unaccounted() > 0
    else:
        stage.coordinator.admission.ended(0, 0, 0)
        assert stage.coordinator.unaccounted() == 1
