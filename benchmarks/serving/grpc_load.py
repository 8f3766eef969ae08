"""A small open-loop load over gRPC, as a process: python grpc_load.py PORT RATE SECONDS SEED MODEL...

One channel, calls of bytes that were encoded beforehand; latency from the instant at which a call was due.
A Python client reaches some hundred calls a second: enough for latencies. `all_out` asks as much as a server
answers, by a generator that is compiled.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from load import generator

METHOD = "/inference.GRPCInferenceService/ModelInfer"
PATIENCE_S = 5.0
OUTSTANDING = 256
ALL_OUT = Path(__file__).parent / "parts" / "grpc_all_out.cpp"
# 64 calls under way, as over HTTP
CONNECTIONS = 4
CALLS_OF_EACH = 16


@dataclass(frozen=True)
class GrpcResult:
    offered: int
    answered: int
    p50_ms: float
    p99_ms: float


def offer_grpc(port: int, models: Sequence[str], rate: float, seconds: float, seed: int) -> GrpcResult:
    command = [sys.executable, __file__, str(port), repr(rate), repr(seconds), str(seed), *models]
    limit = seconds + PATIENCE_S + 20
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=limit).stdout
    return GrpcResult(**json.loads(output))


@dataclass(frozen=True)
class AllOut:
    answered: int
    failed: int
    wall_s: float


def all_out(port: int, models: Sequence[str], seconds: float) -> AllOut:
    """Answers of a server that is asked the next call as soon as it has answered one."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(at) for at in range(len(models))]
        for file, model in zip(files, models, strict=True):
            file.write_bytes(encoded(model))
        bounds = [str(port), repr(seconds), str(CONNECTIONS), str(CALLS_OF_EACH)]
        command = [str(generator(ALL_OUT)), *bounds, *map(str, files)]
        limit = seconds + PATIENCE_S + 20
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=limit).stdout
    return AllOut(**json.loads(output))


def encoded(model: str) -> bytes:
    from astrarium.server.grpc.messages import message

    request = message("ModelInferRequest")(model_name=model, raw_input_contents=[b"\0\0\x80?"])
    request.inputs.add(name="INPUT", datatype="FP32", shape=[1, 1])
    return bytes(request.SerializeToString())


async def load(port: int, rate: float, seconds: float, seed: int, models: list[str]) -> GrpcResult:
    import grpc

    chance = random.Random(seed)
    messages = [encoded(model) for model in models]
    latencies: list[float] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(METHOD)  # bytes in, bytes out
        await call(messages[0], timeout=PATIENCE_S)

        async def one(due: float, message: bytes) -> None:
            try:
                await call(message, timeout=PATIENCE_S)
                latencies.append(time.monotonic() - due)
            except grpc.aio.AioRpcError:
                return

        offered = 0
        tasks: set[asyncio.Task[None]] = set()
        due = time.monotonic()
        end = due + seconds
        while (due := due + chance.expovariate(rate)) < end:
            await asyncio.sleep(max(due - time.monotonic(), 0))
            offered += 1
            if len(tasks) < OUTSTANDING:
                task = asyncio.create_task(one(due, chance.choice(messages)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
    return summary(offered, sorted(latencies))


def summary(offered: int, latencies: list[float]) -> GrpcResult:
    if not latencies:
        raise SystemExit("no call was answered")

    def at(share: float) -> float:
        return 1e3 * latencies[min(int(share * len(latencies)), len(latencies) - 1)]

    return GrpcResult(offered, len(latencies), at(0.5), at(0.99))


if __name__ == "__main__":
    _, port, rate, seconds, seed, *models = sys.argv
    result = asyncio.run(load(int(port), float(rate), float(seconds), int(seed), models))
    print(json.dumps(result.__dict__))
