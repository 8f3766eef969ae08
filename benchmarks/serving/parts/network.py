"""Measure the native network alone: a loopback answers each call with its own inputs.

    python benchmarks/serving/parts/network.py [--rate 20000] [--seconds 5] [--threads 1]

What counts is requests per CPU-second of the network threads; the loopback's thread is in the second sum.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.extend(str(Path(__file__).resolve().parents[up]) for up in (1, 3))  # the load, and tests.support

from load import Limits, Result, Template, offer
from tests.support.server.fakes import HOUR, FakeService, LoopbackFront

from astrarium.server.contract import ModelCard
from astrarium.server.http.server import RunningHttp, serve_http
from astrarium.serving.live.tensors import TensorSpec


def model(elements: int) -> ModelCard:
    tensors = (TensorSpec("IN", "FP32", (elements,)),), (TensorSpec("OUT", "FP32", (elements,)),)
    return ModelCard("echo", "fake", *tensors, max_batch=8, slo=HOUR)


def request(elements: int, binary: bool) -> Template:
    values = np.linspace(0, 1, elements, dtype=np.float32)
    tensor: dict[str, Any] = {"name": "IN", "shape": [1, elements], "datatype": "FP32"}
    if not binary:
        body = json.dumps({"inputs": [{**tensor, "data": values.tolist()}]}).encode()
        return Template("/v2/models/echo/infer", body)
    tensor["parameters"] = {"binary_data_size": values.nbytes}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return Template(
        "/v2/models/echo/infer",
        head + values.tobytes(),
        {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"},
    )


def process_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(options: argparse.Namespace) -> None:
    front = LoopbackFront(model(options.elements), threads=options.threads)
    front.loopback.start()
    running = await serve_http(FakeService(), native_front=front)
    template = request(options.elements, not options.json)
    limits = Limits(outstanding=options.connections, lag_p99_ms=100.0, lag_max_ms=1000.0)
    before = network_ns(running)
    process = process_seconds()
    url = f"http://127.0.0.1:{running.port}"
    work = offer, url, [template], options.rate, options.seconds, 25.0, 1, 0.0, 1000.0, None, limits
    result: Result = await asyncio.to_thread(*work)
    spent = (network_ns(running) - before) / 1e9
    process = process_seconds() - process
    calls_by_end = front.exchange.tally(0)[3]
    answered = sum(calls_by_end.values())
    report(result, answered, spent, process)
    await running.stop(grace=1.0)
    front.loopback.stop()


def network_ns(running: RunningHttp) -> int:
    assert running.network is not None
    return sum(running.network.native.cpu_ns())


def report(result: Result, answered: int, spent: float, process: float) -> None:
    print(f"offered {result.offered}, answered {answered}, refused {result.refused}, codes {result.codes}")
    print(f"latency ms: p50 {result.latency_ms.p50:.3f}, p99 {result.latency_ms.p99:.3f}")
    print(f"network threads: {spent:.2f} CPU-s, {answered / spent:,.0f} requests per CPU-second")
    print(f"whole process (with the loopback): {process:.2f} CPU-s, {answered / process:,.0f} per CPU-second")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=float, default=20_000.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--elements", type=int, default=16)
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--json", action="store_true", help="tensors in JSON and not in binary")
    asyncio.run(measure(parser.parse_args()))
